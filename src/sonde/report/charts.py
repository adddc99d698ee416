"""What does a chart show? Charts as plain data: what is drawn, never how.

`drawing` makes a PNG of a chart, `hovering` makes it interactive in a page; both read the same fields and the same
words, so a figure in a paper and the one on the page cannot disagree. What is not finite is "no data" and is drawn as
such, never as zero. All texts are taken literally: no mark-up, no mathematics.

Costs nothing: arrays are copied once, and are read-only from then on.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sonde.core import errors

KEY = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One named row of values, with intervals if there are any.

    Attributes:
        name: What the legend says.
        values: One value per position; nan is no data.
        low: Lower ends of the intervals; no data where the value is none.
        high: Upper ends; given with `low` or not at all.
        notes: A line of hover text per position, or none.
    """

    name: str
    values: Float[np.ndarray, "point"]
    low: Float[np.ndarray, "point"] | None = None
    high: Float[np.ndarray, "point"] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Freezes the arrays and checks that they fit together."""
        _freeze(self, "values", "low", "high", axes=1)
        where = f"series {self.name!r}"
        if (self.low is None) != (self.high is None):
            raise refusal(f"{where} has one end of its intervals only; give both `low` and `high`, or neither")
        for name in ("low", "high"):
            ends = getattr(self, name)
            if ends is not None:
                _same_length(where, name, len(ends), len(self.values))
                object.__setattr__(self, name, np.where(np.isfinite(self.values), ends, np.nan))
        _same_length(where, "notes", len(self.notes) or len(self.values), len(self.values))


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """A level to compare with, such as chance: a dashed line across the chart, named in the legend."""

    name: str
    value: float


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Lines:
    """Named series over a common x, with bands.

    Attributes:
        key: File name of the PNG without its ending, and the chart's name in the page: lower case, digits, `-`, `_`.
        title: One line.
        x: Positions of the points, increasing.
        series: At least one, each as long as `x`.
        x_name: What is on the x axis, with its unit.
        y_name: What is on the y axis, with its unit.
        caption: n, what the band is, and whatever else a reader must know.
        references: Levels to compare with: chance, majority.
        log_x: Logarithmic x; what is not positive is no data there.
        log_y: The same for y.
        y_range: Ends of the y axis, if they should not follow the data.
        ordered: Colours go from dark to light, for series that have an order (steps, strengths).
    """

    key: str
    title: str
    x: Float[np.ndarray, "point"]
    series: tuple[Series, ...]
    x_name: str
    y_name: str
    caption: str = ""
    references: tuple[Reference, ...] = ()
    log_x: bool = False
    log_y: bool = False
    y_range: tuple[float, float] | None = None
    ordered: bool = False

    def __post_init__(self) -> None:
        """Freezes x and checks the series against it."""
        _freeze(self, "x", axes=1)
        _check_series(self.key, self.series, len(self.x))

    def to_json(self) -> dict[str, Any]:
        """Returns the chart as JSON data; what is not finite becomes null."""
        return _plain(self)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bars:
    """Conditions from top to bottom, each with a bar, or a point, and its interval; several series are grouped.

    Attributes:
        key: As in `Lines`.
        title: One line.
        labels: The conditions.
        series: At least one, with a value per condition.
        value_name: What the values are, with their unit.
        label_name: What the conditions are.
        caption: n, what the interval is.
        references: Levels to compare with.
        points: Points with intervals instead of bars: for values that zero means nothing to.
    """

    key: str
    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    value_name: str
    label_name: str = ""
    caption: str = ""
    references: tuple[Reference, ...] = ()
    points: bool = False

    def __post_init__(self) -> None:
        """Checks the series against the labels."""
        _check_series(self.key, self.series, len(self.labels))

    def to_json(self) -> dict[str, Any]:
        """Returns the chart as JSON data; what is not finite becomes null."""
        return _plain(self)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Heatmap:
    """A matrix as colours, row 0 on top.

    Attributes:
        key: As in `Lines`.
        title: One line.
        cells: The values; nan is no data.
        rows: A label per row.
        columns: A label per column.
        x_name: What the columns are.
        y_name: What the rows are.
        value_name: What the colours are, with their unit.
        caption: n, what was corrected for.
        marked: Cells that get a mark, such as the significant ones.
        mark_name: What the mark means; required with `marked`.
        centred: A diverging scale with zero in its middle.
        limits: Ends of the colour scale, if they should not follow the data.
        hover: A line of hover text per cell, row by row, or none.
    """

    key: str
    title: str
    cells: Float[np.ndarray, "row column"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    x_name: str
    y_name: str
    value_name: str
    caption: str = ""
    marked: Bool[np.ndarray, "row column"] | None = None
    mark_name: str = ""
    centred: bool = False
    limits: tuple[float, float] | None = None
    hover: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Freezes the cells and checks labels, marks and hover text against them."""
        _check_key(self.key)
        _freeze(self, "cells", axes=2)
        where, shape = f"chart {self.key!r}", self.cells.shape
        _same_length(where, "rows", len(self.rows), shape[0])
        _same_length(where, "columns", len(self.columns), shape[1])
        if self.marked is not None:
            marked = np.array(self.marked, dtype=bool)
            marked.setflags(write=False)
            object.__setattr__(self, "marked", marked)
            if marked.shape != shape:
                raise refusal(f"{where} marks cells of shape {marked.shape}, expected {shape}, the shape of `cells`")
            if not self.mark_name:
                raise refusal(f"{where} marks cells without saying what the mark means; give `mark_name`")
        if self.hover and (len(self.hover), *{len(row) for row in self.hover}) != shape:
            raise refusal(f"{where} has hover text of another shape than its cells, {shape}; give one text per cell")

    def to_json(self) -> dict[str, Any]:
        """Returns the chart as JSON data; what is not finite becomes null."""
        return _plain(self)


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Path2D:
    """Labelled points of a plane, joined in their order, dark to light: how something moved from step to step.

    Attributes:
        key: As in `Lines`.
        title: One line.
        points: x and y of each point; a point that is not finite is left out and the path broken there.
        labels: A label per point.
        x_name: The first axis, with the variance it explains.
        y_name: The second.
        caption: n, what was projected.
        notes: A line of hover text per point, or none.
    """

    key: str
    title: str
    points: Float[np.ndarray, "point 2"]
    labels: tuple[str, ...]
    x_name: str
    y_name: str
    caption: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Freezes the points and checks the labels against them."""
        _check_key(self.key)
        _freeze(self, "points", axes=2)
        where = f"chart {self.key!r}"
        if self.points.shape[1] != 2:
            raise refusal(f"{where} has points of shape {self.points.shape}, expected (points, 2)")
        _same_length(where, "labels", len(self.labels), len(self.points))
        _same_length(where, "notes", len(self.notes) or len(self.points), len(self.points))

    def to_json(self) -> dict[str, Any]:
        """Returns the chart as JSON data; what is not finite becomes null."""
        return _plain(self)


Chart = Lines | Bars | Heatmap | Path2D


def refusal(message: str) -> errors.SondeError:
    """The error for a chart or page that makes no sense."""
    return errors.AnalysisError(message)


def _freeze(chart: Any, *names: str, axes: int) -> None:
    """Replaces the named fields by read-only float copies of theirs."""
    for name in names:
        if (given := getattr(chart, name)) is None:
            continue
        array = np.array(given, dtype=np.float64)
        if array.ndim != axes:
            raise refusal(f"`{name}` of {type(chart).__name__} has shape {array.shape}, expected {axes} axes")
        array.setflags(write=False)
        object.__setattr__(chart, name, array)


def _check_key(key: str) -> None:
    if not KEY.fullmatch(key):
        raise refusal(f"{key!r} cannot be a chart's key, it names files: use lower case letters, digits, '-' and '_'")


def _check_series(key: str, series: Sequence[Series], length: int) -> None:
    _check_key(key)
    if not series:
        raise refusal(f"chart {key!r} has no series; give at least one, or leave the chart out")
    for one in series:
        _same_length(f"series {one.name!r} of chart {key!r}", "values", len(one.values), length)


def _same_length(where: str, what: str, got: int, expected: int) -> None:
    if got != expected:
        raise refusal(f"{where} has {got} {what}, expected {expected}: one for each point")


def _plain(value: Any) -> Any:
    """JSON data of a chart or of anything in it."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__.lower(), **fields} if hasattr(value, "key") else fields
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
