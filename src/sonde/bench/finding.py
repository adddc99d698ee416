"""How well does a method find a circuit that is known?

    found = finding.run(subject, "acdc", folder, tau=0.71)
    found.scores, found.circuit, found.judged           # AUROCs, and rates where the method gives a circuit

Pairs are the subject's inputs and others drawn independently, of the greatest length, and as far as there are any such that the
right answers differ; for IOI the others have the names swapped. If the program reads positions, those of the corrupt run can be shuffled as well (BOS keeps its own): an edge that carries
nothing but positions is the same in all inputs otherwise. Answers at all positions that count are read. The metric is the
divergence from the model's own answers (`kl`), or the squared error where answers are numbers (`mse`); `answer_diff` (see
`contrast`) has a slope at the clean run, which `eap` and `hisp` need.

Some nodes of programs never matter between inputs of one length: those that find out the length, or something about positions. Swapping
them changes no answer, and training, which swaps as well, teaches them to do nothing. So they are neither true nor false, and AUROCs
leave them out, with the edges at them (`idle`).

Everything is written to a folder: scores.json, circuit.json, result.json, the last when all is done. `known` says what is there of the
same question about the same weights, so that many models can be taken up where they were stopped. Costs what the method costs.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from sonde.bench import contrast, correspondence, evaluating, high, shipped, siit
from sonde.circuits import graph as circuits_graph
from sonde.circuits import metrics as circuits_metrics
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import rank, registry
from sonde.circuits import scores as circuits_scores
from sonde.core import errors
from sonde.store import disk

FOLDER = Path("results") / "run"
MORE, ROWS = 4, 200
Tell = Callable[[str, int, int], None]


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
    clean, corrupt = task.inputs.pair(rng, MORE * n, length=max(task.inputs.lengths))
    if task.corrupt is not None:
        corrupt = task.corrupt(clean)
    same = (_answers(task, clean) == _answers(task, corrupt)).all(dim=1)
    chosen = torch.sort(same.int(), stable=True).indices[:n]
    clean, corrupt = clean[chosen], corrupt[chosen]
    read = torch.zeros_like(clean, dtype=torch.bool)
    read[:, task.counted] = True
    positions = subject.positional and not subject.log if positions is None else positions
    places = _shuffled(rng, *clean.shape) if positions else None
    return circuits_pairs.Pairs.of_tensors(clean, corrupt, positions=places, read=read)


def idle(subject: shipped.Subject) -> tuple[str, ...]:
    """Nodes of the program whose swap between inputs of one length never matters: as training measured it, or on 200 pairs."""
    if (measured := subject.log.get("measured")) is not None:
        return tuple(name for name, share in measured["moved"].items() if share == 0)
    return _idle(subject.task)


@functools.lru_cache(maxsize=256)
def _idle(task: high.Task) -> tuple[str, ...]:
    names, found = correspondence.nodes_of(task.program.circuit), []
    base, other = task.inputs.pair(np.random.default_rng(5), ROWS, length=max(task.inputs.lengths))
    plain, least = _answers(task, base), siit.TOLERANCE if task.regression else 0
    for index, name in enumerate(names):
        mask = torch.zeros(1, ROWS, len(names), dtype=torch.bool)
        mask[..., index] = True
        swapped = task.program.answers(base, other, mask)[0, :, task.counted]
        if not bool(((swapped - plain).abs() > least).any()):
            found.append(name)
    return tuple(found)


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
    folder: Path,
    *,
    pairs: int = 200,
    threshold: float | None = None,
    tell: Tell = lambda doing, done, of: None,
    **options: Any,
) -> Finding:
    """Runs a method and judges what it finds.

    Args:
        subject: The model.
        method: A circuit finder of `sonde.circuits`.
        folder: Where the results go.
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
    for level in rank.LEVELS:
        judged[f"{level}_auroc"] = auroc(scores, subject, level)
    if scores.note:
        judged["note"] = scores.note
    if circuit is not None:
        judged |= {"edges": len(circuit), **evaluating.overlap(circuit, subject.truth)}
    judged |= {"usable": list(_usable(scores)), "asked": asked}
    found = Finding(scores, circuit, judged, _usable(scores))
    _write(found, folder)
    return found


def known(
    subject: shipped.Subject,
    method: str,
    folder: Path,
    *,
    pairs: int = 200,
    threshold: float | None = None,
    **options: Any,
) -> dict[str, Any] | None:
    """How an earlier `run` of the same question about the same model was judged; None if there is none."""
    try:
        found = json.loads((folder / "result.json").read_bytes())
    except (OSError, ValueError):
        return None
    asked = _asked(subject, method, pairs=pairs, threshold=threshold, **options)
    return found if isinstance(found, dict) and found.get("asked") == asked else None


def _asked(subject: shipped.Subject, method: str, **how: Any) -> dict[str, str]:
    """What fixes a result: the question, the weights and the true circuit."""
    digest = hashlib.sha256("\n".join(subject.truth.names).encode())
    for name, value in subject.model.hf.state_dict().items():
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    told = {name: str(value) for name, value in how.items() if value is not None}
    return {"method": method, "model": digest.hexdigest()[:16], **told}


def auroc(scores: circuits_scores.Scores, subject: shipped.Subject, level: rank.Level) -> float | None:
    """Exact rank AUROC of nodes or edges, heads whole and idle nodes left out; None where all that is left is true."""
    merged, places = scores.merged(), subject.log.get("places", {})
    quiet = {places.get(node, node) for node in idle(subject)}
    sources, destinations = (
        [name in quiet for name in names] for names in (merged.graph.sources, merged.graph.destinations)
    )
    if level == "node":
        values = np.where(sources, np.nan, scores.node_values())
    else:
        values = np.where(np.logical_or.outer(sources, destinations), np.nan, merged.edge_values())
    judged = dataclasses.replace(merged, level=level, values=values, kept=None)
    try:
        return rank.of_scores(judged, subject.truth.merged(), level=level, view="merged").auroc
    except errors.AnalysisError:
        return None


def _usable(scores: circuits_scores.Scores) -> tuple[float, float]:
    """The lowest score above nothing, and the highest."""
    values = scores.values[scores.values > 0]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _write(found: Finding, folder: Path) -> None:
    parts = {"scores": found.scores.to_json()}
    if found.circuit is not None:
        parts["circuit"] = found.circuit.to_json()
    parts["result"] = found.judged  # last: with it, all is there
    with disk.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in parts.items():
            disk.write_atomic(folder / f"{name}.json", json.dumps(data).encode())
