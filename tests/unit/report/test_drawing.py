"""PNGs show what the chart says, the same every time, whatever its texts contain."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib import colors

from sonde.report import charts, drawing, look

PNG = b"\x89PNG\r\n\x1a\n"


def lines(**more):
    one = charts.Series("one", np.array([1.0, 2.0, 0.0]), np.array([0.5, 1.5, -1.0]), np.array([1.5, 2.5, 1.0]))
    two = charts.Series("two", np.array([3.0, np.nan, 1.0]))
    given = {"key": "k", "title": "Title $x$", "x": np.arange(3.0), "series": (one, two), "x_name": "layer"}
    return charts.Lines(**(given | {"y_name": "norm", "references": (charts.Reference("chance", 0.5),)} | more))


def test_every_kind_of_chart_becomes_a_png_and_the_same_bytes_again(tmp_path, make_charts):
    for chart in make_charts():
        first = drawing.save_png(chart, tmp_path / "new" / "folder" / f"{chart.key}.png")
        again = drawing.save_png(chart, tmp_path / "again.png")
        assert first.read_bytes().startswith(PNG)
        assert first.read_bytes() == again.read_bytes()


def test_hostile_texts_can_be_drawn(tmp_path, make_charts, evil):
    for chart in make_charts(evil + "\N{PILE OF POO}$\\frac{"):
        assert drawing.save_png(chart, tmp_path / "a.png").read_bytes().startswith(PNG)


def test_lines_carry_names_title_and_references():
    figure = drawing.figure(lines(caption="n = 3"))
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one", "two", "chance (0.50)"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "norm")
    assert figure.get_suptitle() == r"Title \$x\$"
    assert figure.get_supxlabel() == "n = 3 Gaps: no data."


def test_a_missing_point_is_a_gap_and_not_zero():
    drawn = drawing.figure(lines()).axes[0].get_lines()
    assert np.isnan(drawn[1].get_ydata()[1])


def test_what_a_logarithmic_axis_cannot_show_is_a_gap():
    axes = drawing.figure(lines(log_y=True)).axes[0]
    assert axes.get_yscale() == "log"
    assert np.isnan(axes.get_lines()[0].get_ydata()[2])


def test_cells_without_data_are_grey_and_marked_cells_carry_the_mark(make_charts):
    (chart,) = [chart for chart in make_charts() if isinstance(chart, charts.Heatmap)]
    axes = drawing.figure(chart).axes[0]
    image = axes.images[0]
    colours = image.to_rgba(image.get_array())
    assert colors.to_hex(colours[0, 2]) == look.NO_DATA
    assert image.get_clim() == (-0.4, 0.4)
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts[(2, 0)] == "–"
    assert texts[(2, 1)] == "0.30 ●"
    assert texts[(0, 0)] == "0.10"


def test_a_bar_without_data_has_no_interval_either():
    value = np.array([0.5, np.nan])
    series = charts.Series("s", value, np.zeros(2), np.ones(2))
    chart = charts.Bars(key="b", title="t", labels=("a", "b"), series=(series,), value_name="v", points=True)
    axes = drawing.figure(chart).axes[0]
    (intervals,) = axes.collections
    ends = [path.vertices[:, 0].tolist() for path in intervals.get_paths()]
    assert ends[0] == [0.0, 1.0]
    assert all(np.isnan(end).all() for end in ends[1:])


def test_a_path_is_broken_at_a_point_without_data():
    points = np.array([[0.0, 0.0], [np.nan, 1.0], [2.0, 2.0]])
    given = {"key": "p", "title": "t", "x_name": "x", "y_name": "y", "labels": ("a", "b", "c")}
    axes = drawing.figure(charts.Path2D(points=points, **given)).axes[0]
    assert [text.get_text() for text in axes.texts] == ["a", "c"]


@pytest.mark.parametrize(("shape", "value"), [((1, 1), np.nan), ((60, 3), 0.0), ((2, 200), 1.0)])
def test_matrices_of_any_shape_and_one_value_can_be_drawn(tmp_path, shape, value):
    chart = charts.Heatmap(
        key="m",
        title="t",
        cells=np.full(shape, value),
        rows=tuple(map(str, range(shape[0]))),
        columns=tuple(map(str, range(shape[1]))),
        x_name="x",
        y_name="y",
        value_name="v",
    )
    assert drawing.save_png(chart, tmp_path / "a.png").stat().st_size > 0


def test_a_missing_package_is_named_with_the_line_that_installs_it():
    code = (
        "import sys, numpy; sys.modules['matplotlib'] = None\n"
        "from sonde.core import errors\n"
        "from sonde.report import charts, drawing\n"
        "one = charts.Bars(key='b', title='', labels=('a',), series=(charts.Series('s', numpy.ones(1)),), value_name='')\n"
        "try:\n    drawing.figure(one)\n"
        "except errors.MissingExtraError as error:\n    assert 'pip install \"sonde[plot]\"' in str(error)\n"
        "else:\n    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
