"""Who is first, how sure is that, and what does it cost? The statistics of a leaderboard.

    table = standings.of(found.rows)
    table.methods[0].node.value, table.methods[0].node.low       # mean AUROC over models; 95 % interval over cases
    table.test("eap-ig", "eap", "node").p                        # paired by model, corrected for all comparisons

1. A method's figure is the mean over models of its AUROC. Its interval is a bootstrap (BCa) that draws whole cases: several seeds of one
   case are not independent.
2. Two methods are compared model by model: the mean difference, and the p-value of flipping the signs of whole cases. Holm's correction
   runs over all pairs of methods, for nodes and for edges apart.
3. Cost is the median over models: forward and backward passes over the pairs, and seconds.

Node figures are primary: training constrains nodes, not edges. `exact` methods are the ceiling, `random` is the floor.
Costs a second per ten methods.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sonde.analysis import stats
from sonde.bench import board_rows

LEVELS = ("node", "edge")
CEILING = {"node": "exact-node", "edge": "exact"}
FLOOR = "random"
DRAWS = 2000
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """One method over all models.

    Attributes:
        method: Its name.
        metric: What it looked at, with the most models.
        node: Mean AUROC of heads and MLPs.
        edge: Mean AUROC of edges.
        passes: Passes over the pairs; the median.
        seconds: The median.
        perfect: The share of models on which its node AUROC is 1.
        models: How many models.
    """

    method: str
    metric: str
    node: stats.Estimate
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
        tests: Every pair of methods, at both levels.
        cases: How many cases.
        models: How many models.
    """

    methods: tuple[Standing, ...]
    tests: tuple[Test, ...]
    cases: int
    models: int

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
    by_method: dict[str, list[board_rows.Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    every = [row for many in by_method.values() for row in many]
    found = sorted((_standing(name, many) for name, many in by_method.items()), key=_place)
    tests = [test for level in LEVELS for test in _tests(by_method, [one.method for one in found], level)]
    models = {(row.case, row.seed) for row in every}
    return Standings(tuple(found), tuple(tests), len({case for case, _ in models}), len(models))


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


def _tests(by_method: dict[str, list[board_rows.Row]], order: Sequence[str], level: str) -> list[Test]:
    """All pairs, with corrected p-values."""
    tables = {name: _table(rows, level) for name, rows in by_method.items()}
    found = []
    for first, second in itertools.combinations(order, 2):
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
