"""Charts in the page are valid plotly data in which no text is mark-up."""

import html.parser
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import colors
from plotly import graph_objects

from sonde.report import charts, drawing, hovering, look


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def data_of(text):
    return json.loads(re.fullmatch(r".*?<script[^>]*>(.*)</script></div>", text, re.DOTALL).group(1))


def test_plotly_accepts_every_kind_of_chart(make_charts):
    for chart in make_charts():
        graph_objects.Figure(hovering.plotly_figure(chart))  # validates names and types of all fields


def test_a_chart_is_one_div_with_data_and_no_running_script(make_charts):
    for chart in make_charts():
        text = hovering.to_html(chart)
        tags = Tags()
        tags.feed(text)
        assert [tag for tag, _ in tags.seen] == ["div", "script"]
        assert tags.seen[0][1]["id"] == f"chart-{chart.key}"
        assert tags.seen[1][1] == {"type": "application/json"}
        assert data_of(text) == hovering.plotly_figure(chart)
        assert text == hovering.to_html(chart)


def test_hostile_text_begins_no_tag_in_html_nor_for_plotly(make_charts, evil):
    for chart in make_charts(evil):
        text = hovering.to_html(chart)
        body = text.removesuffix("</script></div>").split('json">', 1)[1]
        assert not set("<>&") & set(body)
        for one in strings(data_of(text)):
            assert set(re.findall(r"<[^>]*>?", one)) <= {"<br>"}
            assert not re.search(r"[\x00-\x09\u202a-\u202e\ud800-\udfff]", one)


def test_no_hover_text_is_a_template(make_charts, evil):
    for chart in make_charts(evil):
        for trace in hovering.plotly_figure(chart)["data"]:
            assert not {"hovertemplate", "texttemplate"} & set(trace)
            assert trace["hoverinfo"] in ("text", "skip")


def test_hover_text_says_value_interval_and_note(make_charts):
    lines = hovering.plotly_figure(make_charts("name")[0])["data"][1]
    assert lines["hovertext"][0] == "name<br>name: 0<br>0.500 [0.400, 0.600]<br>name"
    assert lines["hovertext"][1].split("<br>")[2] == "no data"
    assert lines["y"] == [0.5, None, 0.7]


def test_a_band_is_broken_where_there_is_no_data(make_charts):
    band = hovering.plotly_figure(make_charts()[0])["data"][0]
    assert band["x"] == [0.0, 0.0, None, 2.0, 2.0, None]
    assert band["fill"] == "toself"


def test_cells_without_data_are_a_layer_of_their_own_in_grey(make_charts):
    (chart,) = [chart for chart in make_charts() if isinstance(chart, charts.Heatmap)]
    values, grey, texts = hovering.plotly_figure(chart)["data"]
    assert values["z"][0] == [0.1, -0.4, None]
    assert grey["z"] == [[None, None, 1.0], [None, None, None]]
    assert {colour for _, colour in grey["colorscale"]} == {look.NO_DATA}
    assert grey["hovertext"][0][2].split("<br>")[2] == "plain: no data"
    assert texts["text"][:3] == ["0.10", "-0.40", "–"]


def test_png_and_page_use_the_same_colours(make_charts):
    bars = make_charts()[1]
    drawn = drawing.figure(bars).axes[0]
    png = [colors.to_hex(group[0].get_facecolor()) for group in drawn.containers]
    assert png == [trace["marker"]["color"] for trace in hovering.plotly_figure(bars)["data"]]


@pytest.mark.parametrize("log", [False, True])
def test_the_range_of_a_logarithmic_axis_is_in_powers_of_ten(log):
    series = (charts.Series("s", np.ones(2)),)
    given = {"key": "a", "title": "t", "x_name": "x", "y_name": "y", "x": np.arange(2.0), "series": series}
    layout = hovering.plotly_figure(charts.Lines(**given, log_y=log, y_range=(1.0, 100.0)))["layout"]
    assert layout["yaxis"]["range"] == ([0.0, 2.0] if log else [1.0, 100.0])


def test_a_missing_package_is_named_with_the_line_that_installs_it():
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "from sonde.core import errors\nfrom sonde.report import hovering\n"
        "try:\n    hovering.script()\n"
        "except errors.MissingExtraError as error:\n    assert 'pip install \"sonde[study]\"' in str(error)\n"
        "else:\n    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
