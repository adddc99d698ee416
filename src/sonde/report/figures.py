"""Figures from arrays: one function a picture, each returns a matplotlib Figure and saves it if asked.

No global state is touched: no pyplot, no backend is chosen. Colours are readable in grey and by colour-blind people.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde.core import errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 130


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
        tokens: Labels; drawn if there are at most 40.
        title: Title.
        path: Where to save a PNG.
    """
    cells = np.asarray(pattern, dtype=float)
    while cells.ndim > 2 and cells.shape[0] == 1:
        cells = cells[0]
    if cells.ndim != 2:
        raise errors.CaptureError(f"expected one head's pattern, (query, key), got shape {cells.shape}: choose a head")
    return heatmap(cells, x="key position", y="query position", title=title, labels=(tokens, tokens), path=path)


def heatmap(
    cells: Any,
    *,
    x: str,
    y: str,
    title: str,
    labels: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
    path: str | Path | None = None,
) -> "Figure":
    """Draws a matrix with a colour bar; a matrix with negative values gets a scale centred on zero."""
    values = np.asarray(cells, dtype=float)
    figure = _figure(width=6.4, height=min(8.0, max(3.2, 6.4 * values.shape[0] / max(1, values.shape[1]))))
    axes = figure.subplots()
    finite = values[np.isfinite(values)]
    bound = float(np.abs(finite).max()) if finite.size else 1.0
    signed = bool(finite.size and finite.min() < 0)
    scale: Any = {"cmap": "RdBu_r", "vmin": -bound, "vmax": bound} if signed else {"cmap": "viridis", "vmin": 0.0}
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **scale)
    for names, axis in ((labels[0], axes.xaxis), (labels[1], axes.yaxis)):
        if names is not None and len(names) <= 40:
            axis.set_ticks(range(len(names)), [_shown(name) for name in names], fontsize=7)
    if labels[0] is not None:
        axes.tick_params(axis="x", rotation=90)
    axes.set(xlabel=x, ylabel=y, title=title)
    figure.colorbar(image, ax=axes)
    return _saved(figure, path)


def lines(
    series: dict[str, Any], *, x: str, y: str, title: str, log: bool = False, path: str | Path | None = None
) -> "Figure":
    """Draws one line per name, from dark to light; `log` for a logarithmic scale."""
    figure = _figure(width=6.4, height=3.8)
    axes = figure.subplots()
    colours = _shades(len(series))
    for (name, values), colour in zip(series.items(), colours, strict=True):
        axes.plot(np.asarray(values, dtype=float), label=name, color=colour, linewidth=1.7, marker="o", markersize=2.5)
    if log:
        axes.set_yscale("log")
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.25)
    if len(series) > 1:
        axes.legend(fontsize=8, frameon=False)
    return _saved(figure, path)


def _shades(count: int) -> list[Any]:
    import matplotlib

    scale = matplotlib.colormaps["viridis"]
    return [scale(0.85 * index / max(1, count - 1)) for index in range(count)]


def _figure(*, width: float, height: float) -> "Figure":
    try:
        from matplotlib import figure
    except ImportError as error:
        raise errors.MissingExtraError("matplotlib", extra="plot", feature="drawing figures") from error
    return figure.Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _saved(figure: "Figure", path: str | Path | None) -> "Figure":
    if path is not None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target)
    return figure


def _shown(token: str) -> str:
    """A token's text with what would be invisible, or read as mathematics, made plain."""
    return repr(token)[1:-1].replace("$", r"\$")[:16]
