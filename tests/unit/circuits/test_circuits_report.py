"""What the page of a search says, and when it says next to nothing."""

import json

import numpy as np
import pytest

import sonde
from sonde import experiments
from sonde.circuits import experiment, faithfulness, report, tasks

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(faithfulness, "DRAWS", 50)


def line(at):
    one, two, three, four = (LETTERS[(at + step) % 26] for step in (0, 5, 11, 17))
    return {
        "clean": f"{one}{two}{three}{one}{two}",
        "corrupt": f"{one}{two}{four}{one}{two}",
        "answer": three,
        "wrong": four,
    }


def searched(folder, lines, **settings):
    """A search over pairs from a file, by two methods, with a circuit."""
    file = folder / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    asked = experiment.CircuitsSettings(model="tiny-gpt2", task=str(file), **settings)
    with sonde.load("tiny-gpt2") as model:
        search = experiment.Circuits(model, ["eap", "random"], choice=experiment.Choice(n_edges=10))
        return search, experiments.run(search, asked, run="out", runs_dir=folder)


def test_on_few_pairs_it_says_that_they_are_too_few_and_nothing_else(tmp_path):
    search, result = searched(tmp_path, [line(at) for at in range(4)])
    said = report.sentences(search.found)
    assert len(said) == 1
    assert said[0].startswith(f"Too few pairs to tell: 2 judge, and it takes {faithfulness.FEWEST}")
    assert result.report.summary == said
    assert [section.title for section in result.report.sections] == ["Pairs"]
    text = result.html.read_text()
    assert "CPR" not in text
    assert "does not do this task" not in text
    assert json.loads((tmp_path / "out" / "results.json").read_text())["pairs"]["enough"] is False


def test_with_the_stated_number_of_pairs_it_reports(tmp_path):
    search, _ = searched(tmp_path, [line(at) for at in range(2 * faithfulness.FEWEST)])
    said = " ".join(report.sentences(search.found))
    assert "Too few" not in said
    assert "eap: CPR" in said
    assert "Left out" not in said


def test_lines_that_are_left_out_are_counted_with_their_reason(tmp_path):
    lines = [line(at % 8) for at in range(20)]  # twelve of them were there before
    lines.append({"clean": "xyzxy", "corrupt": "xyzx", "answer": "z", "wrong": "y"})
    search, result = searched(tmp_path, lines, holdout=False)
    found = search.found
    assert found.search.report.kept == 8
    assert found.search.report.dropped == {
        "the same pair as an earlier one": 12,
        "clean and corrupt differ in their number of tokens": 1,
    }
    said = " ".join(report.sentences(found))
    assert (
        "Left out: 12 (the same pair as an earlier one), 1 (clean and corrupt differ in their number of tokens)."
        in said
    )
    assert "the same pair as an earlier one" in result.html.read_text()


def test_lines_that_were_not_drawn_are_counted_too(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(line(at)) for at in range(10)))
    with sonde.load("tiny-gpt2") as model:
        kept, made = tasks.get(str(file))(model, n=4, seed=0)
    assert len(kept) == made.kept == 4
    assert made.dropped == {"not among the 4 that were drawn": 6}


def ends(whole, empty):
    return faithfulness.Ends(np.array(whole), np.array(empty), tuple(map(str, range(len(whole)))))


def test_fewest_is_where_a_test_of_signs_can_reach_five_percent():
    from sonde.analysis import stats

    for count in (faithfulness.FEWEST - 1, faithfulness.FEWEST):
        best = stats.paired(np.arange(1.0, count + 1), np.zeros(count)).p
        assert (best <= 0.05) == ends(np.arange(1.0, count + 1), np.zeros(count)).enough


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        ([3.0, 3.2, 2.9, 3.1, 3.0, 3.3], ""),
        ([9.0, -8, 7, -7, 8, -8.5], "more than chance"),
        ([-3.0, -3.1, -2.9, -3, -3, -3.2], "worse"),
    ],
)
def test_what_it_says_of_the_whole_model_agrees_with_the_pairs(whole, expected):
    said = report.doubts(ends(whole, [0.0, 0.1, 0.0, -0.1, 0.0, 0.1]), "high")
    assert (expected in said) if expected else said == ""
    flipped = report.doubts(ends([-one for one in whole], [0.0, 0.1, 0.0, -0.1, 0.0, 0.1]), "low")
    assert (expected in flipped) if expected else flipped == ""
