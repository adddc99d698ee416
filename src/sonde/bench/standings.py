"""Who is first, how sure is that, and what does it cost? The statistics of a leaderboard.

    table = standings.of(board_rows.rows_of(results))
    table.methods[0].node.value, table.methods[0].node.low       # mean AUROC over models; 95 % interval over cases
    table.test("eap-ig", "eap", "node").p                        # paired by model, corrected for all comparisons

1. A method's figure is the mean over models of its AUROC. Its interval is a bootstrap (BCa) that draws whole cases: several seeds of one
   case are not independent.
2. Two methods are compared model by model: the mean difference, and the p-value of flipping the signs of whole cases. Holm's correction
   runs over all pairs of methods, for nodes and for edges apart.
3. The floor is the best of the rankings that look at nothing: `random` and the `priors`, at each level. What a method has above it is given with
   the same test, corrected for all methods.
4. Cost is the median over models: forward and backward passes over the pairs, and seconds.

Node figures are primary: training constrains nodes, not edges. Heads alone are told apart, because in a layer there is one MLP for several heads, so
that a ranking that looks at nothing does better than chance on nodes. `exact` methods are the ceiling.
Costs a second per ten methods.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sonde.analysis import stats
from sonde.bench import board_rows, priors

LEVELS = ("node", "head", "edge")
CEILING = {"node": "exact-node", "head": "exact-node", "edge": "exact"}
RANDOM = "random"
#: What looks at nothing of the model but its shape.
BLIND = (RANDOM, *priors.NAMES)
DRAWS = 2000
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """One method over all models.

    Attributes:
        method: Its name.
        metric: What it looked at, with the most models.
        node: Mean AUROC of heads and MLPs.
        head: Mean AUROC of heads alone.
        edge: Mean AUROC of edges.
        passes: Passes over the pairs; the median.
        seconds: The median.
        perfect: The share of models on which its node AUROC is 1.
        models: How many models.
    """

    method: str
    metric: str
    node: stats.Estimate
    head: stats.Estimate
    edge: stats.Estimate
    passes: float
    seconds: float
    perfect: float
    models: int


@dataclasses.dataclass(frozen=True, slots=True)
class Test:
    """Two methods on the same models.

    Attributes:
        first: A method.
        second: Another.
        level: Nodes or edges.
        difference: Mean of the first minus the second.
        p: Two-sided, corrected; None if there are too few cases.
        models: On how many models both ran.
    """

    first: str
    second: str
    level: str
    difference: stats.Estimate
    p: float | None
    models: int

    def turned(self) -> "Test":
        """The same with first and second exchanged."""
        one = self.difference
        other = dataclasses.replace(one, value=-one.value, low=-one.high, high=-one.low)
        return dataclasses.replace(self, first=self.second, second=self.first, difference=other)


@dataclasses.dataclass(frozen=True, slots=True)
class Standings:
    """All methods, the best first.

    Attributes:
        methods: By mean node AUROC.
        tests: Every pair of methods that look at the model, at all levels.
        margins: Every method against the floor.
        floors: The best ranking that looks at nothing, by level.
        cases: How many cases.
        models: How many models.
        true_nodes: How many nodes of circuits are judged.
        left_out: How many are not.
    """

    methods: tuple[Standing, ...]
    tests: tuple[Test, ...]
    margins: tuple[Test, ...]
    floors: Mapping[str, str]
    cases: int
    models: int
    true_nodes: int
    left_out: int

    def margin(self, method: str, level: str) -> Test | None:
        """What a method has above the floor; None for what looks at nothing."""
        return next((one for one in self.margins if (one.first, one.level) == (method, level)), None)

    def test(self, first: str, second: str, level: str) -> Test | None:
        """The comparison of two methods, in this order."""
        for one in self.tests:
            if one.level == level and {one.first, one.second} == {first, second}:
                return one if one.first == first else one.turned()
        return None

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return dataclasses.asdict(self)


def of(rows: Iterable[board_rows.Row]) -> Standings:
    """The standings of rows."""
    return _of(tuple(rows))


@functools.lru_cache(maxsize=2)
def _of(rows: tuple[board_rows.Row, ...]) -> Standings:
    by_method: dict[str, list[board_rows.Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    every = [row for many in by_method.values() for row in many]
    found = sorted((_standing(name, many) for name, many in by_method.items()), key=_place)
    looking = [one.method for one in found if one.method not in BLIND]
    floors = {level: best for level in LEVELS if (best := _floor(found, level)) is not None}
    models = {(row.case, row.seed): row for row in every}
    return Standings(
        methods=tuple(found),
        tests=tuple(
            test for level in LEVELS for test in _tests(by_method, list(itertools.combinations(looking, 2)), level)
        ),
        margins=tuple(
            test
            for level, best in floors.items()
            for test in _tests(by_method, [(one, best) for one in looking], level)
        ),
        floors=floors,
        cases=len({case for case, _ in models}),
        models=len(models),
        true_nodes=sum(row.true_nodes for row in models.values()),
        left_out=sum(row.left_out for row in models.values()),
    )


def _floor(found: Sequence[Standing], level: str) -> str | None:
    """The best of what looks at nothing."""
    known = {one.method: getattr(one, level).value for one in found if one.method in BLIND}
    known = {method: value for method, value in known.items() if not np.isnan(value)}
    return max(known, key=known.__getitem__) if known else None


def _place(one: Standing) -> tuple[float, float, float]:
    """The order: by nodes, then by edges, then by cost."""
    return -np.nan_to_num(one.node.value), -np.nan_to_num(one.edge.value), one.passes


def _standing(method: str, rows: Sequence[board_rows.Row]) -> Standing:
    metrics = [row.metric for row in rows]
    nodes = [row.node_auroc for row in rows if row.node_auroc is not None]
    return Standing(
        method=method,
        metric=max(sorted(set(metrics)), key=metrics.count),
        node=_mean(rows, "node"),
        head=_mean(rows, "head"),
        edge=_mean(rows, "edge"),
        passes=float(np.median([row.passes for row in rows])),
        seconds=float(np.median([row.seconds for row in rows])),
        perfect=float(np.mean([one > 1 - ROUNDING for one in nodes])) if nodes else float("nan"),
        models=len(rows),
    )


def _mean(rows: Sequence[board_rows.Row], level: str) -> stats.Estimate:
    """The mean over models, with its interval over cases; nan where there is none."""
    known = [(row.case, getattr(row, f"{level}_auroc")) for row in rows]
    known = [(case, value) for case, value in known if value is not None]
    values, cases = np.array([value for _, value in known]), np.array([case for case, _ in known])
    if len(set(cases.tolist())) < 2:
        value = float(values.mean()) if len(values) else float("nan")
        return stats.Estimate(value, float("nan"), float("nan"), len(values), len(set(cases.tolist())))
    return stats.bootstrap_interval(lambda chosen: float(values[chosen].mean()), cases, draws=DRAWS)


def _tests(by_method: dict[str, list[board_rows.Row]], pairs: Sequence[tuple[str, str]], level: str) -> list[Test]:
    """Pairs of methods, with p-values corrected for all of them."""
    tables = {name: _table(rows, level) for name, rows in by_method.items()}
    found = []
    for first, second in pairs:
        common = sorted(tables[first].keys() & tables[second].keys())
        cases = np.array([case for case, _ in common])
        if len(set(cases.tolist())) < 2:
            continue
        one, two = (np.array([tables[name][key] for key in common]) for name in (first, second))
        made = stats.paired(one, two, cases)
        found.append(Test(first, second, level, made.effect, made.p, len(common)))
    corrected = stats.holm([test.p for test in found if test.p is not None]).tolist()
    return [dataclasses.replace(test, p=p) for test, p in zip(found, corrected, strict=True)]


def _table(rows: Sequence[board_rows.Row], level: str) -> dict[tuple[str, int], float]:
    """AUROCs by case and seed."""
    found = {(row.case, row.seed): getattr(row, f"{level}_auroc") for row in rows}
    return {key: value for key, value in found.items() if value is not None}
