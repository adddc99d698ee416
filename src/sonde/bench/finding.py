"""How well does a method find a circuit that is known?

    found = finding.run(subject, "acdc", folder, tau=0.71)
    found.scores, found.circuit, found.judged           # AUROCs, and rates where the method gives a circuit

Pairs are the subject's inputs and others drawn independently, of the greatest length; for IOI the others have the names
swapped. Answers at all positions that count are read. The metric is the divergence from the model's own answers (`kl`), or the
squared error where answers are numbers (`mse`). Everything is written to a folder: scores.json, circuit.json, result.json.
Costs what the method costs.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sonde.bench import evaluating, ioi, shipped
from sonde.circuits import graph as circuits_graph
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import rank, registry
from sonde.circuits import scores as circuits_scores
from sonde.core import errors
from sonde.store import disk

FOLDER = Path("results") / "run"


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


def pairs_of(subject: shipped.Subject, *, n: int = 200, seed: int = 0) -> circuits_pairs.Pairs:
    """Pairs of inputs for circuit finders."""
    task, rng = subject.task, np.random.default_rng([4, seed])
    clean, corrupt = task.inputs.pair(rng, n, length=max(task.inputs.lengths))
    if task.last:
        corrupt = ioi.swapped_names(clean)
    read = torch.zeros_like(clean, dtype=torch.bool)
    read[:, task.counted] = True
    return circuits_pairs.Pairs.of_tensors(clean, corrupt, read=read)


def metric_of(subject: shipped.Subject) -> str:
    """What circuits are judged by, unless something else is asked for."""
    return "mse" if subject.task.regression else "kl"


def run(
    subject: shipped.Subject,
    method: str,
    folder: Path,
    *,
    pairs: int = 200,
    threshold: float | None = None,
    **options: Any,
) -> Finding:
    """Runs a method and judges what it finds.

    Args:
        subject: The model.
        method: A circuit finder of `sonde.circuits`.
        folder: Where the results go.
        pairs: How many pairs.
        threshold: Edges that score at least this make the circuit, for a method that only ranks.
        **options: Of the method; `metric` and `seed` too.

    Raises:
        RequestError: There is no such method, or it has no such option.
    """
    metric, seed = options.pop("metric", None) or metric_of(subject), options.get("seed", 0)
    given = pairs_of(subject, n=pairs, seed=seed)
    scores = registry.find(subject.model, given, metric=metric, method=method, **options)
    circuit = scores.kept if threshold is None else scores.circuit(threshold=threshold)
    judged: dict[str, Any] = {"subject": subject.name, "method": method, "metric": metric, "pairs": pairs}
    judged |= {"seconds": scores.cost.seconds, "options": {name: str(value) for name, value in options.items()}}
    for level in rank.LEVELS:
        judged[f"{level}_auroc"] = _auroc(scores, subject.truth, level)
    if circuit is not None:
        judged |= {"edges": len(circuit), **evaluating.overlap(circuit, subject.truth)}
    found = Finding(scores, circuit, judged, _usable(scores))
    _write(found, folder)
    return found


def _auroc(scores: circuits_scores.Scores, truth: circuits_graph.Circuit, level: Any) -> float | None:
    """None where the true circuit has all nodes or edges, so that there is nothing to tell apart."""
    try:
        return rank.of_scores(scores, truth, level=level, view="merged").auroc
    except errors.AnalysisError:
        return None


def _usable(scores: circuits_scores.Scores) -> tuple[float, float]:
    """The lowest score above nothing, and the highest."""
    values = scores.values[scores.values > 0]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _write(found: Finding, folder: Path) -> None:
    parts = {"scores": found.scores.to_json(), "result": found.judged}
    if found.circuit is not None:
        parts["circuit"] = found.circuit.to_json()
    with disk.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in parts.items():
            disk.write_atomic(folder / f"{name}.json", json.dumps(data).encode())
