"""How well does a method find a circuit that is known?

    found = finding.run(subject, "acdc", tau=0.71)
    found.scores, found.circuit, found.judged           # AUROCs, and rates where the method gives a circuit

Pairs are the subject's inputs and others drawn independently, of the greatest length (where the program reads the length, the others are of a
shorter one, see `lengths`), and as far as there are any such that the right answers differ; for IOI the others have the names swapped. If the program reads positions, those of the corrupt run can be shuffled as well (BOS keeps its own): an edge that carries
nothing but positions is the same in all inputs otherwise. Answers at all positions that count are read. The metric is the
divergence from the model's own answers (`kl`), or the squared error where answers are numbers (`mse`); `answer_diff` (see
`contrast`) has a slope at the clean run, which `eap` and `hisp` need.

Nodes of programs that hardly matter in an exchange are neither true nor false, and AUROCs leave them out, with the edges at them (`judging`).

Costs what the method costs.
"""

import dataclasses
import hashlib
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from sonde.bench import contrast, correspondence, evaluating, high, judging, lengths, shipped
from sonde.circuits import graph as circuits_graph
from sonde.circuits import metrics as circuits_metrics
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import rank, registry
from sonde.circuits import scores as circuits_scores
from sonde.core import errors, progress

MORE = 4


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """What a method found in a subject.

    Attributes:
        scores: Of edges or nodes.
        circuit: The edges that it keeps; None if it only ranks.
        judged: AUROCs of nodes and edges, and rates of the circuit.
        usable: The lowest score above nothing and the highest: thresholds between them keep some edges.
    """

    scores: circuits_scores.Scores
    circuit: circuits_graph.Circuit | None
    judged: dict[str, Any]
    usable: tuple[float, float]

    def files(self) -> dict[str, dict[str, Any]]:
        """What is kept of it, by the name of the file."""
        circuit = {} if self.circuit is None else {"circuit": self.circuit.to_json()}
        return {"scores": self.scores.to_json(), **circuit, "result": self.judged}


def pairs_of(
    subject: shipped.Subject, *, n: int = 200, seed: int = 0, positions: bool | None = None
) -> circuits_pairs.Pairs:
    """Pairs of inputs for circuit finders.

    Args:
        subject: The model.
        n: How many.
        seed: Fixes them.
        positions: Whether corrupt runs have their positions shuffled; by default where a program that reads positions was
            compiled.
    """
    task, rng = subject.task, np.random.default_rng([4, seed])
    clean, corrupt = lengths.longest(task, rng, MORE * n)
    if task.corrupt is not None:
        corrupt = task.corrupt(clean)
    one, two = (_answers(task, side) for side in (clean, corrupt))
    shared = min(one.shape[1], two.shape[1])
    same = (one[:, :shared] == two[:, :shared]).all(dim=1)
    chosen = torch.sort(same.int(), stable=True).indices[:n]
    clean, corrupt = clean[chosen], corrupt[chosen]
    read = torch.zeros_like(clean, dtype=torch.bool)
    read[:, task.counted] = True
    positions = subject.positional and not subject.log if positions is None else positions
    places = _shuffled(rng, *corrupt.shape) if positions else None
    return circuits_pairs.Pairs.of_tensors(clean, corrupt, positions=places, read=read)


def _answers(task: high.Task, inputs: Int[Tensor, "row pos"]) -> Shaped[Tensor, "row counted"]:
    """What the program says where it counts."""
    none = torch.zeros(1, len(inputs), len(correspondence.nodes_of(task.program.circuit)), dtype=torch.bool)
    return task.program.answers(inputs, inputs, none)[0, :, task.counted]


def metric_of(subject: shipped.Subject) -> str:
    """What circuits are judged by, unless something else is asked for."""
    return "mse" if subject.task.regression else "kl"


def metric_named(
    subject: shipped.Subject, pairs: circuits_pairs.Pairs, name: str | None
) -> str | circuits_metrics.Metric:
    """A metric by its name, `answer_diff` included; the subject's own if there is no name."""
    if name == contrast.NAME:
        return contrast.metric(subject.model, pairs, regression=subject.task.regression)
    return name or metric_of(subject)


def _shuffled(rng: np.random.Generator, rows: int, width: int) -> Int[Tensor, "row pos"]:
    """Positions in another order in each row; BOS keeps its own."""
    found = np.tile(np.arange(width), (rows, 1))
    found[:, 1:] = rng.permuted(found[:, 1:], axis=1)
    return torch.from_numpy(found)


def run(
    subject: shipped.Subject,
    method: str,
    *,
    pairs: int = 200,
    threshold: float | None = None,
    tell: progress.Tell = progress.silent,
    **options: Any,
) -> Finding:
    """Runs a method and judges what it finds.

    Args:
        subject: The model.
        method: A circuit finder of `sonde.circuits`.
        pairs: How many pairs.
        threshold: Edges that score at least this make the circuit, for a method that only ranks.
        tell: Told what is being done, how much, and of how much.
        **options: Of the method; `metric` and `seed` too.

    Raises:
        RequestError: There is no such method, or it has no such option.
    """
    asked = _asked(subject, method, pairs=pairs, threshold=threshold, **options)
    seed = options.get("seed", 0)
    given = pairs_of(subject, n=pairs, seed=seed)
    metric = metric_named(subject, given, options.pop("metric", None))
    scores = registry.find(subject.model, given, metric=metric, method=method, tell=tell, **options)
    circuit = scores.kept if threshold is None else scores.circuit(threshold=threshold)
    judged: dict[str, Any] = {"subject": subject.name, "method": method, "metric": scores.metric, "pairs": pairs}
    judged |= {"seconds": scores.cost.seconds, "options": {name: str(value) for name, value in options.items()}}
    for level in ("node", "head", "edge"):
        judged[f"{level}_auroc"] = auroc(scores, subject, level)
    nodes = judging.of(subject)
    judged |= {"true_nodes": len(nodes.true), "left_out": list(nodes.left_out)}
    if scores.note:
        judged["note"] = scores.note
    if circuit is not None:
        judged |= {"edges": len(circuit), **evaluating.overlap(circuit, subject.truth)}
    judged |= {"usable": list(_usable(scores)), "asked": asked}
    return Finding(scores, circuit, judged, _usable(scores))


def _asked(subject: shipped.Subject, method: str, **how: Any) -> dict[str, str]:
    """What fixes a result: the question, the weights and the true circuit."""
    digest = hashlib.sha256("\n".join(subject.truth.names).encode())
    for name, value in subject.model.hf.state_dict().items():
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    told = {name: str(value) for name, value in how.items() if value is not None}
    return {"method": method, "model": digest.hexdigest()[:16], **told}


def auroc(
    scores: circuits_scores.Scores, subject: shipped.Subject, level: Literal["node", "head", "edge"]
) -> float | None:
    """Exact rank AUROC of nodes, of heads alone, or of edges, heads whole; what cannot be judged is left out.

    None where all that is left is true, or nothing is.
    """
    merged, left_out = scores.merged(), set(judging.of(subject).left_out)
    sources, destinations = (
        np.array([name in left_out for name in names]) for names in (merged.graph.sources, merged.graph.destinations)
    )
    if level == "edge":
        values = np.where(np.logical_or.outer(sources, destinations), np.nan, merged.edge_values())
    else:
        mlps = np.array([level == "head" and name[0] == "m" for name in merged.graph.sources])
        values = np.where(sources | mlps, np.nan, scores.node_values())
    own: rank.Level = "edge" if level == "edge" else "node"
    judged = dataclasses.replace(merged, level=own, values=values, kept=None)
    try:
        return rank.of_scores(judged, subject.truth.merged(), level=own, view="merged").auroc
    except errors.AnalysisError:
        return None


def _usable(scores: circuits_scores.Scores) -> tuple[float, float]:
    """The lowest score above nothing, and the highest."""
    values = scores.values[scores.values > 0]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
