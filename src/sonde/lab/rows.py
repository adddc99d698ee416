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
#: What no mean of a measure can be below or above: its interval ends there.
NO_LESS, SHARE = (0.0, math.inf), (0.0, 1.0)
LIMITS = {
    "top-1 agreement": SHARE,
    "KL from intact (nats)": NO_LESS,
    "entropy (nats)": NO_LESS,
    "loss (nats per token)": NO_LESS,
    "answer loss (nats per token)": NO_LESS,
}
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
    """The rows of one measure; the first column is the baseline. Intervals respect `RATES` and `LIMITS`."""
    _, _, intact = columns[0]
    limits = LIMITS.get(measure)
    made = []
    for role, spec, values in columns:
        delta = None if role == "baseline" else change(values, intact, clusters)
        if delta is not None and limits == NO_LESS and not np.any(intact):  # no change can be below nothing at all
            delta = within(delta, NO_LESS)
        value = mean(values, clusters, rate=measure in RATES, limits=limits)
        made.append(Row(measure, role, spec, value, delta))
    return tuple(made)


def mean(
    values: Values,
    clusters: Shaped[np.ndarray, "item"],
    *,
    rate: bool = False,
    limits: tuple[float, float] | None = None,
) -> stats.Estimate:
    """The mean of what is finite, with its interval; that of a rate stays between 0 and 1, others within their limits."""
    good = np.isfinite(values)
    values, clusters = values[good], clusters[good]
    count = len(np.unique(clusters))
    if count < 2:
        return _without_interval(values, count)
    if rate:
        return stats.mean_interval(values, clusters)
    one = jackknife.of_mean(values, clusters)
    found = stats.estimate(dataclasses.replace(one, bounded=False, informative=count))
    return found if limits is None else within(found, limits)


def within(one: stats.Estimate, limits: tuple[float, float]) -> stats.Estimate:
    """An estimate whose interval ends at the limits of what is estimated."""
    return dataclasses.replace(one, low=max(one.low, limits[0]), high=min(one.high, limits[1]))


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
