"""How good is a model with a known circuit, and how good is a circuit that was found in it?

    evaluating.iit(subject, rows=1000)                       # per node: effects of swapping, of the mean, of zero; IIA; strict
    evaluating.realism(subject, circuit, ablation="mean")    # is the rest of the model needed?
    evaluating.overlap(found, subject.truth)                 # true and false positive rates of nodes and edges

`iit`: for every node of the trained model, the share of answers that change when its output is taken from another input
(only answers for which the two inputs' labels differ count, at positions that both have, so a node that decides everything has 1), becomes its mean, or
zero. Nodes outside the circuit should have no effect. `kl` says the same without a verdict on answers: how far, in nats, the
distribution over answers moves from the model's own when the node has its output of the other input, on the same answers.
`gt_node_realism`, `node_realism`: all nodes outside the true (or a found) circuit get their mean, or zero; of the answers that
were right, which share stays right?
`iit_acdc`: the circuit that ACDC finds at a threshold against the true one; queries, keys and values of a head are merged.

Pairs are sampled, never all of them; they have the greatest length, or different ones where the program reads it (`lengths`). Costs a few forward passes per node over the rows.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from sonde.bench import batched, lengths, measuring, shipped, siit
from sonde.circuits import graph as circuits_graph
from sonde.core import errors
from sonde.models import plain

Ablation = Literal["mean", "zero"]
ABLATIONS = ("mean", "zero")


@dataclasses.dataclass(frozen=True, slots=True)
class Effect:
    """What a node of a trained model does.

    Attributes:
        node: Its name.
        program: The node of the program whose work it does; empty outside the circuit.
        resample: Share of answers that change with its output of another input, among those whose labels differ.
        mean: Share of answers that change with its mean output.
        zero: Share of answers that change without it.
        kl: Mean divergence of the answers' distribution with its output of another input; None where answers are numbers.
    """

    node: str
    program: str
    resample: float
    mean: float
    zero: float
    kl: float | None


class Bench:
    """One trained model with inputs to evaluate it on."""

    def __init__(self, subject: shipped.Subject, *, rows: int = 1000, seed: int = 0) -> None:
        if not subject.log:
            raise errors.RequestError(
                f"{subject.name} is compiled: evaluations of training need a trained model (--siit-weights or --interp-bench)"
            )
        self.subject, self.task = subject, subject.task
        hf, config = subject.model.hf, subject.model.hf.config
        if not isinstance(hf, plain.PlainForCausalLM):
            raise errors.RequestError(
                f"{subject.name} has norms: nodes are swapped in models without; of this one ioi_acdc can be evaluated"
            )
        self.shape, self.weights = batched.Shape.of(config), batched.from_plain(hf)
        self.pupils = siit.Pupils(self.task, self.shape, [subject.log["places"]])
        rng = np.random.default_rng([3, seed])
        self.base, self.other = lengths.longest(self.task, rng, rows)
        none = torch.zeros(1, rows, len(self.pupils.nodes), dtype=torch.bool)
        self.labels, others = (
            self.task.program.answers(one, one, none)[0, :, self.task.counted] for one in (self.base, self.other)
        )
        shared = min(self.labels.shape[1], others.shape[1])
        self.apart = torch.zeros_like(self.labels, dtype=torch.bool)
        self.apart[:, :shared] = self.differ(self.labels[:, :shared], others[:, :shared])
        rest, _ = self.task.inputs.pair(rng, rows, length=self.base.shape[1] - 1)
        with torch.no_grad():
            self.there = batched.run(self.shape, self.weights, self.other).kept
            self.rest = batched.run(self.shape, self.weights, rest).kept
            self.logits = batched.run(self.shape, self.weights, self.base).logits[0, 0]
        self.plain = self.read(self.logits)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Heads and MLPs of the model."""
        return self.pupils.graph.sources[1:]

    def read(self, logits: Float[Tensor, "row pos d_out"]) -> Shaped[Tensor, "row counted"]:
        """Answers of logits."""
        counted = logits[:, self.task.counted]
        return counted[..., 0] if self.task.regression else counted.argmax(dim=-1)

    def ablated(self, nodes: Iterable[str], there: batched.Outputs) -> Shaped[Tensor, "row counted"]:
        """Answers with the outputs of nodes replaced."""
        return self.read(self.without(nodes, there))

    def without(self, nodes: Iterable[str], there: batched.Outputs) -> Float[Tensor, "row pos d_out"]:
        """Logits with the outputs of nodes replaced."""
        chosen = torch.tensor([name in set(nodes) for name in self.nodes])
        masks = chosen.expand(1, 1, len(self.base), -1)
        with torch.no_grad():
            found = batched.run(self.shape, self.weights, self.base, swap=batched.Swap(there, batched.Masks(masks)))
        return found.logits[0, 0]

    def divergence(self, logits: Float[Tensor, "row pos d_out"]) -> Float[Tensor, "row counted"]:
        """How far the distribution over answers is from the model's own, in nats."""
        mine, other = (one[:, self.task.counted].log_softmax(dim=-1) for one in (self.logits, logits))
        return (mine.exp() * (mine - other)).sum(dim=-1).clamp(min=0)

    def values(self, ablation: str) -> batched.Outputs:
        """Outputs to replace nodes' by: means over other inputs of the same length, or zeros.

        Raises:
            RequestError: There is no such ablation.
        """
        if ablation not in ABLATIONS:
            raise errors.RequestError(
                f"no ablation {ablation!r}; there are {', '.join(ABLATIONS)}{errors.suggest(ablation, ABLATIONS)}"
            )
        by = 1.0 if ablation == "mean" else 0.0

        def filled(part: Tensor) -> Tensor:
            return by * part.mean(dim=-1, keepdim=True).expand_as(part)

        return batched.Outputs(tuple(map(filled, self.rest.heads)), tuple(map(filled, self.rest.mlps)))

    def differ(
        self, one: Shaped[Tensor, "row counted"], two: Shaped[Tensor, "row counted"]
    ) -> Bool[Tensor, "row counted"]:
        """Where answers are not the same."""
        return (one - two).abs() >= siit.TOLERANCE if self.task.regression else one != two


def iit(subject: shipped.Subject, *, rows: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Accuracy, IIA, strict accuracy, and what each node does."""
    bench = Bench(subject, rows=rows, seed=seed)
    (measured,) = measuring.measure(bench.pupils, bench.weights, rows=rows, key=100 + seed)
    roles = {place: node for node, place in subject.log["places"].items()}
    apart = bench.apart
    values = {name: bench.values(name) for name in ABLATIONS}
    effects = []
    for node in bench.nodes:
        logits = bench.without([node], bench.there)
        swapped = bench.differ(bench.read(logits), bench.labels)
        others = {
            name: float(bench.differ(bench.ablated([node], kept), bench.plain).float().mean())
            for name, kept in values.items()
        }
        some = bool(apart.any())
        share = float(swapped[apart].float().mean()) if some else 0.0
        far = None if bench.task.regression else float(bench.divergence(logits)[apart].mean()) if some else 0.0
        effects.append(dataclasses.asdict(Effect(node, roles.get(node, ""), share, kl=far, **others)))
    return {"subject": subject.name, **measured.to_json(), "effects": effects}


def realism(
    subject: shipped.Subject,
    circuit: circuits_graph.Circuit | None = None,
    *,
    ablation: str = "mean",
    rows: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Of the right answers, the share that stays right without the nodes outside a circuit, the true one by default.

    Raises:
        RequestError: There is no such ablation, or the circuit is one of another model.
    """
    bench = Bench(subject, rows=rows, seed=seed)
    chosen = subject.truth if circuit is None else circuit
    if chosen.graph.merged() != subject.truth.graph.merged():
        raise errors.RequestError(f"the circuit is one of another model than {subject.name}: their graphs differ")
    outside = [node for node in bench.nodes if node not in chosen.nodes]
    right = ~bench.differ(bench.plain, bench.labels)
    after = ~bench.differ(bench.ablated(outside, bench.values(ablation)), bench.labels)
    share = float(after[right].float().mean()) if bool(right.any()) else 0.0
    return {
        "subject": subject.name, "ablation": ablation, "outside": outside, "right_before": float(right.float().mean()),
        "realism": share,
    }  # fmt: skip


def overlap(found: circuits_graph.Circuit, truth: circuits_graph.Circuit) -> dict[str, float]:
    """True and false positive rates of nodes and edges, heads whole."""
    mine, true = found.merged(), truth.merged()
    allowed = true.graph.allowed
    here, right = mine.edges[allowed], true.edges[allowed]
    nodes = true.graph.sources[1:]
    inside = np.array([node in mine.nodes for node in nodes])
    correct = np.array([node in true.nodes for node in nodes])
    return {
        "node_tpr": _rate(inside, correct), "node_fpr": _rate(inside, ~correct),
        "edge_tpr": _rate(here, right), "edge_fpr": _rate(here, ~right),
    }  # fmt: skip


def _rate(found: Bool[np.ndarray, "item"], among: Bool[np.ndarray, "item"]) -> float:
    return float(found[among].mean()) if among.any() else 0.0
