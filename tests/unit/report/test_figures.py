"""Pictures are written, say what they show, and touch nothing global."""

import subprocess
import sys

import numpy as np
import pytest

from sonde.core import errors
from sonde.report import figures

PNG = b"\x89PNG\r\n\x1a\n"


def test_an_attention_pattern_becomes_a_png(tmp_path):
    pattern = np.tril(np.ones((1, 6, 6))) / np.arange(1, 7)[None, :, None]
    path = tmp_path / "deep" / "attention.png"
    figure = figures.visualize_attention(pattern, list("abcde$"), title="head 3", path=path)
    assert path.read_bytes().startswith(PNG)
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), figure.get_suptitle()) == (
        "key position",
        "query position",
        "head 3",
    )
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c", "d", "e", r"\$"]
    assert axes.images[0].get_clim() == (0.0, 1.0)


def test_a_pattern_of_the_last_query_alone_is_labelled_with_its_token():
    figure = figures.visualize_attention(np.full((1, 4), 0.25), ["a", "b", "c", "d"])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["d"]


def test_several_heads_at_once_are_refused():
    with pytest.raises(errors.CaptureError, match="choose a head"):
        figures.visualize_attention(np.zeros((1, 4, 6, 6)))


def test_a_matrix_with_negative_values_gets_a_scale_centred_on_zero(tmp_path):
    figure = figures.heatmap(np.array([[-1.0, 3.0], [0.0, 1.0]]), x="step", y="layer", title="effect")
    assert figure.axes[0].images[0].get_clim() == (-3.0, 3.0)
    figure = figures.heatmap(np.array([[1.0, 3.0], [0.5, np.nan]]), x="step", y="layer", title="effect")
    assert figure.axes[0].images[0].get_clim() == (0.0, 3.0)
    figures.heatmap(np.full((2, 2), -np.inf), x="x", y="y", title="nothing finite", path=tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


def test_lines_carry_their_names(tmp_path):
    figure = figures.lines({"one": [1, 2, 3], "two": [3, 2]}, x="step", y="norm", title="t", path=tmp_path / "b.png")
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["one", "two"]
    assert (tmp_path / "b.png").read_bytes().startswith(PNG)
    assert figures.lines({"alone": [1.0]}, x="step", y="norm", title="one point").axes[0].get_legend() is None


def test_drawing_loads_no_torch_and_no_pyplot():
    code = (
        "import sys, numpy; from sonde.report import figures; figures.visualize_attention(numpy.eye(3));"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
