"""What does a sweep say over many pairs? Which pairs count, and averages by the role of the token, with intervals.

    good = metrics.kept(found)
    table = metrics.by_role(good.sweep, [roles[index] for index in good.indices])

Programs differ in where things stand, so averages go by role (the root constant, the query, the final token), never by
absolute position. A role that covers several tokens is read at its LAST token: that is where a causal model first knows
the whole of it. Intervals are over pairs, each a cluster of its own unless told otherwise. Costs milliseconds per cell.
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sonde.analysis import stats
from sonde.analysis.tracing import grids
from sonde.core import errors

RATES = ("success", "changed")
METRICS = ("success", "recovery", "normalised_logit_difference", "changed")
Roles = Mapping[str, Sequence[int]]
WRONG_CLEAN = "clean input not answered right"
WRONG_COUNTERFACTUAL = "counterfactual input not answered right"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The pairs that count.

    Attributes:
        sweep: The sweep with only those.
        indices: Which of all pairs they are.
        dropped: How many others were left out, by reason; a pair that fails both ways counts as failing the first.
    """

    sweep: grids.Sweep
    indices: tuple[int, ...]
    dropped: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RoleTable:
    """A figure by role and layer (and head), over pairs.

    Attributes:
        metric: The figure.
        roles: Names of the first axis.
        layers: Of the second.
        heads: Of the third, if there is one.
        estimate: Mean over the pairs that have the role; nan if none has.
        low: Lower end of its 95 % interval; nan with fewer than two pairs.
        high: Upper end.
        n: How many pairs.
    """

    metric: str
    roles: tuple[str, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    estimate: Float[np.ndarray, "role layer *head"]
    low: Float[np.ndarray, "role layer *head"]
    high: Float[np.ndarray, "role layer *head"]
    n: Int[np.ndarray, "role layer *head"]

    def to_json(self) -> dict[str, Any]:
        """The table as JSON data; null where there is no figure."""
        arrays = {name: _plain(getattr(self, name)) for name in ("estimate", "low", "high", "n")}
        names = {"roles": list(self.roles), "layers": list(self.layers), "heads": list(self.heads)}
        return {"metric": self.metric, **names, **arrays}


def kept(sweep: grids.Sweep, *, control: bool = False) -> Counted:
    """Keeps the pairs that the model answers right both ways.

    Args:
        sweep: Any sweep of the pairs.
        control: The pairs change something that should not matter, so both inputs have the same right answer.
    """
    indices: list[int] = []
    dropped = {WRONG_CLEAN: 0, WRONG_COUNTERFACTUAL: 0}
    for index, (pair, grid) in enumerate(zip(sweep.pairs, sweep.grids, strict=True)):
        if grid.clean.top != pair.answer:
            dropped[WRONG_CLEAN] += 1
        elif grid.counterfactual.top != (pair.answer if control else pair.counterfactual_answer):
            dropped[WRONG_COUNTERFACTUAL] += 1
        else:
            indices.append(index)
    return Counted(sweep.select(indices), tuple(indices), {why: count for why, count in dropped.items() if count})


def by_role(
    sweep: grids.Sweep,
    roles: Sequence[Roles],
    metric: str = "success",
    *,
    clusters: Sequence[Hashable] | None = None,
) -> RoleTable:
    """Averages a figure over pairs, by role, layer and head.

    Args:
        sweep: The sweep.
        roles: For each pair the positions of each role. A role is read at its last token. Pairs without a role, without
            that position in their grid, or without the figure there (nan), do not count for it: `n` says how many do.
        metric: Which figure: one of `METRICS`.
        clusters: Pairs that belong together (variants of one program); each by itself if None.

    Raises:
        RequestError: Roles are not given for every pair, or the figure is unknown.
    """
    if metric not in METRICS:
        raise errors.RequestError(f"no figure {metric!r}{errors.suggest(metric, METRICS)}; known: {', '.join(METRICS)}")
    for what, given in (("roles", roles), ("clusters", clusters)):
        if given is not None and len(given) != len(sweep.pairs):
            raise errors.RequestError(f"{what} of {len(given)} pairs were given, and the sweep has {len(sweep.pairs)}")
    names = tuple(dict.fromkeys(name for one in roles for name in one))
    shape = (len(names), len(sweep.layers), *((len(sweep.heads),) if sweep.heads else ()))
    table = {name: np.full(shape, np.nan) for name in ("estimate", "low", "high")}
    count = np.zeros(shape, dtype=np.int64)
    code = np.arange(len(roles)) if clusters is None else _codes(clusters)
    figures = [getattr(grid, metric).astype(np.float64) for grid in sweep.grids]
    for row, name in enumerate(names):
        having = [index for index, one in enumerate(roles) if _column(one.get(name), sweep.grids[index]) is not None]
        if not having:
            continue
        columns = {index: _column(roles[index][name], sweep.grids[index]) for index in having}
        values = np.stack([figures[index][:, columns[index]] for index in having])
        for cell in np.ndindex(*shape[1:]):
            found = _estimate(values[:, *cell], code[having], rate=metric in RATES)
            count[row, *cell] = found.n
            for field, array in table.items():
                array[row, *cell] = found.value if field == "estimate" else getattr(found, field)
    return RoleTable(metric=metric, roles=names, layers=sweep.layers, heads=sweep.heads, n=count, **table)


def _estimate(values: Float[np.ndarray, "pair"], clusters: Int[np.ndarray, "pair"], *, rate: bool) -> stats.Estimate:
    known = np.isfinite(values)
    values, clusters = values[known], clusters[known]
    if len(np.unique(clusters)) >= 2:
        return stats.mean_interval(values, clusters, rate=rate)
    mean = float(values.mean()) if len(values) else np.nan
    return stats.Estimate(mean, np.nan, np.nan, len(values), len(np.unique(clusters)))


def _column(positions: Sequence[int] | None, grid: grids.Grid) -> int | None:
    """Where the last token of a role stands in a grid."""
    last = max(positions) if positions else None
    return grid.positions.index(last) if last in grid.positions else None


def _codes(clusters: Sequence[Hashable]) -> Int[np.ndarray, "pair"]:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(one, len(known)) for one in clusters])


def _plain(array: Any) -> Any:
    """Nested lists without nan, which JSON does not know."""
    if array.ndim:
        return [_plain(part) for part in array]
    return None if np.isnan(array) else array.item()
