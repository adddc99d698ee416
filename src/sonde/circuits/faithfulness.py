"""How much of a behaviour does a circuit carry when it runs alone? f, CPR, CMD, minimality, completeness.

    judge = faithfulness.Judge(running.Runner(model, other_pairs, metric))
    judge.f(circuit)                       # 1: as the whole model, 0: as the model with every edge cut
    curve = judge.curve(scores)            # f of the best 0.1 %, 0.2 %, …, 100 % of the edges
    curve.cpr, curve.cmd, curve.chart()

Running alone: the circuit's edges carry clean values, all others what the ablation puts there. With m the metric's mean over
pairs, N the whole model and ∅ no edge at all (MIB, arXiv 2504.13151):

1. f(C) = (m(C) - m(∅)) / (m(N) - m(∅)), a ratio of means over pairs; it may lie below 0 or above 1.
2. CPR, integrated performance: the area under f over the share of edges, by trapezoids between the sizes measured. Higher is
   better, and a circuit that does better than the model adds to it.
3. CMD, integrated distance: the area of |1 - f|. Lower is better. Both begin at the smallest size, so that f = 1 everywhere has
   CPR 0.999 with MIB's sizes.
4. Minimality: how much f falls when one edge leaves the circuit. Completeness (Wang et al., arXiv 2211.00593): with edges K
   taken out of both, how far f(C without K) is from f(N without K); and what is left of N without all of C.

Intervals resample clusters of pairs (templates): whole model, no edge and circuit on the same pairs. Pairs of one cluster have
no interval. Judge on other pairs than those that gave the scores, or f is too high. An edge from a source that no clean edge reaches counts for
the size and carries nothing. Costs a forward pass over all pairs for each circuit, two for the ends.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from sonde.analysis import stats
from sonde.circuits import graph, running, scores
from sonde.core import errors, progress
from sonde.report import charts

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
DRAWS = 2000
FEWEST = 6  # pairs; with five, flipping all signs alike happens by chance one time in sixteen
Whole = Callable[[float], int]
#: How a part of all edges becomes a number of edges.
ROUNDED: dict[str, Whole] = {"round": round, "floor": int}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """What f is measured between, pair by pair.

    Attributes:
        whole: The metric of the whole model.
        empty: The metric with every edge cut.
        clusters: Which pairs belong together.
    """

    whole: Float[np.ndarray, "pair"]
    empty: Float[np.ndarray, "pair"]
    clusters: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuses ends between which nothing can be measured."""
        if abs(self.whole.mean() - self.empty.mean()) <= 1e-7 * (1 + abs(self.whole.mean())):
            raise errors.AnalysisError(
                f"the whole model and the model with every edge cut have the same metric ({self.whole.mean():.4g}) on these "
                f"{len(self.whole)} pairs: there is nothing to be faithful to; change the pairs, the metric or the ablation"
            )

    @property
    def enough(self) -> bool:
        """Whether there are pairs enough for any test to tell a difference from chance."""
        return len(self.whole) >= FEWEST

    @property
    def apart(self) -> bool:
        """Whether the two differ by more than chance, over clusters of pairs; if not, f is a ratio of noise."""
        if len(set(self.clusters)) < 2:
            return True
        found = stats.paired(self.whole, self.empty, np.array(self.clusters)).effect
        return not found.low <= 0 <= found.high

    def f(self, values: Float[np.ndarray, "*size pair"]) -> Float[np.ndarray, "*size"]:
        """Faithfulness from the metric of each pair."""
        return np.asarray((values.mean(axis=-1) - self.empty.mean()) / (self.whole.mean() - self.empty.mean()))

    def estimate(
        self,
        values: Float[np.ndarray, "*size pair"],
        of: Callable[[Float[np.ndarray, "*size"]], float] = float,
    ) -> stats.Estimate:
        """A number made of one or several f, with its interval over clusters of pairs.

        Args:
            values: The metric of each pair, for each size.
            of: Makes the number; as it is if left out.
        """
        clusters, shape = np.array(self.clusters), values.shape[:-1]
        table = np.vstack([values.reshape(-1, len(clusters)), self.whole, self.empty])
        if len(set(self.clusters)) < 2:
            value = float(of(_ratio(table.mean(axis=1), shape)))
            return stats.Estimate(value, float("nan"), float("nan"), len(clusters), 1, 0.95)
        return stats.bootstrap_interval(
            lambda rows: float(of(_ratio(table[:, rows].mean(axis=1), shape))), clusters, draws=DRAWS
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Faithfulness of a method's best edges, from few to all.

    Attributes:
        method: Who ranked them.
        shares: Parts of all edges, rising.
        n_edges: How many that is.
        values: The metric of each pair, at each size.
        ends: The whole model and no edge.
    """

    method: str
    shares: tuple[float, ...]
    n_edges: tuple[int, ...]
    values: Float[np.ndarray, "size pair"]
    ends: Ends

    @property
    def f(self) -> tuple[stats.Estimate, ...]:
        """Faithfulness at each size."""
        return _points(self)

    @property
    def cpr(self) -> stats.Estimate:
        """The area under f."""
        return _areas(self)[0]

    @property
    def cmd(self) -> stats.Estimate:
        """The area of the distance of f from 1."""
        return _areas(self)[1]

    def cpr_above(self, other: "Curve") -> stats.Estimate:
        """How much higher CPR is than another method's on the same pairs, such as a random ranking's.

        Raises:
            AnalysisError: The two were measured on other pairs or at other sizes.
        """
        if self.shares != other.shares or not np.array_equal(self.ends.whole, other.ends.whole):
            raise errors.AnalysisError(
                f"{self.method} and {other.method} were judged on different pairs or sizes, and cannot be subtracted"
            )
        both = np.stack([self.values, other.values])
        return self.ends.estimate(both, lambda f: self.area(f[0]) - self.area(f[1]))

    def to_json(self) -> dict[str, Any]:
        """The curve as JSON data, with intervals."""
        points = [
            {"share": share, "n_edges": count, "f": _told(one)}
            for share, count, one in zip(self.shares, self.n_edges, self.f, strict=True)
        ]
        return {"method": self.method, "points": points, "cpr": _told(self.cpr), "cmd": _told(self.cmd)}

    def area(self, heights: Float[np.ndarray, "size"]) -> float:
        """The area under a height at each size, by trapezoids."""
        return float(np.trapezoid(heights, np.array(self.shares)))


@dataclasses.dataclass(frozen=True, slots=True)
class Minimality:
    """What each edge of a circuit is there for.

    Attributes:
        f: Faithfulness of the circuit.
        falls: How much f falls without an edge, by its name, the most needed first. Negative: it rises.
        n_edges: Edges of the circuit; more than `falls` has, if only some were tried.
    """

    f: float
    falls: dict[str, float]
    n_edges: int

    def idle(self, *, below: float = 0.001) -> float:
        """The share of tried edges whose loss changes f by less than this."""
        return float(np.mean([abs(fall) < below for fall in self.falls.values()])) if self.falls else float("nan")


@dataclasses.dataclass(frozen=True, slots=True)
class Completeness:
    """Whether a circuit and the model lose alike.

    Attributes:
        without: f of the model with the whole circuit cut: near 0 if nothing else does the same.
        circuit: f of the circuit without each random part of it.
        model: f of the model without the same parts.
    """

    without: float
    circuit: tuple[float, ...]
    model: tuple[float, ...]

    @property
    def gaps(self) -> tuple[float, ...]:
        """How far the two are apart, part by part."""
        return tuple(abs(one - two) for one, two in zip(self.circuit, self.model, strict=True))


class Judge:
    """Runs circuits alone, on one set of pairs."""

    def __init__(self, runner: running.Runner, *, ends: Ends | None = None, count: Whole = round) -> None:
        """Measures the ends, unless they are known already.

        Args:
            runner: Holds model, pairs, metric and ablation.
            ends: What an earlier judge of the same measured.
            count: Makes a number of edges of a part of all: one of `ROUNDED`.
        """
        self.runner, self.count = runner, count
        if ends is None:
            whole, empty = (self.values(make(runner.graph)) for make in (graph.Circuit.full, graph.Circuit.empty))
            ends = Ends(whole, empty, tuple(runner.pairs.clusters))
        self.ends = ends

    def values(self, circuit: graph.Circuit) -> Float[np.ndarray, "pair"]:
        """The metric of each pair, with the circuit alone."""
        import torch

        if circuit.graph != self.runner.graph:
            raise errors.RequestError("the circuit belongs to another graph than the model that should run it")
        with torch.no_grad():
            found = self.runner.metric_of(circuit)
        return found.double().cpu().numpy()

    def f(self, circuit: graph.Circuit) -> stats.Estimate:
        """Faithfulness of a circuit, with its interval."""
        return self.ends.estimate(self.values(circuit))

    def curve(
        self,
        found: scores.Scores,
        *,
        shares: Sequence[float] = SIZES,
        absolute: bool = True,
        known: Mapping[int, Float[np.ndarray, "pair"]] | None = None,
        tell: progress.Tell = progress.silent,
    ) -> Curve:
        """Faithfulness of the best edges, at each size.

        Args:
            found: What a method scored, best on other pairs.
            shares: Parts of all edges.
            absolute: Whether a large negative score counts as much as a positive one.
            known: Sizes that are measured already, by number of edges.
            tell: Called with how far it is.
        """
        sizes = tuple(sorted(set(shares)))
        if not sizes or not 0 <= sizes[0] <= sizes[-1] <= 1:
            raise errors.RequestError(f"sizes are parts of all edges, 0 to 1; got {list(shares)}")
        counts = tuple(self.count(share * found.graph.n_edges) for share in sizes)
        have = {0: self.ends.empty, found.graph.n_edges: self.ends.whole, **(known or {})}
        for done, count in enumerate(counts):
            if count not in have:
                have[count] = self.values(found.circuit(n_edges=count, absolute=absolute))
            tell(f"faithfulness {found.method}", done + 1, len(counts))
        return Curve(found.method, sizes, counts, np.stack([have[count] for count in counts]), self.ends)

    def minimality(
        self, circuit: graph.Circuit, *, most: int | None = None, seed: int = 0, tell: progress.Tell = progress.silent
    ) -> Minimality:
        """Takes each edge out of the circuit by itself; `most` of them, drawn by `seed`, if there are more."""
        places = np.argwhere(circuit.edges)
        if most is not None and len(places) > most:
            places = np.sort(np.random.default_rng(seed).permutation(len(places))[:most])
            places = np.argwhere(circuit.edges)[places]
        whole = float(self.ends.f(self.values(circuit)))
        falls: dict[str, float] = {}
        for done, (source, destination) in enumerate(places):
            edges = circuit.edges.copy()
            edges[source, destination] = False
            name = f"{circuit.graph.sources[source]}->{circuit.graph.destinations[destination]}"
            falls[name] = whole - float(self.ends.f(self.values(graph.Circuit(circuit.graph, edges))))
            tell("minimality", done + 1, len(places))
        return Minimality(whole, dict(sorted(falls.items(), key=lambda one: -one[1])), len(circuit))

    def completeness(
        self, circuit: graph.Circuit, *, parts: int = 10, seed: int = 0, tell: progress.Tell = progress.silent
    ) -> Completeness:
        """Takes random halves of the circuit out of it, and out of the whole model."""
        rng, whole = np.random.default_rng(seed), circuit.graph.allowed
        found: list[tuple[float, float]] = []
        for done in range(parts):
            gone = circuit.edges & (rng.random(whole.shape) < 0.5)
            both = [
                self.ends.f(self.values(graph.Circuit(circuit.graph, kept & ~gone))) for kept in (circuit.edges, whole)
            ]
            found.append((float(both[0]), float(both[1])))
            tell("completeness", done + 1, parts)
        without = float(self.ends.f(self.values(graph.Circuit(circuit.graph, whole & ~circuit.edges))))
        return Completeness(without, tuple(one for one, _ in found), tuple(two for _, two in found))


def chart(curves: Sequence[Curve], *, key: str = "faithfulness", title: str = "Faithfulness") -> charts.Lines:
    """Curves of several methods in one figure, with bands."""
    series, ends = [], curves[0].ends
    for one in curves:
        low, high = ([getattr(point, end) for point in one.f] for end in ("low", "high"))
        middle = np.array([point.value for point in one.f])
        notes = tuple(f"{count:,} edges" for count in one.n_edges)
        series.append(charts.Series(one.method, middle, np.array(low), np.array(high), notes))
    count = len(set(ends.clusters))
    band = f"bands: 95 % intervals over {count} clusters" if count > 1 else "one cluster, so no intervals"
    return charts.Lines(
        key=key,
        title=title,
        x=100 * np.array(curves[0].shares),
        series=tuple(series),
        x_name="edges kept, % of all",
        y_name="faithfulness f",
        caption=f"{len(ends.whole)} pairs; {band}. f: 1 as the whole model, 0 as the model with every edge cut.",
        references=(charts.Reference("whole model", 1.0), charts.Reference("no edge", 0.0)),
        log_x=True,
    )


@functools.lru_cache(maxsize=64)
def _points(curve: Curve) -> tuple[stats.Estimate, ...]:
    """Faithfulness at each size; equal sizes are resampled once."""
    known = {count: curve.ends.estimate(row) for count, row in zip(curve.n_edges, curve.values, strict=True)}
    return tuple(known[count] for count in curve.n_edges)


@functools.lru_cache(maxsize=64)
def _areas(curve: Curve) -> tuple[stats.Estimate, stats.Estimate]:
    """CPR and CMD."""
    distance = curve.ends.estimate(curve.values, lambda f: curve.area(np.abs(1 - f)))
    return curve.ends.estimate(curve.values, curve.area), distance


def _ratio(means: np.ndarray, shape: tuple[int, ...]) -> Any:
    """Faithfulness from means over pairs: of the circuits, then of the whole model, then of no edge."""
    return ((means[:-2] - means[-1]) / (means[-2] - means[-1])).reshape(shape)


def _told(one: stats.Estimate) -> dict[str, Any]:
    """An estimate as JSON data; null where there is no interval."""
    return {name: None if math.isnan(value) else value for name, value in one.to_json().items()}
