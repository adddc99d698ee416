"""Does a model compute what its program computes, node by node, and nothing elsewhere? The losses.

    pupils = siit.Pupils(task, shape, places)                           # the places of one or more seeds
    batch = pupils.batch(np.random.default_rng([0, step]), rows=256)
    losses = pupils.losses(weights, batch)                              # Float[seed kind]: iit, strict, behaviour

(Strict) interchange intervention training, 2407.14494. For base inputs and independently drawn others:

1. **iit**: a node of the program, drawn per row, gets its output on the other input, in the program and at its place in the
   model. The model must answer as the program then does.
2. **strict**: nodes of the model outside the circuit get their outputs on the other input: `individual` one per row,
   `sample_all` each with probability 1/2, `all`; or all of them write nothing, `silent`; `mixed` a quarter of the rows each. The model
   must answer as if nothing had happened. (With `sample_all` alone, nodes that vote together are hardly ever swapped together; without
   `silent` they may write the same large number to all inputs, which the model cannot do without.)
3. **behaviour**: no swap.

Cross-entropy to the program's answer, or the squared error of a number; BOS does not count, nor do answers that the program does not have.
Logits beyond 50 cost the square of what is beyond, a thousandth of it, so that they stay bounded. Inputs and others are of one length, or
of two where the program reads it (`lengths`). Gradients flow through the outputs on
the other input as well: a node outside the circuit learns to write the same to all inputs, and one inside to write what others
need. Without them (`detached`, as published) a strict swap cannot tell an MLP to be still; what is left to the model is to make
its other parts louder, and many trainings fell apart. All three losses are one forward pass with three groups of rows, for all seeds at
once, and seeds see the same inputs. Costs per step a forward and backward pass of four times the rows.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from sonde.bench import batched, correspondence, high, lengths
from sonde.circuits import graph as circuits_graph
from sonde.core import errors

Strict = Literal["individual", "sample_all", "all", "silent", "mixed"]
KINDS = ("iit", "strict", "behaviour")
STRICT: tuple[Strict, ...] = ("individual", "sample_all", "all", "silent")
WAYS: tuple[Strict, ...] = (*STRICT, "mixed")
TOLERANCE = lengths.TOLERANCE
HUSH = 0.1
LIMIT, EXCESS = 50.0, 1e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Inputs and what is right for them.

    Attributes:
        base: The inputs.
        other: Where swapped outputs come from.
        node: Which node of the program is swapped in each row.
        luck: Per row and node of the model, an even draw that decides about strict swaps.
        plain: The program's answers.
        swapped: Its answers with the node swapped.
    """

    base: Int[Tensor, "row pos"]
    other: Int[Tensor, "row there"]
    node: Int[Tensor, "row"]
    luck: Float[Tensor, "row place"]
    plain: Shaped[Tensor, "row counted"]
    swapped: Shaped[Tensor, "row counted"]


class Pupils:
    """Models of one shape that learn one task, each with places of its own."""

    def __init__(self, task: high.Task, shape: batched.Shape, places: Sequence[correspondence.Places]) -> None:
        self.task, self.shape, self.places = task, shape, tuple(places)
        self.graph = circuits_graph.Graph(shape.n_layers, shape.n_heads, shape.n_heads)
        self.nodes = correspondence.nodes_of(task.program.circuit)
        columns = {name: index for index, name in enumerate(self.graph.sources[1:])}
        seats = torch.zeros(len(self.places), len(self.nodes), len(columns), dtype=torch.bool)
        for seed, one in enumerate(self.places):
            for row, node in enumerate(self.nodes):
                seats[seed, row, columns[one[node]]] = True
        self.seats: Bool[Tensor, "seed node place"] = seats
        self.free: Bool[Tensor, "seed place"] = ~seats.any(dim=1)

    def select(self, seeds: Sequence[int]) -> "Pupils":
        """Some of them, by their index."""
        return Pupils(self.task, self.shape, [self.places[index] for index in seeds])

    def hushed(self, weights: Float[Tensor, "seed parameter"]) -> Float[Tensor, "seed parameter"]:
        """Weights with which nodes outside the circuits write a tenth of what they wrote."""
        found = weights.clone()
        parts, width = batched.parts(self.shape, found), self.shape.d_head
        for seed, free in enumerate(self.free):
            for name in (name for name, alone in zip(self.graph.sources[1:], free.tolist(), strict=True) if alone):
                layer, _, head = name[1:].partition(".h")
                at = f"model.layers.{layer}." + ("self_attn.o_proj" if head else "mlp.fc_out")
                own = slice(int(head) * width, (int(head) + 1) * width) if head else slice(None)
                parts[f"{at}.weight"][seed, :, own] *= HUSH
        return found

    def batch(self, rng: np.random.Generator, rows: int, *, length: int | None = None) -> Batch:
        """Inputs and answers; nodes are drawn per row."""
        base, other = lengths.pair(self.task, rng, rows, length=length)
        node = torch.from_numpy(rng.integers(len(self.nodes), size=rows))
        luck = torch.from_numpy(rng.random((rows, self.free.shape[1]), dtype=np.float32))
        return self.judged(base, other, node, luck)

    def judged(
        self,
        base: Int[Tensor, "row pos"],
        other: Int[Tensor, "row there"],
        node: Int[Tensor, "row"],
        luck: Float[Tensor, "row place"],
    ) -> Batch:
        """A batch of given inputs and nodes."""
        hot = F.one_hot(node, len(self.nodes)).bool()
        answers = self.task.program.answers(base, other, torch.stack([torch.zeros_like(hot), hot]))
        plain, swapped = answers[:, :, self.task.counted]
        return Batch(base, other, node, luck, plain, swapped)

    def masks(self, batch: Batch, kind: str, strict: str = "mixed") -> Bool[Tensor, "seed row place"]:
        """Which nodes of each model are swapped in each row for a kind of loss."""
        if kind == "iit":
            return self.seats[:, batch.node]
        free, luck = self.free[:, None], batch.luck[None]
        if kind == "behaviour":
            return torch.zeros_like(free & (luck > 0))
        if strict == "individual":
            best = torch.where(free, luck, -1.0).argmax(dim=-1)
            return F.one_hot(best, luck.shape[-1]).bool() & free
        if strict == "sample_all":
            return free & (luck < 0.5)
        if strict == "all":
            return free & (luck >= 0)
        if strict == "silent":
            return torch.zeros_like(free & (luck > 0))
        if strict == "mixed":
            each = torch.stack([self.masks(batch, kind, way) for way in STRICT])
            rows = torch.arange(len(batch.base))
            return each[rows % len(STRICT), :, rows].transpose(0, 1)
        raise errors.RequestError(
            f"no way of swapping {strict!r}; there are {', '.join(WAYS)}{errors.suggest(strict, WAYS)}"
        )

    def silent(self, batch: Batch, kind: str, strict: str = "mixed") -> Bool[Tensor, "seed row place"]:
        """Which nodes of each model write nothing in each row for a kind of loss."""
        rows = torch.arange(len(batch.base))
        asked = strict == "silent" or (strict == "mixed" and rows % len(STRICT) == STRICT.index("silent"))
        asked = torch.as_tensor(asked & (kind == "strict")).expand(len(rows))
        return self.free[:, None] & asked[None, :, None]

    def logits(
        self,
        weights: Float[Tensor, "seed parameter"],
        batch: Batch,
        masks: Bool[Tensor, "seed group row place"],
        *,
        silent: Bool[Tensor, "seed group row place"] | None = None,
        detached: bool = False,
    ) -> Float[Tensor, "seed group row counted d_out"]:
        """Logits of the answers that count, with nodes swapped, or silent."""
        return batched.exchanged(
            self.shape, weights, (batch.base, batch.other), batched.Masks(masks, silent),
            counted=self.task.counted, detached=detached,
        )  # fmt: skip

    def losses(
        self,
        weights: Float[Tensor, "seed parameter"],
        batch: Batch,
        *,
        kinds: Sequence[str] = KINDS,
        strict: str = "mixed",
        detached: bool = False,
    ) -> Float[Tensor, "seed kind"]:
        """The loss of each kind for each model; `detached` lets no gradient through what is swapped in."""
        masks = torch.stack([self.masks(batch, kind, strict) for kind in kinds], dim=1)
        silent = torch.stack([self.silent(batch, kind, strict) for kind in kinds], dim=1)
        right = torch.stack([batch.swapped if kind == "iit" else batch.plain for kind in kinds])
        logits = self.logits(weights, batch, masks, silent=silent if bool(silent.any()) else None, detached=detached)
        right = right.expand(len(logits), *right.shape)
        if self.task.regression:
            return (logits[..., 0] - right).square().mean(dim=(2, 3))
        each = F.cross_entropy(logits.flatten(0, 3), right.flatten(), reduction="none", ignore_index=high.UNKNOWN)
        known = (right != high.UNKNOWN).sum(dim=(2, 3)).clamp(min=1)
        beyond = (logits.abs() - LIMIT).clamp(min=0).square().mean(dim=(2, 3, 4))
        return each.view(right.shape).sum(dim=(2, 3)) / known + EXCESS * beyond

    def hits(
        self, logits: Float[Tensor, "seed group row counted d_out"], right: Shaped[Tensor, "group row counted"]
    ) -> Bool[Tensor, "seed group row counted"]:
        """Where the answer is right: the class, or the number within 0.05; nowhere that there is none."""
        if self.task.regression:
            return (logits[..., 0] - right).abs() < TOLERANCE
        return logits.argmax(dim=-1) == right
