"""A report with one chart of each kind, whose texts are as hostile as a model's output can be."""

import numpy as np
import pytest

from sonde.report import charts, page, wording

EVIL = (
    "</script><img src=x onerror=hacked()> <b>b</b><a href='https://evil.example'>x</a> $x$ %{y} &lt;\u202e\x00\ud800"
)


def chart_of_each_kind(text="plain"):
    up = np.array([0.5, np.nan, 0.7])
    band = charts.Series(text, up, up - 0.1, up + 0.1, notes=(text, text, text))
    cells = np.array([[0.1, -0.4, np.nan], [0.0, 0.2, 0.3]])
    level = (charts.Reference(text, 0.5),)
    names = {"title": text, "caption": text}
    return (
        charts.Lines(
            key="lines", x=np.arange(3.0), series=(band,), x_name=text, y_name=text, references=level, **names
        ),
        charts.Bars(key="bars", labels=(text,) * 3, series=(band, band), value_name=text, references=level, **names),
        charts.Bars(key="points", labels=(text,) * 3, series=(band,), value_name=text, points=True, **names),
        charts.Heatmap(
            key="heatmap",
            cells=cells,
            rows=(text, text),
            columns=(text,) * 3,
            x_name=text,
            y_name=text,
            value_name=text,
            marked=cells > 0.15,
            mark_name=text,
            centred=True,
            hover=((text,) * 3,) * 2,
            **names,
        ),
        charts.Path2D(
            key="path", points=np.arange(6.0).reshape(3, 2), labels=(text,) * 3, x_name=text, y_name=text, **names
        ),
    )


def report_of(text="plain"):
    number = wording.Interval(0.71, 0.65, 0.77)
    rows = tuple((f"{text} {index}", index, number, None) for index in (2, 10, 1))
    table = page.Table((text, "n", "rate", "p"), rows, caption=text)
    turns = (page.Turn(0, text, text, "invalid"), page.Turn(1, text, text, "valid"))
    examples = page.Examples(text, (page.Transcript(text, turns), page.Transcript(text, turns[:1])), caption=text)
    section = page.Section(text, f"{text}\n\nsecond", chart_of_each_kind(text), (table,), (examples,))
    settings = {text: text, "seed": 3, "layers": [1, 2]}
    return page.Report(text, (text, text), (section,), settings, {"sonde": text}, f"sonde study {text}")


@pytest.fixture
def evil():
    return EVIL


@pytest.fixture
def make_charts():
    return chart_of_each_kind


@pytest.fixture
def make_report():
    return report_of
