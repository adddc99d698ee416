"""Charts are checked data: parts that do not fit together are refused, and what is not finite is no data."""

import dataclasses
import json

import numpy as np
import pytest

from sonde.core import errors
from sonde.report import charts, look

LINES = {"key": "a", "title": "t", "x_name": "x", "y_name": "y"}
MAP = {"key": "m", "title": "t", "x_name": "x", "y_name": "y", "value_name": "v", "rows": ("a",), "columns": ("b", "c")}


def heatmap(cells, **more):
    cells = np.array(cells, dtype=float)
    labels = {"rows": tuple("abcdefgh"[: len(cells)]), "columns": tuple("abcdefgh"[: cells.shape[1]])}
    return charts.Heatmap(**(MAP | labels | {"cells": cells} | more))


def test_what_is_not_finite_is_null_in_json():
    series = charts.Series("one", np.array([1.0, np.nan]), np.array([0.0, -np.inf]), np.array([2.0, np.inf]))
    chart = charts.Lines(x=np.arange(2.0), series=(series,), **LINES)
    data = json.loads(json.dumps(chart.to_json(), allow_nan=False))
    assert data["kind"] == "lines"
    assert data["series"][0]["values"] == [1.0, None]
    assert data["series"][0]["low"] == [0.0, None]
    assert data["x"] == [0.0, 1.0]


def test_a_chart_keeps_its_own_copy_of_the_data():
    values = np.array([1.0, 2.0])
    series = charts.Series("one", values)
    values[0] = 9.0
    assert series.values[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        series.values[0] = 3.0


@pytest.mark.parametrize("key", ["", "../up", "A b", "a/b", "x" * 81, "é"])
def test_a_key_that_cannot_name_a_file_is_refused(key):
    with pytest.raises(errors.AnalysisError, match="lower case"):
        charts.Lines(x=np.arange(1.0), series=(charts.Series("s", np.ones(1)),), **(LINES | {"key": key}))


def test_a_series_of_another_length_is_refused_by_name():
    with pytest.raises(errors.AnalysisError, match=r"'short' of chart 'a' has 2 values, expected 3"):
        charts.Lines(x=np.arange(3.0), series=(charts.Series("short", np.ones(2)),), **LINES)
    with pytest.raises(errors.AnalysisError, match="no series"):
        charts.Lines(x=np.arange(3.0), series=(), **LINES)


def test_half_an_interval_is_refused():
    with pytest.raises(errors.AnalysisError, match="both `low` and `high`"):
        charts.Series("s", np.ones(2), low=np.zeros(2))


def test_where_there_is_no_value_there_is_no_interval():
    series = charts.Series("s", np.array([0.5, np.nan]), np.zeros(2), np.ones(2))
    assert series.low is not None
    assert series.low[0] == 0.0
    assert np.isnan(series.low[1])


def test_a_heatmap_is_refused_if_labels_marks_or_hover_text_do_not_fit():
    cells = np.zeros((1, 2))
    for wrong, match in (
        ({"rows": ("a", "b")}, "2 rows, expected 1"),
        ({"columns": ("a",)}, "1 columns, expected 2"),
        ({"marked": np.ones((1, 2), dtype=bool)}, "mark_name"),
        ({"hover": (("one",),)}, "one text per cell"),
    ):
        with pytest.raises(errors.AnalysisError, match=match):
            charts.Heatmap(cells=cells, **(MAP | wrong))


def test_a_centred_scale_has_zero_in_its_middle_and_limits_win():
    assert look.scale_of(heatmap([[-1.0, 3.0]], centred=True))[1:] == (-3.0, 3.0)
    assert look.scale_of(heatmap([[1.0, 3.0]]))[1:] == (1.0, 3.0)
    assert look.scale_of(heatmap([[1.0, 3.0]], limits=(0.0, 5.0)))[1:] == (0.0, 5.0)


@pytest.mark.parametrize("value", [np.nan, 0.0, 2.0])
def test_a_scale_is_never_empty(value):
    for centred in (False, True):
        _, low, high = look.scale_of(heatmap([[value, value]], centred=centred))
        assert low < high


def test_cells_show_numbers_if_few_marks_if_marked_and_a_dash_for_no_data():
    few = heatmap([[0.5, np.nan]], marked=np.array([[True, False]]), mark_name="p < 0.05")
    assert look.cell_texts(few) == [["0.50 ●", "–"]]
    many = dataclasses.replace(
        few,
        cells=np.ones((1, 100)),
        columns=("c",) * 100,
        marked=np.arange(100)[None] == 3,
    )
    assert [at for at, text in enumerate(look.cell_texts(many)[0]) if text == "●"] == [3]
    assert set(look.cell_texts(many)[0]) == {"", "●"}


def test_the_caption_says_what_marks_and_gaps_mean():
    chart = heatmap([[0.5, np.nan]], marked=np.array([[True, False]]), mark_name="p < 0.05", caption="n = 3.")
    assert look.caption(chart) == "n = 3. ● p < 0.05. Grey cells with –: no data."
    assert look.caption(heatmap([[0.5, 1.0]], caption="n = 3.")) == "n = 3."


def test_colours_of_ordered_series_get_lighter_and_of_others_differ():
    def lightness(colour):
        return sum(weight * int(colour[at : at + 2], 16) for weight, at in ((0.3, 1), (0.59, 3), (0.11, 5)))

    shades = [lightness(colour) for colour in look.series_colours(8, ordered=True)]
    assert shades == sorted(shades)
    assert min(np.diff(shades)) > 5
    assert len(set(look.series_colours(7, ordered=False))) == 7


def test_every_series_of_a_large_chart_has_its_own_look():
    looks = {
        (look.SERIES[i % len(look.SERIES)], look.DASHES[i % len(look.DASHES)], look.MARKERS[i % len(look.MARKERS)])
        for i in range(30)
    }
    assert len(looks) == 30


def test_many_labels_are_thinned_out():
    at, texts = look.ticks([str(index) for index in range(100)])
    assert at == list(range(0, 100, 5))
    assert texts[:2] == ["0", "5"]
