"""How well does a method rank the edges of a circuit that is known? AUROC, exact and pessimistic, and the curve.

    found = rank.of_scores(scores, truth)                                 # edges, queries, keys and values apart
    found = rank.of_scores(scores, truth, level="node", view="merged")
    found.auroc, found.pessimistic, str(found)                            # says level and view
    found = rank.of_circuits([acdc_at_0_01, acdc_at_0_1], truth)          # a method that gives circuits, not scores

1. Every edge (or node) has the absolute value of its score and is in the true circuit or not.
2. `auroc` is exact: the chance that a true one scores above a false one, a tie counting one half.
3. `pessimistic` is the area under the staircase that, between two thresholds, goes right before it goes up: a tie counts
   nothing. Scores of which most are equal cannot look good there. A set of circuits has only this one, over those that no
   other beats.

Nodes are heads and MLPs, without `input`, which every circuit has. A node is true if a true edge leaves it, and its score
is the largest of the edges that leave it, so both views give the same number there. At level `edge` a method
that scores nodes gives each edge the score of its weaker end.
Costs one sort.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from sonde.circuits import exporting, graph, scores
from sonde.core import errors
from sonde.report import charts

Level = Literal["edge", "node"]
LEVELS = ("edge", "node")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """A ranking judged by a known circuit.

    Attributes:
        method: Who ranked.
        level: Whether edges or nodes were ranked.
        view: Whether queries, keys and values of a head were apart or merged.
        auroc: Exact rank AUROC; None for a set of circuits, which has no ranks.
        pessimistic: Area under the staircase.
        n_true: Edges or nodes of the true circuit.
        n_false: All others.
        false_rate: False positive rates of the curve, from 0 to 1.
        true_rate: True positive rates.
    """

    method: str
    level: Level
    view: exporting.View
    auroc: float | None
    pessimistic: float
    n_true: int
    n_false: int
    false_rate: Float[np.ndarray, "point"]
    true_rate: Float[np.ndarray, "point"]

    def __str__(self) -> str:
        """In words, with level and view."""
        exact = "" if self.auroc is None else f"AUROC {self.auroc:.3f}, "
        return (
            f"{self.method}: {exact}pessimistic {self.pessimistic:.3f} ({self.level} level, {self.view} view, "
            f"{self.n_true} true of {self.n_true + self.n_false})"
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        rates = {"false_rate": self.false_rate.tolist(), "true_rate": self.true_rate.tolist()}
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | rates


def of_scores(
    found: scores.Scores, truth: graph.Circuit, *, level: Level = "edge", view: exporting.View = "split"
) -> Ranked:
    """Judges scores by the circuit that is known to be true.

    Raises:
        RequestError: Level or view is unknown, or the graphs differ.
        AnalysisError: The true circuit has nothing in it, or everything.
    """
    _check(level, view, found.graph, truth.graph)
    if level == "node":
        values, true = np.abs(found.node_values()), _nodes(truth)
    else:
        values, true = found.edge_values(), truth.edges
        if view == "merged":
            values, true = found.graph.merge(values), truth.graph.merge(true)
    known = ~np.isnan(values) & _judged(truth.graph, level, view)
    values, true = values[known], true[known]
    _check_classes(true, level)
    false_rate, true_rate = _curve(values, true)
    return Ranked(
        method=found.method,
        level=level,
        view=view,
        auroc=_area(false_rate, (true_rate[1:] + true_rate[:-1]) / 2),
        pessimistic=_area(false_rate, true_rate[:-1]),
        n_true=int(true.sum()),
        n_false=int((~true).sum()),
        false_rate=false_rate,
        true_rate=true_rate,
    )


def of_circuits(
    found: Sequence[graph.Circuit],
    truth: graph.Circuit,
    *,
    level: Level = "edge",
    view: exporting.View = "split",
    method: str = "circuits",
) -> Ranked:
    """Judges a set of circuits, such as ACDC's at several thresholds, by the one that is known to be true.

    Raises:
        RequestError: There are none, level or view is unknown, or the graphs differ.
        AnalysisError: The true circuit has nothing in it, or everything.
    """
    if not found:
        raise errors.RequestError("no circuits to judge: give at least one")
    for one in found:
        _check(level, view, one.graph, truth.graph)
    judged = _judged(truth.graph, level, view)
    true = _flags(truth, level, view)[judged]
    _check_classes(true, level)
    flags = [_flags(one, level, view)[judged] for one in found]
    points = {(float((kept & ~true).sum() / (~true).sum()), float((kept & true).sum() / true.sum())) for kept in flags}
    false_rate, true_rate = _frontier(points)
    area = _area(false_rate, true_rate[:-1])
    sizes = int(true.sum()), int((~true).sum())
    return Ranked(method, level, view, None, area, *sizes, false_rate, true_rate)


def chart(found: Sequence[Ranked], *, key: str = "roc", title: str = "Edges of the known circuit") -> charts.Lines:
    """The curves of several methods in one figure: staircases over a common grid of false positive rates.

    Raises:
        AnalysisError: They are of different levels or views.
    """
    kinds = {(one.level, one.view) for one in found}
    if len(kinds) != 1:
        raise charts.refusal(f"one figure has one level and one view, got {sorted(kinds)}: draw them apart")
    (level, view), grid = kinds.pop(), np.linspace(0.0, 1.0, 201)
    series = []
    for one in found:
        at = np.searchsorted(one.false_rate, grid + 1e-12, side="right") - 1
        shown = one.pessimistic if one.auroc is None else one.auroc
        series.append(charts.Series(f"{one.method} ({shown:.3f})", one.true_rate[at]))
    return charts.Lines(
        key=key,
        title=title,
        x=grid,
        series=tuple(series),
        x_name="false positive rate",
        y_name="true positive rate",
        caption=f"{level} level, {view} view; {found[0].n_true} true of {found[0].n_true + found[0].n_false}. In brackets: exact "
        "rank AUROC, or the area under the staircase for a set of circuits. Staircases go right before they go up.",
        y_range=(-0.03, 1.03),
    )


def _check(level: str, view: str, mine: graph.Graph, other: graph.Graph) -> None:
    for what, word, known in (("level", level, LEVELS), ("view", view, exporting.VIEWS)):
        if word not in known:
            raise errors.RequestError(f"no {what} {word!r}; choose {' or '.join(known)}{errors.suggest(word, known)}")
    if mine != other:
        raise errors.RequestError("scores and true circuit belong to different graphs; take both from the same model")


def _check_classes(true: Bool[np.ndarray, "item"], level: str) -> None:
    if true.all() or not true.any():
        raise errors.AnalysisError(
            f"the true circuit has {int(true.sum())} of {len(true)} {level}s: ranking needs both true and false ones"
        )


def _judged(whole: graph.Graph, level: Level, view: exporting.View) -> Bool[np.ndarray, "..."]:
    """What is ranked: nodes but the input, or the edges there are."""
    if level == "node":
        return np.array([name != graph.INPUT for name in whole.sources])
    return (whole.merged() if view == "merged" else whole).allowed


def _flags(circuit: graph.Circuit, level: Level, view: exporting.View) -> Bool[np.ndarray, "..."]:
    if level == "node":
        return _nodes(circuit)
    return circuit.merged().edges if view == "merged" else circuit.edges


def _nodes(circuit: graph.Circuit) -> Bool[np.ndarray, "source"]:
    return np.asarray(circuit.edges.any(axis=1))


def _curve(
    values: Float[np.ndarray, "item"], true: Bool[np.ndarray, "item"]
) -> tuple[Float[np.ndarray, "point"], Float[np.ndarray, "point"]]:
    """False and true positive rates, a point for each different score."""
    order = np.argsort(-values, kind="stable")
    last = np.flatnonzero(np.append(values[order][1:] != values[order][:-1], True))
    hits, misses = np.cumsum(true[order])[last], np.cumsum(~true[order])[last]
    rates = [np.concatenate([[0.0], counts / counts[-1]]) for counts in (misses, hits)]
    return rates[0], rates[1]


def _frontier(points: set[tuple[float, float]]) -> tuple[Float[np.ndarray, "point"], Float[np.ndarray, "point"]]:
    """The points that no other beats, from (0, 0) to (1, 1)."""
    kept: list[tuple[float, float]] = []
    best = -math.inf
    for false_rate, true_rate in sorted(points | {(0.0, 0.0), (1.0, 1.0)}, key=lambda one: (one[0], -one[1])):
        if true_rate > best:
            kept.append((false_rate, true_rate))
            best = true_rate
    if kept[-1][0] < 1.0:
        kept.append((1.0, 1.0))
    if kept[0] != (0.0, 0.0):
        kept.insert(0, (0.0, 0.0))
    table = np.array(kept)
    return table[:, 0], table[:, 1]


def _area(false_rate: Float[np.ndarray, "point"], height: Float[np.ndarray, "step"]) -> float:
    return float((np.diff(false_rate) * height).sum())
