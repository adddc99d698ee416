"""How does a chart become a PNG?

No global state is touched: no pyplot, no backend is chosen, no style is set. The same chart gives the same bytes.
Costs a few tenths of a second a chart.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde.core import errors
from sonde.report import charts, look, wording
from sonde.store import disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
WIDTH = 7.2
REFERENCE = "reference"
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 2))}
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X"}


def save_png(chart: charts.Chart, path: str | Path) -> Path:
    """Draws a chart into a PNG file, making its folder if need be, and returns the path."""
    return save(figure(chart), path)


def save(drawn: "Figure", path: str | Path) -> Path:
    """Saves a figure as PNG, making its folder if need be, and returns the path."""
    target = Path(path)
    with disk.explained(target), warnings.catch_warnings():
        target.parent.mkdir(parents=True, exist_ok=True)
        warnings.filterwarnings("ignore", message="Glyph")  # a sign the font lacks is drawn as a box
        drawn.savefig(target, format="png")
    return target


def figure(chart: charts.Chart) -> "Figure":
    """Returns the chart as a matplotlib figure."""
    lines = textwrap.wrap(wording.one_line(look.caption(chart), 600), 105)
    drawn = _figure(_height(chart) + 0.17 * len(lines))
    axes = drawn.subplots()
    _draw(chart, axes)
    drawn.suptitle("\n".join(map(_literal, textwrap.wrap(wording.one_line(chart.title, 160), 72))), fontsize=11)
    if lines:
        drawn.supxlabel("\n".join(map(_literal, lines)), fontsize=8, color="#444444", ha="left", x=0.02)
    return drawn


def _draw(chart: charts.Chart, axes: "Axes") -> None:
    match chart:
        case charts.Lines():
            _lines(chart, axes)
        case charts.Bars():
            _bars(chart, axes)
        case charts.Heatmap():
            _heatmap(chart, axes)
        case charts.Path2D():
            _path(chart, axes)


def _lines(chart: charts.Lines, axes: "Axes") -> None:
    from matplotlib import ticker

    x = look.on_axis(chart.x, log=chart.log_x)
    colours = look.series_colours(len(chart.series), ordered=chart.ordered)
    for index, (series, colour) in enumerate(zip(chart.series, colours, strict=True)):
        if series.low is not None and series.high is not None:
            low, high = (look.on_axis(ends, log=chart.log_y) for ends in (series.low, series.high))
            axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
        style: dict[str, Any] = {"linestyle": "-" if chart.ordered else _dash(look.DASHES, index)}
        style |= {"marker": _marker(index), "markersize": 4, "linewidth": 1.7, "color": colour}
        axes.plot(x, look.on_axis(series.values, log=chart.log_y), label=_text(series.name), **style)
    for index, level in enumerate(chart.references):
        axes.axhline(level.value, label=_text(reference_name(level)), **_reference_style(index))
    axes.set_xscale("log" if chart.log_x else "linear")
    axes.set_yscale("log" if chart.log_y else "linear")
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
    if not chart.log_x and np.array_equal(x, np.round(x)):
        axes.xaxis.set_major_locator(ticker.MaxNLocator("auto", integer=True))
    _name(axes, chart.x_name, chart.y_name)
    axes.grid(alpha=0.25)
    _legend(axes)


def _bars(chart: charts.Bars, axes: "Axes") -> None:
    places = np.arange(len(chart.labels), dtype=float)
    count = len(chart.series)
    thick = 0.8 / count
    colours = look.series_colours(count, ordered=False)
    for index, (series, colour) in enumerate(zip(chart.series, colours, strict=True)):
        at = places + (index - (count - 1) / 2) * thick
        values = look.on_axis(series.values, log=False)
        label = _text(series.name)
        if chart.points:
            axes.plot(values, at, linestyle="", marker=_marker(index), markersize=6, color=colour, label=label)
        else:
            hatch = look.HATCHES[index % len(look.HATCHES)] * 2
            axes.barh(at, values, thick * 0.9, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=label)
        if series.low is not None and series.high is not None:
            line = colour if chart.points else "#333333"
            axes.hlines(at, series.low, series.high, color=line, linewidth=1.6)
            axes.plot(np.stack([series.low, series.high]), np.stack([at, at]), linestyle="", marker="|", color=line)
    for index, level in enumerate(chart.references):
        axes.axvline(level.value, label=_text(reference_name(level)), **_reference_style(index))
    axes.set_yticks(places, [_text(label, 36) for label in chart.labels])
    axes.set_ylim(len(chart.labels) - 0.5, -0.5)
    _name(axes, chart.value_name, chart.label_name)
    axes.grid(alpha=0.25, axis="x")
    axes.set_axisbelow(True)
    _legend(axes)


def _heatmap(chart: charts.Heatmap, axes: "Axes") -> None:
    from matplotlib import colors

    scale, low, high = look.scale_of(chart)
    colours = colors.LinearSegmentedColormap.from_list("sonde", scale).with_extremes(bad=look.NO_DATA)
    shown = np.ma.masked_invalid(chart.cells)
    image = axes.imshow(shown, aspect="auto", interpolation="nearest", cmap=colours, vmin=low, vmax=high)
    for row, texts in enumerate(look.cell_texts(chart)):
        for column, text in enumerate(texts):
            if text:
                ink = look.ink_on(look.cell_colour(chart, row, column))
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color=ink)
    at, names = look.ticks(chart.columns)
    axes.set_xticks(at, [_literal(name) for name in names], fontsize=8)
    if max(map(len, names), default=0) * len(names) > 80:
        axes.tick_params(axis="x", rotation=90 if len(names) > 8 else 15)
    at, names = look.ticks(chart.rows)
    axes.set_yticks(at, [_literal(name) for name in names], fontsize=8)
    _name(axes, chart.x_name, chart.y_name)
    drawn = axes.get_figure(root=True)
    assert drawn is not None
    drawn.colorbar(image, ax=axes, pad=0.02).set_label(_text(chart.value_name))


def _path(chart: charts.Path2D, axes: "Axes") -> None:
    colours = look.series_colours(len(chart.points), ordered=True)
    for index, ((x, y), (to_x, to_y)) in enumerate(zip(chart.points[:-1], chart.points[1:], strict=True)):
        axes.plot([x, to_x], [y, to_y], color=colours[index], linewidth=1.3)
    for (x, y), colour, label in zip(chart.points, colours, chart.labels, strict=True):
        if np.isfinite(x) and np.isfinite(y):
            axes.plot(x, y, marker="o", markersize=5, color=colour)
            axes.annotate(_text(label, 16), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    _name(axes, chart.x_name, chart.y_name)
    axes.grid(alpha=0.25)


def reference_name(level: charts.Reference) -> str:
    """Returns what the legend says of a reference level."""
    return f"{level.name} ({wording.shown(float(level.value))})"


def _height(chart: charts.Chart) -> float:
    match chart:
        case charts.Bars():
            return min(14.0, 1.5 + 0.16 * len(chart.labels) * (1 + len(chart.series)))
        case charts.Heatmap():
            return min(9.0, max(3.0, 1.6 + 0.27 * len(chart.rows)))
        case charts.Path2D():
            return 5.0
        case _:
            return 4.0


def _figure(height: float) -> "Figure":
    try:
        from matplotlib import figure as matplotlib_figure
    except ImportError as error:
        raise errors.MissingExtraError("matplotlib", extra="plot", feature="drawing figures") from error
    return matplotlib_figure.Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")


def _name(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(_text(x, 90))
    axes.set_ylabel(_text(y, 60))


def _legend(axes: "Axes") -> None:
    """A legend above the axes, where it covers nothing; references last, as on the page."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        levels = {id(line) for line in axes.get_lines() if line.get_gid() == REFERENCE}
        order = sorted(range(len(labels)), key=lambda at: id(handles[at]) in levels)
        entries = [handles[at] for at in order], [labels[at] for at in order]
        columns = max(1, min(4, 110 // (6 + max(map(len, labels)))))
        axes.legend(*entries, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, frameon=False, ncols=columns)


def _reference_style(index: int) -> dict[str, Any]:
    return {
        "color": look.REFERENCE,
        "linewidth": 1.3,
        "linestyle": _dash(look.REFERENCE_DASHES, index),
        "zorder": 1.5,
        "gid": REFERENCE,
    }


def _dash(names: Sequence[str], index: int) -> Any:
    return DASHES[names[index % len(names)]]


def _marker(index: int) -> str:
    return MARKERS[look.MARKERS[index % len(look.MARKERS)]]


def _text(text: str, limit: int = 40) -> str:
    return _literal(wording.one_line(text, limit))


def _literal(text: str) -> str:
    """The text as matplotlib must be given it, so that it reads no mathematics into it."""
    return text.replace("$", r"\$")
