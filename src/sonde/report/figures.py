"""How do I quickly look at an array? One function a picture; each returns a matplotlib figure, and saves it if asked.

These are short ways to `charts` and `drawing`, for notebooks and examples. Costs a few tenths of a second a picture.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde.core import errors
from sonde.report import charts, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def visualize_attention(
    pattern: Any,
    tokens: Sequence[str] | None = None,
    *,
    title: str = "attention pattern",
    path: str | Path | None = None,
) -> "Figure":
    """Draws one head's pattern, queries down, keys across.

    Args:
        pattern: `query key`, or with leading axes of length 1.
        tokens: Labels, one per key; the queries are the last of them.
        title: Title.
        path: Where to save a PNG.
    """
    cells = np.asarray(pattern, dtype=float)
    while cells.ndim > 2 and cells.shape[0] == 1:
        cells = cells[0]
    if cells.ndim != 2:
        raise errors.CaptureError(f"expected one head's pattern, (query, key), got shape {cells.shape}: choose a head")
    names = None if tokens is None else [repr(token)[1:-1] for token in tokens]
    queries = None if names is None else names[len(names) - len(cells) :]
    return heatmap(cells, x="key position", y="query position", title=title, labels=(names, queries), path=path)


def heatmap(
    cells: Any,
    *,
    x: str,
    y: str,
    title: str,
    labels: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
    path: str | Path | None = None,
) -> "Figure":
    """Draws a matrix; one with negative values gets a scale centred on zero, any other one that begins there.

    Args:
        cells: The matrix.
        x: What its columns are.
        y: What its rows are.
        title: Title.
        labels: Of columns and of rows; their numbers if left out.
        path: Where to save a PNG.
    """
    values = np.asarray(cells, dtype=float)
    finite = values[np.isfinite(values)]
    signed = bool(finite.size and finite.min() < 0)
    columns, rows = (
        tuple(map(str, range(length) if given is None else given))
        for given, length in zip(labels, values.shape[::-1], strict=True)
    )
    chart = charts.Heatmap(
        key="heatmap",
        title=title,
        cells=values,
        rows=rows,
        columns=columns,
        x_name=x,
        y_name=y,
        value_name="",
        centred=signed,
        limits=None if signed or not finite.any() else (0.0, float(finite.max())),
    )
    return _drawn(chart, path)


def lines(
    series: Mapping[str, Any], *, x: str, y: str, title: str, log: bool = False, path: str | Path | None = None
) -> "Figure":
    """Draws one line per name, from dark to light, over 0, 1, 2 …; `log` for a logarithmic scale."""
    given = {name: np.asarray(values, dtype=float) for name, values in series.items()}
    longest = max((len(values) for values in given.values()), default=0)
    rows = tuple(
        charts.Series(name, np.pad(values, (0, longest - len(values)), constant_values=np.nan))
        for name, values in given.items()
    )
    at = np.arange(longest, dtype=float)
    chart = charts.Lines(key="lines", title=title, x=at, series=rows, x_name=x, y_name=y, log_y=log, ordered=True)
    return _drawn(chart, path)


def _drawn(chart: charts.Chart, path: str | Path | None) -> "Figure":
    figure = drawing.figure(chart)
    if path is not None:
        drawing.save(figure, path)
    return figure
