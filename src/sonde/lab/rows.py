"""How is a measurement written down? One schema for all: baseline, corrupted, control; value, change, n, interval.

    rows.of("loss", clusters, [("baseline", "none", intact), ("corrupted", "skip:11", changed), ("control", …)])

Values are per token or per example. Rows of one cluster (a text, an example) are not independent, and intervals respect
that (`analysis.stats`); changes are paired, item by item. With a single cluster there is no interval: its ends are nan.
What is not finite (a model driven to infinity) is left out of a mean and of its n. Costs milliseconds.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Shaped

from sonde.analysis import jackknife, stats

Role = Literal["baseline", "corrupted", "control"]
RATES = frozenset({"accuracy"})
#: Shares of tokens, whose intervals end at 0 and 1.
SHARES = frozenset({"top-1 agreement"})
Values = Float[np.ndarray, "item"]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One measured number.

    Attributes:
        measure: What was measured, with its unit.
        role: Of the intact model, of the corrupted one, or of a control.
        spec: What was done to the model.
        value: Its mean, interval, n and number of clusters.
        delta: Mean change against the intact model; None in the baseline's own row.
    """

    measure: str
    role: Role
    spec: str
    value: stats.Estimate
    delta: stats.Estimate | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as JSON data; what is unknown is null."""
        made = {**dataclasses.asdict(self), "n": self.value.n, "clusters": self.value.clusters}
        for name in ("value", "delta"):
            if made[name] is not None:
                made[name] = {key: finite(made[name][key]) for key in ("value", "low", "high")}
        return made


def of(
    measure: str, clusters: Shaped[np.ndarray, "item"], columns: Sequence[tuple[Role, str, Values]]
) -> tuple[Row, ...]:
    """The rows of one measure; the first column is the baseline. Measures in `RATES` are shares, between 0 and 1."""
    _, _, intact = columns[0]
    made = []
    for role, spec, values in columns:
        delta = None if role == "baseline" else change(values, intact, clusters)
        value = mean(values, clusters, rate=measure in RATES)
        if measure in SHARES:
            value = dataclasses.replace(value, low=max(value.low, 0.0), high=min(value.high, 1.0))
        made.append(Row(measure, role, spec, value, delta))
    return tuple(made)


def mean(values: Values, clusters: Shaped[np.ndarray, "item"], *, rate: bool = False) -> stats.Estimate:
    """The mean of what is finite, with its interval; that of a rate stays between 0 and 1."""
    good = np.isfinite(values)
    values, clusters = values[good], clusters[good]
    count = len(np.unique(clusters))
    if count < 2:
        return _without_interval(values, count)
    if rate:
        return stats.mean_interval(values, clusters)
    one = jackknife.of_mean(values, clusters)
    return stats.estimate(dataclasses.replace(one, bounded=False, informative=count))


def change(values: Values, intact: Values, clusters: Shaped[np.ndarray, "item"]) -> stats.Estimate:
    """The mean change of pairs, with its interval."""
    good = np.isfinite(values) & np.isfinite(intact)
    count = len(np.unique(clusters[good]))
    if count < 2:
        return _without_interval((values - intact)[good], count)
    return stats.paired(values[good], intact[good], clusters[good]).effect


def finite(value: float) -> float | None:
    """A number for JSON: None for what is none."""
    return value if math.isfinite(value) else None


def _without_interval(values: Values, clusters: int) -> stats.Estimate:
    value = float(values.mean()) if len(values) else math.nan
    return stats.Estimate(value, math.nan, math.nan, len(values), clusters)
