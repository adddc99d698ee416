"""Numbers read the same everywhere, and foreign text cannot hide anything."""

import math

import pytest

from sonde.report import wording


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (wording.Interval(0.714, 0.65, 0.766), "0.71 [0.65, 0.77]"),
        (wording.Interval(-0.001, -0.5, math.inf), "0.00 [-0.50, ∞]"),
        (wording.Interval(math.nan, 0.0, 1.0), "no data"),
        (0.5, "0.50"),
        (0.0004, "0.0004"),
        (-0.0004, "-0.0004"),
        (0.0, "0.00"),
        (1234.5, "1,234.50"),
        (math.nan, "no data"),
        (None, "no data"),
        (40, "40"),
        (12345, "12,345"),
        (True, "yes"),
        ("text", "text"),
    ],
)
def test_a_cell_is_shown_as(cell, text):
    assert wording.shown(cell) == text


def test_decimals_can_be_chosen():
    assert wording.shown(0.12345, 4) == "0.1235"


def test_cells_are_sorted_by_their_number():
    cells = [wording.Interval(0.5, 0.0, 1.0), 3, True, "3", None, math.nan]
    assert [wording.rank(cell) for cell in cells] == [0.5, 3.0, 1.0, None, None, None]


def test_control_characters_and_turned_text_become_visible():
    assert wording.visible("a\x00b\u202ec\ud800d\x1b[31m\n") == "a\ufffdb\ufffdc\ufffdd\ufffd[31m\n"


def test_a_long_text_is_cut_to_one_line():
    assert wording.one_line("two\n  lines") == "two lines"
    assert wording.one_line("x" * 100, 10) == "x" * 9 + "…"
