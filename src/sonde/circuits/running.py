"""How does a model run with some of its edges cut? The engine that every circuit finder is written on.

    runner = Runner(model, pairs, metric, ablation="resample")
    runner.loss_of(mask)                      # mask 1 = the edge is kept, 0 = it is cut; gradients reach a float mask
    for batch in runner.batches:
        gradients = runner.destination_gradients(batch)
        scores += gradients.dot(runner.ablated(batch) - gradients.trace.sources)

A cut edge carries what its source writes in the corrupt run (`resample`), nothing (`zero`), or the mean of the corrupt
runs at that position (`mean`). A kept edge carries what its source writes in this very run. Position ids that the pairs
corrupt are part of what `input` writes, so they need learned positions.

Pairs run in batches that fit memory. What edges carry when cut is kept between runs if it fits in `KEPT` bytes, and
recomputed otherwise. `runner.spent` counts forward and backward passes of one pair each.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.circuits import graph as circuits_graph
from sonde.circuits import metrics as circuits_metrics
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import parts, running_masks, running_memory, running_plain
from sonde.core import errors
from sonde.models import model as models_model

ABLATIONS = ("resample", "zero", "mean")
Side = Literal["clean", "corrupt"]
Mask = circuits_graph.Circuit | np.ndarray | Tensor
KEPT = 3 << 30
ROUNDING = 1e-5


@dataclasses.dataclass(slots=True, eq=False)
class Batch:
    """Pairs that run together.

    Attributes:
        pairs: The pairs.
        rows: Which of all pairs they are.
        reference: Logits of the clean run, once known.
        ablated: What cut edges carry, if it is kept.
        places: The positions that are read, once known; whole rows in order are a slice.
    """

    pairs: circuits_pairs.Pairs
    rows: slice
    reference: Float[Tensor, "pair read vocab"] | None = None
    ablated: Float[Tensor, "source pair pos d_model"] | None = None
    places: tuple[Any, Any] | None = None


@dataclasses.dataclass(slots=True)
class Spent:
    """Forward and backward passes so far, of one pair each."""

    forwards: float = 0.0
    backwards: float = 0.0


class Runner:
    """Runs a model on pairs with edges cut."""

    def __init__(
        self,
        model: models_model.Model,
        pairs: circuits_pairs.Pairs,
        metric: "str | circuits_metrics.Metric | circuits_metrics.Function",
        *,
        ablation: str = "resample",
        batch_size: int | None = None,
    ) -> None:
        """Takes the model apart and checks that pairs and model fit together.

        Args:
            model: The model.
            pairs: Clean and corrupt inputs.
            metric: What runs are judged by.
            ablation: What a cut edge carries.
            batch_size: Pairs to run at once; None for as many as fit.

        Raises:
            RequestError: The ablation is unknown, the pairs do not fit the model, or memory does not suffice.
        """
        if ablation not in ABLATIONS:
            raise errors.RequestError(
                f"no ablation {ablation!r}{errors.suggest(ablation, ABLATIONS)} Ablations are {', '.join(ABLATIONS)}"
            )
        self.model, self.graph = model, circuits_graph.Graph.of(model)
        self.metric, self.ablation = circuits_metrics.get(metric), ablation
        self.pairs = _placed(pairs, model)
        self.network = parts.Network(model, pairs.width)
        other = pairs.corrupt.shape[1]
        self._twin = self.network if other == pairs.width else parts.Network(model, other)
        self._check_pairs()
        self.sizes = running_memory.Sizes.of(model, self.graph, self.pairs)
        self.batch_size = running_memory.batch_size(self.sizes, len(pairs), batch_size)
        running_memory.check(self.sizes, self.batch_size, model.device)
        self.batches = tuple(
            Batch(part, slice(start, start + len(part)))
            for start, part in zip(
                range(0, len(pairs), self.batch_size), self.pairs.batches(self.batch_size), strict=True
            )
        )
        self.spent = Spent()
        self._keeps = self.sizes.contributions(len(pairs)) <= KEPT
        self._mean: Tensor | None = None

    def estimate_bytes(self) -> int:
        """Memory that the largest kind of run of one batch takes, roughly."""
        return self.sizes.masked(self.batch_size)

    def start(self, batch: Batch, side: Side) -> Float[Tensor, "pair own d_model"]:
        """What `input` writes: embeddings of tokens, and of positions where they are learned."""
        with self.alone():
            if side == "clean":
                return self.network.embed(batch.pairs.clean)
            return self._twin.embed(batch.pairs.corrupt, batch.pairs.positions)

    def contributions(self, batch: Batch, side: Side) -> Float[Tensor, "source pair pos d_model"]:
        """What every source writes in the plain run of one side, at the positions of the clean one.

        Where the corrupt inputs have no such position, it is what the source writes in the clean run.
        """
        with self.alone():
            self.spent.forwards += len(batch.pairs)
            network = self.network if side == "clean" else self._twin
            found = running_plain.trace(network, self.graph, self.start(batch, side)).sources
        if found.shape[2] < batch.pairs.width:
            return torch.cat([found, self.contributions(batch, "clean")[:, :, found.shape[2] :]], dim=2)
        return found[:, :, : batch.pairs.width]

    def ablated(self, batch: Batch) -> Float[Tensor, "source pair pos d_model"]:
        """What edges carry when they are cut."""
        if batch.ablated is not None:
            return batch.ablated
        if self.ablation == "resample":
            found = self.contributions(batch, "corrupt")
        else:
            shape = (len(self.graph.sources), *batch.pairs.clean.shape, self.model.cfg.d_model)
            one = torch.zeros((), dtype=self.sizes.dtype, device=self.model.device)
            found = (one if self.ablation == "zero" else self._means()[:, None]).expand(shape)
        if self._keeps:
            batch.ablated = found
        return found

    def reference(self, batch: Batch) -> Float[Tensor, "pair read vocab"]:
        """Logits of the plain clean run, at the positions that are read."""
        if batch.reference is None:
            ids = batch.pairs.clean
            with self.alone():
                logits = self.model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
            self.spent.forwards += len(ids)
            batch.reference = batch.pairs.reading(logits)
        return batch.reference

    def logits(self, mask: Mask | None = None) -> Float[Tensor, "*many pair read vocab"]:
        """Logits of all pairs at the positions that are read.

        Args:
            mask: A circuit, or `source destination` with 1 where an edge is kept and 0 where it is cut; or several such,
                `many source destination`; None for the plain model.
        """
        if mask is None:
            return torch.cat([self.reference(batch) for batch in self.batches])
        return torch.cat([self.batch_logits(batch, mask) for batch in self.batches], dim=-3)

    def batch_logits(self, batch: Batch, mask: Mask) -> Float[Tensor, "*many pair read vocab"]:
        """Logits of one batch under a mask, or under several."""
        masks = self.as_masks(mask)
        many, ablated, start = (
            (masks if masks.ndim == 3 else masks[None]),
            self.ablated(batch),
            self.start(batch, "clean"),
        )
        with self.alone(taped=masks.requires_grad):
            final = running_masks.run(self.network, self.graph, start, ablated=ablated, masks=many).final
            logits = self.network.unembed(self.at_places(batch, final.unflatten(0, (len(many), -1))))
        self.spent.forwards += len(many) * len(batch.pairs)
        return logits if masks.ndim == 3 else logits[0]

    def metric_of(self, mask: Mask | None = None) -> Float[Tensor, "*many pair"]:
        """The metric's value of every pair under a mask (or under several), or of the plain model."""
        found = []
        for batch in self.batches:
            logits = self.reference(batch) if mask is None else self.batch_logits(batch, mask)
            found.append(self.batch_metric(batch, logits))
        return torch.cat(found, dim=-1)

    def batch_metric(self, batch: Batch, logits: Float[Tensor, "*many pair read vocab"]) -> Float[Tensor, "*many pair"]:
        """The metric's value of every pair of a batch."""
        if logits.ndim == 4:
            return torch.stack([self.batch_metric(batch, one) for one in logits])
        return self.metric(logits, batch.pairs, self.reference(batch))

    def loss_of(self, mask: Mask | None = None) -> Float[Tensor, "*many"]:
        """What a good circuit keeps low: the mean of the metric over pairs, negated if high values are better."""
        return self.sign * self.metric_of(mask).mean(dim=-1)

    @property
    def sign(self) -> float:
        """Of the metric in the loss."""
        return -1.0 if self.metric.better == "high" else 1.0

    def destination_gradients(
        self, batch: Batch, *, share: float | None = None, outputs: Mapping[int, Tensor] | None = None
    ) -> running_plain.Gradients:
        """How the loss depends on what every destination reads, by one forward and one backward pass.

        The loss is the mean over all pairs, so the gradients of the batches add up.

        Args:
            batch: The pairs.
            share: How far what `input` writes lies from its ablated (0) towards its clean value (1, the default).
            outputs: What other sources write instead of what they would, by their index.
        """
        start = self.start(batch, "clean")
        if share is not None:
            other = self.ablated(batch)[0]
            start = other + share * (start - other)
        plain = share is None and not outputs
        with self.alone(taped=True):
            run = running_plain.trace(self.network, self.graph, start.requires_grad_(), outputs=outputs)
            logits = self.network.unembed(self.at_places(batch, run.final[None])[0])
            if plain and batch.reference is None:
                batch.reference = logits.detach()
            values = self.metric(logits, batch.pairs, self.reference(batch))
            loss = self.sign * values.sum() / len(self.pairs)
            found = torch.autograd.grad(loss, run.cuts, allow_unused=True)
        self.spent.forwards += len(batch.pairs)
        self.spent.backwards += len(batch.pairs)
        values = [torch.zeros_like(cut) if one is None else one for one, cut in zip(found, run.cuts, strict=True)]
        cuts = [cut.detach() for cut in run.cuts]
        run = dataclasses.replace(run, cuts=cuts, final=cuts[-1])
        return running_plain.Gradients(self.network, self.graph, run, loss.detach(), values)

    def check_moves(self) -> None:
        """Refuses a metric that is the same with every edge kept and with every edge cut.

        Raises:
            AnalysisError: It is; says so.
        """
        cut = []
        for batch in self.batches:
            with self.alone():
                final = self.ablated(batch).sum(dim=0)
                for layer in self.network.layers:
                    final = final if layer.constant is None else final + layer.constant
                cut.append(self.batch_metric(batch, self.network.unembed(self.at_places(batch, final[None])[0])))
        kept, found = self.metric_of(), torch.cat(cut)
        # The two runs add up in different orders: a difference of rounding errors is none.
        found = torch.where((found - kept).abs() <= ROUNDING * (1 + kept.abs()), kept, found)
        circuits_metrics.check_moves(self.metric, kept, found)

    def at_places(
        self, batch: Batch, stream: Float[Tensor, "many pair pos d_model"]
    ) -> Float[Tensor, "many pair read d_model"]:
        """The stream at the positions that are read."""
        if batch.places is None:
            rows, places = torch.arange(len(batch.pairs), device=stream.device)[:, None], batch.pairs.places
            whole = torch.arange(batch.pairs.width, device=places.device).expand_as(batch.pairs.clean)
            batch.places = (slice(None), slice(None)) if torch.equal(places, whole) else (rows, places)
        return stream[:, batch.places[0], batch.places[1]]

    def as_masks(self, mask: Mask) -> Float[Tensor, "*many source destination"]:
        """A circuit or mask as a tensor of the model's type.

        Raises:
            RequestError: It does not fit the graph.
        """
        if isinstance(mask, circuits_graph.Circuit):
            if mask.graph != self.graph:
                raise errors.RequestError(
                    f"the circuit is of {mask.graph}, the model's graph is {self.graph}: a merged view cannot run"
                )
            mask = mask.edges
        masks = torch.as_tensor(mask, device=self.model.device)
        shape = (len(self.graph.sources), len(self.graph.destinations))
        if tuple(masks.shape[-2:]) != shape or masks.ndim not in (2, 3):
            raise errors.RequestError(f"a mask is {shape}, sources x destinations; got {tuple(masks.shape)}")
        return masks.to(self.sizes.dtype)

    def _means(self) -> Float[Tensor, "source pos d_model"]:
        """What sources write in the corrupt runs, averaged over pairs, at each position that any pair has."""
        if self._mean is None:
            total, count = torch.zeros((), device=self.model.device), torch.zeros((), device=self.model.device)
            for batch in self.batches:
                real = batch.pairs.real.to(self.sizes.dtype)
                total = total + torch.einsum("spld,pl->sld", self.contributions(batch, "corrupt"), real)
                count = count + real.sum(dim=0)
            self._mean = total / count[:, None].clamp(min=1)
        return self._mean

    def _check_pairs(self) -> None:
        pairs, cfg = self.pairs, self.model.cfg
        if (widest := max(pairs.width, pairs.corrupt.shape[1])) > cfg.n_ctx:
            raise errors.ContextError(f"{widest} tokens do not fit the context of {cfg.n_ctx}")
        beyond = max(int(pairs.clean.max()), int(pairs.corrupt.max()))
        if beyond >= cfg.d_vocab:
            raise errors.RequestError(f"token {beyond} is not in the vocabulary of {cfg.d_vocab}")
        if pairs.positions is not None and not self.network.learned_positions:
            raise errors.RequestError(
                "these pairs corrupt positions, but the model writes none to its stream (rotary embeddings turn queries "
                "and keys instead): leave positions out"
            )
        if not cfg.causal and not bool((pairs.ends == pairs.ends[0]).all()):
            raise errors.RequestError(
                "pairs of different lengths are padded, and this model looks both ways: give pairs of one length"
            )

    @contextlib.contextmanager
    def alone(self, *, taped: bool = False) -> Iterator[None]:
        """The model to itself; with a tape, but none for its weights."""
        weights: list[Any] = [p for p in self.model.parts.hf.parameters() if p.requires_grad] if taped else []
        with self.model.lock, torch.set_grad_enabled(taped):
            for weight in weights:
                weight.requires_grad_(False)
            try:
                yield
            finally:
                for weight in weights:
                    weight.requires_grad_(True)


def _placed(pairs: circuits_pairs.Pairs, model: models_model.Model) -> circuits_pairs.Pairs:
    """The pairs where the model is."""
    moved = {
        field.name: value.to(model.device)
        for field in dataclasses.fields(pairs)
        if isinstance(value := getattr(pairs, field.name), Tensor)
    }
    return dataclasses.replace(pairs, **moved)
