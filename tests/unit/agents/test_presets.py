"""Environments by name and selector."""

import pytest

from sonde import testing
from sonde.agents import presets
from sonde.core import errors


@pytest.fixture
def ten(monkeypatch):
    monkeypatch.setattr(presets, "_presets", dict(presets._presets))
    tasks = [testing.ScriptedTask(f"t{number}", ("hello",)) for number in range(10)]
    presets.register_preset("ten", lambda **options: testing.ScriptedEnvironment(tasks, **options), summary="Ten.")


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("ten", range(10)),
        ("ten:5", [5]),
        ("ten:0:3", range(3)),
        ("ten:7:", [7, 8, 9]),
        ("ten::2", [0, 1]),
        ("ten::", range(10)),
        ("ten:8:20", [8, 9]),
        ("ten@0/2", range(5)),
        ("ten@2/3", [6, 7, 8, 9]),
        ("ten:2:8@1/2", [5, 6, 7]),
        ("ten@1/2:0:2", [5, 6]),
        ("ten@1/2@0/2:1", [6]),
    ],
)
def test_a_selector_chooses_its_tasks(ten, selection, expected):
    assert presets.make(selection).task_ids == [f"t{number}" for number in expected]


def test_parts_are_disjoint_and_complete(ten):
    parts = [presets.make(f"ten@{k}/4").task_ids for k in range(4)]
    assert sorted(name for part in parts for name in part) == presets.make("ten").task_ids


@pytest.mark.parametrize("selection", ["ten:10", "ten:5:5", "ten:7:3", "ten@0/20", "ten:0:2:5"])
def test_an_empty_selection_is_a_value_error_at_make(ten, selection):
    with pytest.raises(ValueError, match=r"selects none|cannot read"):
        presets.make(selection)


@pytest.mark.parametrize(
    "selection",
    ["ten:", "ten:a", "ten:-1", "ten:1:2:3", "ten@", "ten@1", "ten@1/", "ten@-1/2", "ten:1.5", "ten 5", "ten:٣"],
)
def test_a_malformed_selector_says_what_to_write(ten, selection):
    with pytest.raises(errors.SelectorError, match=r"NAME:0:10|no preset"):
        presets.make(selection)


@pytest.mark.parametrize("selection", ["ten@2/2", "ten@0/0"])
def test_a_part_beyond_the_last_is_refused(ten, selection):
    with pytest.raises(errors.SelectorError, match="count from 0"):
        presets.make(selection)


def test_an_unknown_preset_suggests_a_known_one(ten):
    with pytest.raises(errors.SelectorError, match="did you mean 'ten'"):
        presets.make("tne")
    with pytest.raises(errors.SelectorError, match="Known: 20q, code, swebench, ten"):
        presets.make("")


def test_info_names_the_tasks(ten):
    found = presets.info("ten:0:2")
    assert (found.summary, found.task_ids) == ("Ten.", ("t0", "t1"))


def test_a_name_is_taken_once_unless_replaced(ten):
    with pytest.raises(errors.SelectorError, match="already"):
        presets.register_preset("ten", testing.ScriptedEnvironment)
    presets.register_preset("ten", testing.ScriptedEnvironment, replace=True)
    assert "fix-parser" in presets.make("ten").task_ids


@pytest.mark.parametrize("name", ["", "a:b", "a@1", " x", "-x"])
def test_a_name_that_reads_like_a_selector_is_refused(ten, name):
    with pytest.raises(errors.SelectorError, match="preset name"):
        presets.register_preset(name, testing.ScriptedEnvironment)


def test_an_environment_without_tasks_takes_no_selectors(ten):
    presets.register_preset("bare", object)
    assert presets.make("bare") is not None
    with pytest.raises(errors.SelectorError, match="no list of tasks"):
        presets.make("bare:1")


def test_options_reach_the_environment(ten):
    assert presets.make("ten:0:2", max_output_tokens=7).max_output_tokens == 7
