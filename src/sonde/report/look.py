"""What do charts look like? The colours, marks and words that PNG and page share.

Series differ in colour, dash, marker and hatch at once, so they can be told apart in grey and by colour-blind people;
colours are dark enough for white paper and light enough for a dark screen. The sequential scale gets lighter all the
way; the diverging one is told apart at its ends by numbers in the cells where there is room for them.

Costs nothing.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from sonde.report import charts, wording

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#7f7f7f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x")
HATCHES = ("", "/", "x", ".", "-")
REFERENCE = "#808080"
REFERENCE_DASHES = ("dash", "dot", "dashdot", "longdash")
NO_DATA = "#b4b4b4"
SEQUENTIAL = ("#30104d", "#3b4a86", "#2a758e", "#22a184", "#6cc65a", "#f0e442")
DIVERGING = ("#053f77", "#3f86bd", "#a9cde3", "#f7f7f7", "#f6bd92", "#d6703f", "#7f1f0c")
MARK = "●"
MOST_NUMBERS = 64
MOST_TICKS = 24


def series_colours(count: int, *, ordered: bool) -> list[str]:
    """Returns a colour per series: distinct ones, or for ordered series from dark to light."""
    if not ordered:
        return [SERIES[index % len(SERIES)] for index in range(count)]
    return [shade(SEQUENTIAL, 0.28 + 0.54 * index / max(1, count - 1)) for index in range(count)]


def shade(scale: Sequence[str], place: float) -> str:
    """Returns the colour at a place between 0 and 1 of a scale."""
    stops = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in scale], dtype=float)
    at = np.linspace(0.0, 1.0, len(scale))
    red, green, blue = (round(float(np.interp(place, at, stops[:, part]))) for part in range(3))
    return f"#{red:02x}{green:02x}{blue:02x}"


def ink_on(colour: str) -> str:
    """Returns black or white, whichever can be read on a colour."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 135 else "#ffffff"


def on_axis(values: Float[np.ndarray, "point"], *, log: bool) -> Float[np.ndarray, "point"]:
    """Returns the values with nan for what the axis cannot show."""
    shown = np.isfinite(values) & ((values > 0) if log else True)
    return np.where(shown, values, np.nan)


def runs(present: Bool[np.ndarray, "point"]) -> list[slice]:
    """Returns the stretches without a gap."""
    found, start = [], 0
    for here, group in itertools.groupby(present.tolist()):
        stop = start + len(list(group))
        if here:
            found.append(slice(start, stop))
        start = stop
    return found


def ticks(labels: Sequence[str]) -> tuple[list[int], list[str]]:
    """Returns positions and texts of the labels that fit on an axis: all of them, or every second, or third."""
    stride = -(-len(labels) // MOST_TICKS) if labels else 1
    at = list(range(0, len(labels), stride))
    return at, [wording.one_line(labels[index], 28) for index in at]


def scale_of(chart: charts.Heatmap) -> tuple[tuple[str, ...], float, float]:
    """Returns the colours of a heatmap and the values at their ends."""
    finite = chart.cells[np.isfinite(chart.cells)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if chart.limits is not None:
        low, high = chart.limits
    elif chart.centred:
        high = max(abs(low), abs(high))
        low = -high
    if low == high:
        low, high = (-1.0, 1.0) if low == 0 and chart.centred else (low - 0.5, high + 0.5)
    return (DIVERGING if chart.centred else SEQUENTIAL), low, high


def cell_colour(chart: charts.Heatmap, row: int, column: int) -> str:
    """Returns the colour of one cell."""
    value = float(chart.cells[row, column])
    scale, low, high = scale_of(chart)
    return shade(scale, (value - low) / (high - low)) if np.isfinite(value) else NO_DATA


def cell_texts(chart: charts.Heatmap) -> list[list[str]]:
    """Returns what stands in each cell: its number if there are few cells, a mark if marked, a dash for no data.

    Empty if nothing stands in any.
    """
    numbers = chart.cells.size <= MOST_NUMBERS
    if not numbers and chart.marked is None and np.isfinite(chart.cells).all():
        return []
    marked = np.zeros(chart.cells.shape, dtype=bool) if chart.marked is None else chart.marked

    def text(value: float, mark: bool) -> str:
        if not np.isfinite(value):
            return "–"
        return f"{wording.shown(value) if numbers else ''} {MARK if mark else ''}".strip()

    return [
        [text(value, mark) for value, mark in zip(*pair, strict=True)]
        for pair in zip(chart.cells.tolist(), marked.tolist(), strict=True)
    ]


def caption(chart: charts.Chart) -> str:
    """Returns the caption, with what the marks of the chart mean."""
    parts = [chart.caption.strip()]
    if isinstance(chart, charts.Heatmap):
        parts.append(f"{MARK} {chart.mark_name}." if chart.marked is not None else "")
        parts.append("Grey cells with –: no data." if not np.isfinite(chart.cells).all() else "")
    elif isinstance(chart, charts.Lines | charts.Bars):
        gaps = any(not np.isfinite(one.values).all() for one in chart.series)
        parts.append("Gaps: no data." if gaps else "")
    return " ".join(part for part in parts if part)
