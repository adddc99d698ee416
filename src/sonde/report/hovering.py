"""How does a chart become something to hover over in a page?

1. The chart becomes plotly's JSON: traces and a layout, written out here, so that plotly's Python side is not needed.
2. `to_html` puts it in a `div`, as data. It runs nothing by itself: the page's own script hands it to plotly.
3. Plotly reads tags and entities in every text it draws. All texts are escaped for it first, and then again for JSON,
   so that no tag can begin anywhere.

Costs nothing here; plotly's script is 5 MB, once a page.
"""

import html
import json
import textwrap
from typing import Any

import numpy as np
from jaxtyping import Float

from sonde.core import errors
from sonde.report import charts, drawing, look, wording

GRID = "rgba(128,128,128,0.25)"
CLEAR = "rgba(0,0,0,0)"
Figure = tuple[list[dict[str, Any]], dict[str, Any]]


def script() -> str:
    """Returns plotly's own script.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    try:
        from plotly import offline
    except ImportError as error:
        raise errors.MissingExtraError("plotly", extra="study", feature="writing a report") from error
    return offline.get_plotlyjs().replace("\r\n", "\n")


def to_html(chart: charts.Chart) -> str:
    """Returns a `div` with the chart in it as data, for the script of the page to draw; no text in it is mark-up."""
    drawn = plotly_figure(chart)
    data = json.dumps(drawn, allow_nan=False, sort_keys=True, separators=(",", ":"))
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    height = drawn["layout"]["height"]
    return (
        f'<div class="chart {type(chart).__name__.lower()}" id="chart-{chart.key}" style="min-height:{height}px">'
        f'<script type="application/json">{data}</script></div>'
    )


def plotly_figure(chart: charts.Chart) -> dict[str, Any]:
    """Returns the chart as plotly's JSON data: `data` and `layout`."""
    traces, layout = _figure(chart)
    common = {
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#333333"},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
        "hoverlabel": {"align": "left", "bgcolor": "#20242a", "bordercolor": "#20242a", "font": {"color": "#ffffff"}},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
    }
    return {"data": traces, "layout": common | layout}


def _figure(chart: charts.Chart) -> Figure:
    match chart:
        case charts.Lines():
            return _lines(chart)
        case charts.Bars():
            return _bars(chart)
        case charts.Heatmap():
            return _heatmap(chart)
        case charts.Path2D():
            return _path(chart)


def _lines(chart: charts.Lines) -> Figure:
    x = look.on_axis(chart.x, log=chart.log_x)
    traces: list[dict[str, Any]] = []
    colours = look.series_colours(len(chart.series), ordered=chart.ordered)
    for index, (series, colour) in enumerate(zip(chart.series, colours, strict=True)):
        if series.low is not None and series.high is not None:
            ends = [look.on_axis(values, log=chart.log_y) for values in (series.low, series.high)]
            traces.append(_band(x, ends[0], ends[1], colour) | {"legendgroup": str(index)})
        lines = [_hover_lines(series, at, f"{chart.x_name}: {_brief(chart.x[at])}") for at in range(len(x))]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _text(series.name),
                "legendgroup": str(index),
                "x": _numbers(x),
                "y": _numbers(look.on_axis(series.values, log=chart.log_y)),
                "line": {"color": colour, "width": 2, "dash": "solid" if chart.ordered else _dash(index)},
                "marker": {"size": 7, "symbol": _marker(index)},
                "hoverinfo": "text",
                "hovertext": [_hover(*line) for line in lines],
            }
        )
    y_axis = _axis(chart.y_name, log=chart.log_y)
    if chart.y_range is not None:
        y_axis["range"] = [float(np.log10(end)) if chart.log_y else end for end in chart.y_range]
    layout = {
        "height": 400,
        "xaxis": _axis(chart.x_name, log=chart.log_x),
        "yaxis": y_axis,
        "shapes": [_reference(level, index, "y") for index, level in enumerate(chart.references)],
        "showlegend": len(chart.series) + len(chart.references) > 1,
    }
    return traces, layout


def _bars(chart: charts.Bars) -> Figure:
    places, count = np.arange(len(chart.labels), dtype=float), len(chart.series)
    thick = 0.8 / count
    traces = []
    for index, series in enumerate(chart.series):
        lines = [_hover_lines(series, at, chart.labels[at]) for at in range(len(places))]
        trace: dict[str, Any] = {
            "name": _text(series.name),
            "x": _numbers(look.on_axis(series.values, log=False)),
            "y": _numbers(places + (index - (count - 1) / 2) * thick),
            "hoverinfo": "text",
            "hovertext": [_hover(*line) for line in lines],
        }
        traces.append(trace | _bar_style(chart, index, thick))
    names = [_text(label, 36) for label in chart.labels]
    y_axis = _axis(chart.label_name) | {"tickvals": list(range(len(names))), "ticktext": names}
    layout = {
        "height": 110 + 18 * len(chart.labels) * (1 + count),
        "xaxis": _axis(chart.value_name),
        "yaxis": y_axis | {"range": [len(chart.labels) - 0.5, -0.5], "showgrid": False, "zeroline": False},
        "shapes": [_reference(level, index, "x") for index, level in enumerate(chart.references)],
        "showlegend": count + len(chart.references) > 1,
    }
    return traces, layout


def _bar_style(chart: charts.Bars, index: int, thick: float) -> dict[str, Any]:
    """How one series of bars or points is drawn, with its intervals."""
    series, colour = chart.series[index], look.series_colours(index + 1, ordered=False)[index]
    style: dict[str, Any]
    if chart.points:
        style = {"type": "scatter", "mode": "markers"}
        style["marker"] = {"color": colour, "size": 9, "symbol": _marker(index)}
    else:
        hatch = {"shape": look.HATCHES[index % len(look.HATCHES)], "size": 6, "solidity": 0.2}
        style = {"type": "bar", "orientation": "h", "width": thick * 0.9}
        style["marker"] = {"color": colour, "pattern": hatch | {"bgcolor": colour, "fgcolor": "#ffffff"}}
    if series.low is not None and series.high is not None:
        style["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": _numbers(series.high - series.values),
            "arrayminus": _numbers(series.values - series.low),
            "color": colour if chart.points else look.REFERENCE,
            "thickness": 1.8,
            "width": 4,
        }
    return style


def _heatmap(chart: charts.Heatmap) -> Figure:
    scale, low, high = look.scale_of(chart)
    stops = np.linspace(0.0, 1.0, len(scale)).tolist()
    places = [[(row, column) for column in range(len(chart.columns))] for row in range(len(chart.rows))]
    same = {
        "type": "heatmap",
        "hoverinfo": "text",
        "hovertext": [[_cell_hover(chart, *place) for place in row] for row in places],
        "xgap": 1,
        "ygap": 1,
    }
    title = {"text": _text(chart.value_name), "side": "right", "font": {"size": 13}}
    values = same | {
        "z": [_numbers(row) for row in chart.cells],
        "zmin": low,
        "zmax": high,
        "colorscale": [[stop, colour] for stop, colour in zip(stops, scale, strict=True)],
        "colorbar": {"title": title, "thickness": 12, "outlinewidth": 0},
    }
    missing = ~np.isfinite(chart.cells)
    grey = same | {
        "z": [_numbers(row) for row in np.where(missing, 1.0, np.nan)],
        "showscale": False,
        "colorscale": [[0, look.NO_DATA], [1, look.NO_DATA]],
    }
    layout = {
        "height": 130 + max(160, 26 * len(chart.rows)),
        "xaxis": _label_axis(chart.x_name, chart.columns) | {"range": [-0.5, len(chart.columns) - 0.5]},
        "yaxis": _label_axis(chart.y_name, chart.rows) | {"range": [len(chart.rows) - 0.5, -0.5]},
        "showlegend": False,
    }
    return [values, *([grey] if missing.any() else []), *_cell_texts(chart)], layout


def _cell_texts(chart: charts.Heatmap) -> list[dict[str, Any]]:
    """What stands in the cells, as a trace of texts: each in the ink that can be read on its cell."""
    texts = [
        (row, column, text)
        for row, line in enumerate(look.cell_texts(chart))
        for column, text in enumerate(line)
        if text
    ]
    if not texts:
        return []
    inks = [look.ink_on(look.cell_colour(chart, row, column)) for row, column, _ in texts]
    return [
        {
            "type": "scatter",
            "mode": "text",
            "x": [column for _, column, _ in texts],
            "y": [row for row, _, _ in texts],
            "text": [text for _, _, text in texts],
            "textfont": {"size": 11, "color": inks},
            "hoverinfo": "skip",
        }
    ]


def _path(chart: charts.Path2D) -> Figure:
    colours = look.series_colours(len(chart.points), ordered=True)
    lines = [(label, chart.notes[at] if chart.notes else "") for at, label in enumerate(chart.labels)]
    where = [f"({wording.shown(x)}, {wording.shown(y)})" for x, y in chart.points.tolist()]
    path = {
        "type": "scatter",
        "mode": "lines+markers+text",
        "x": _numbers(chart.points[:, 0]),
        "y": _numbers(chart.points[:, 1]),
        "text": [_text(label, 16) for label in chart.labels],
        "textposition": "top center",
        "line": {"color": look.REFERENCE, "width": 1.5},
        "marker": {"size": 10, "color": colours},
        "hoverinfo": "text",
        "hovertext": [_hover(label, at, note) for (label, note), at in zip(lines, where, strict=True)],
    }
    layout = {"height": 460, "xaxis": _axis(chart.x_name), "yaxis": _axis(chart.y_name), "showlegend": False}
    return [path], layout


def _band(x: Float[np.ndarray, "point"], low: Any, high: Any, colour: str) -> dict[str, Any]:
    """The area between two curves: one closed shape per stretch without a gap."""
    across: list[float | None] = []
    up: list[float | None] = []
    for run in look.runs(np.isfinite(x + low + high)):
        across += [*x[run].tolist(), *x[run][::-1].tolist(), None]
        up += [*low[run].tolist(), *high[run][::-1].tolist(), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": across,
        "y": up,
        "fill": "toself",
        "fillcolor": f"rgba({','.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))},0.16)",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _reference(level: charts.Reference, index: int, axis: str) -> dict[str, Any]:
    other = "x" if axis == "y" else "y"
    dash = look.REFERENCE_DASHES[index % len(look.REFERENCE_DASHES)]
    ends = {f"{axis}0": level.value, f"{axis}1": level.value, f"{other}0": 0, f"{other}1": 1}
    return ends | {
        "type": "line",
        f"{other}ref": "paper",
        "line": {"color": look.REFERENCE, "width": 1.5, "dash": dash},
        "name": _text(drawing.reference_name(level)),
        "showlegend": True,
        "layer": "below",
    }


def _axis(name: str, *, log: bool = False) -> dict[str, Any]:
    title = {"text": _text(name, 60), "standoff": 10, "font": {"size": 13}}
    return {"title": title, "automargin": True, "gridcolor": GRID, "zerolinecolor": GRID} | (
        {"type": "log"} if log else {}
    )


def _label_axis(name: str, labels: tuple[str, ...]) -> dict[str, Any]:
    at, names = look.ticks(labels)
    shown = {"tickvals": at, "ticktext": [_escaped(name) for name in names]}
    return _axis(name) | shown | {"showgrid": False, "zeroline": False, "ticks": ""}


def _hover_lines(series: charts.Series, at: int, where: str) -> tuple[str, ...]:
    value = float(series.values[at])
    cell: wording.Cell = value
    if series.low is not None and series.high is not None:
        cell = wording.Interval(value, float(series.low[at]), float(series.high[at]))
    return (series.name, where, wording.shown(cell, 3), series.notes[at] if series.notes else "")


def _cell_hover(chart: charts.Heatmap, row: int, column: int) -> str:
    value = wording.shown(float(chart.cells[row, column]), 3)
    mark = chart.mark_name if chart.marked is not None and chart.marked[row, column] else ""
    where = (f"{chart.y_name}: {chart.rows[row]}", f"{chart.x_name}: {chart.columns[column]}")
    return _hover(*where, f"{chart.value_name}: {value}", mark, chart.hover[row][column] if chart.hover else "")


def _hover(*lines: str) -> str:
    """Lines of text as plotly's mark-up."""
    wrapped = [part for line in lines for part in textwrap.wrap(wording.one_line(line, 400), 60)]
    return "<br>".join(_escaped(part) for part in wrapped)


def _text(text: str, limit: int = 40) -> str:
    return _escaped(wording.one_line(text, limit))


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


def _numbers(values: Any) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in np.asarray(values, dtype=float).tolist()]


def _brief(value: Any) -> str:
    return f"{float(value):g}"


def _dash(index: int) -> str:
    return look.DASHES[index % len(look.DASHES)]


def _marker(index: int) -> str:
    return look.MARKERS[index % len(look.MARKERS)]
