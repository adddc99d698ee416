"""`sonde programs` as typed."""

import json

import pytest
from typer import testing

from sonde import store
from sonde._cli import programs

TYPED = testing.CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
SMALL = ["-m", "tiny-gpt2", "-n", "2", "--seq-lens", "1-2", "--max-new-tokens", "3", "--run", "x"]


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SONDE_RUNS", str(tmp_path / "runs"))


def typed(*words):
    found = TYPED.invoke(programs.app, [str(word) for word in words])
    return found.exit_code, found.output


def test_one_experiment_runs_and_is_resumed(tmp_path):
    code, text = typed("run", "range", *SMALL, "--out", tmp_path)
    assert code == 0, text
    assert "line-1 heuristic" in text
    assert json.loads((tmp_path / "range_x" / "summary.json").read_text())["total_samples"] == 4
    run = store.Run.open(tmp_path / "runs" / "x")
    assert (run.manifest["kind"], run.verify()) == ("programs", [])
    assert "sonde programs run range -m tiny-gpt2 --number 2" in (run.folder / "report.html").read_text()
    before = {path: path.read_bytes() for path in (run.folder / "stages").rglob("*.json")}
    code, again = typed("run", "range", *SMALL, "--out", tmp_path)
    assert code == 0, again
    assert "Everything is on disk" in again
    assert {path: path.read_bytes() for path in (run.folder / "stages").rglob("*.json")} == before
    code, text = typed("run", "range", *SMALL, "--seed", "1")
    assert code != 0


@pytest.mark.slow
def test_all_experiments_run(tmp_path):
    code, text = typed("run", "all", *SMALL, "--out", tmp_path / "out")
    assert code == 0, text
    names = ["binding", "boolean", "exception", "integer", "range"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"{name}_x-{name}" for name in names]
    assert sorted(row.id for row in store.Index().runs()) == [f"x-{name}" for name in names]


@pytest.mark.parametrize("lengths", ["x", "5-2", "0-3", "2-", ""])
def test_lengths_that_make_no_sense_are_refused(lengths):
    code, text = typed("run", "range", "--seq-lens", lengths)
    assert code == 2
    assert "2-17 or 2,5,17" in text


def test_lengths_are_ranges_and_lists():
    assert programs._lengths("2-5,17") == [2, 3, 4, 5, 17]


def test_the_search_for_seeds_tells_what_it_found_and_what_not():
    code, text = typed("seeds", "-m", "tiny-gpt2", "--max-seeds", "2")
    assert code == 0, text
    cases = [line.split(":")[0].removeprefix("• ") for line in text.splitlines() if " lines: " in line]
    assert cases[0] == "3 hops, 17 lines", "the hardest case first"
    assert len(cases) == 6
