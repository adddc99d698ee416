"""An inquiry as a run: taken up wherever it stopped, refused where it is another, and sealed with all its entries."""

import dataclasses
import shlex

import pytest

from sonde import experiments, store
from sonde.core import errors
from sonde.lab import experiments as lab_experiments
from sonde.lab import inquiries, log, loop, planning, research
from sonde.lab.planners import search


class Skips:
    """A planner that skips three layers, one after the other."""

    name, replays = "skips", True

    def steps(self, inquiry):
        for layer in range(3):
            yield planning.Call("run_experiment", {"corruption": f"skip:{layer}"})
        return "That was all."


@pytest.fixture
def lab(book, letters):
    """Runs an inquiry beside the log."""

    def run(planner=None, *, name="it", cls=research.Research, drive=None, on_progress=None, **chosen):
        asked = cls(letters, book, drive or research.planned(planner or Skips()))
        settings = research.settings_of(letters, **{"budget": 9, "examples": 8, **chosen})
        return experiments.run(asked, settings, run=name, runs_dir=book.path.parent, on_progress=on_progress)

    return run


def plain(content):
    """Without what differs between two runs of the same."""
    if isinstance(content, dict):
        left = {"timing", "seconds", "time", "intact_seconds"}
        return {name: plain(value) for name, value in content.items() if name not in left}
    return [plain(one) for one in content] if isinstance(content, list) else content


def test_an_inquiry_is_a_run_with_page_and_results_sealed(lab, book):
    found = lab(search.SearchPlanner())
    (row,) = store.Index(book.path.parent).runs()
    assert (row.id, row.kind, row.status) == ("it", "inquiry", "finished")
    assert found.run.verify() == []
    assert found.html is not None
    assert found.results["hypotheses"] == inquiries.opened(book, "q1").states()
    assert found.run.manifest["summary"]["inquiry"] == "q1"
    assert len(found.results["runs"]) == len(book.entries("run"))
    (found.folder / "results.md").write_text("forged", encoding="utf-8")
    assert [one.file.name for one in found.run.verify()] == ["results.md"]


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_interrupted_inquiry_is_taken_up_by_the_same_run(lab, book, letters, tmp_path, after):
    def interrupt(now):
        if now.done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab(on_progress=interrupt) if after else lab(drive=_interrupted)
    (row,) = store.Index(book.path.parent).runs()
    assert row.status == "interrupted"
    found = lab()
    with log.Log.of(tmp_path / "other") as other:
        asked = research.Research(letters, other, research.planned(Skips()))
        settings = research.settings_of(letters, budget=9, examples=8)
        whole = experiments.run(asked, settings, run="it", runs_dir=tmp_path / "other")
    assert plain(found.results) == plain(whole.results)
    assert [one.id for one in book.entries("inquiry")] == ["q1"]


def _interrupted(at, tell):
    raise KeyboardInterrupt


def test_a_kill_between_the_inquiry_and_its_first_run_begins_nothing_twice(lab, book, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "measure_intact", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            lab()
    assert [one.kind for one in book.entries()] == ["inquiry"]
    lab()
    assert [one.kind for one in book.entries()][:2] == ["inquiry", "run"]
    assert len(book.entries("inquiry")) == 1


def test_a_finished_inquiry_is_shown_again_and_nothing_is_measured(lab, book):
    before, count = lab(), len(book.entries())
    kept = (before.folder / "results.json").read_bytes()
    lab(drive=_interrupted)
    assert len(book.entries()) == count
    assert (before.folder / "results.json").read_bytes() == kept


@pytest.mark.parametrize(("chosen", "told"), [({"budget": 8}, "budget was 9, now 8"), ({"seed": 1}, "seed was 0, now 1"), ({"layers": (1, 2)}, "layers was None"), ({"approve": True}, "approve was False")])  # fmt: skip
def test_other_settings_under_the_same_name_are_refused(lab, book, chosen, told):
    lab()
    count = len(book.entries())
    with pytest.raises(errors.RequestError, match=told):
        lab(**chosen)
    assert len(book.entries()) == count


def test_another_task_of_the_same_name_is_refused(lab, book, letters):
    lab()
    task = dataclasses.replace(letters.task, examples=letters.task.examples[::-1])
    bench = lab_experiments.Experiments(letters.model, task)
    asked = research.Research(bench, book, research.planned(Skips()))
    settings = research.settings_of(bench, budget=9, examples=8)
    with pytest.raises(errors.RequestError, match="digest was"):
        experiments.run(asked, settings, run="it", runs_dir=book.path.parent)


@pytest.mark.parametrize(("chosen", "error", "told"), [({"layers": (9,)}, errors.RequestError, "layers 0 to 7"), ({"budget": 0}, errors.BudgetError, "the budget is zero"), ({"replay_of": "q9"}, errors.SelectorError, "no q9")])  # fmt: skip
def test_what_makes_no_sense_is_refused_before_a_run_is_made(lab, book, chosen, error, told):
    with pytest.raises(error, match=told):
        lab(**chosen)
    assert store.Index(book.path.parent).runs() == []
    assert book.entries() == []


def test_a_new_run_of_a_deleted_ones_name_is_a_new_inquiry(lab, book):
    from sonde.store import run as store_run

    store_run.remove(lab().folder)
    assert lab().results["inquiry"] == book.entries("inquiry")[1].id


def test_a_fork_and_a_replay_are_runs_too_and_say_the_command_that_makes_them(lab, book, letters):
    lab()
    fork = lab(name="fork", parent="q1", at=2, budget=5)
    assert [one["corruption"] for one in fork.results["runs"]] == ["none", "skip:0", "skip:1", "skip:2"]
    assert fork.results["spent"]["experiments"] == 1
    old = inquiries.opened(book, "q1")
    again = lab(loop.Repeater(old), name="again", replay_of="q1")
    assert all(one.same for one in loop.compared(old, inquiries.opened(book, again.results["inquiry"])))
    words = {name: shlex.split(one.report.command) for name, one in (("fork", fork), ("again", again))}
    assert words == {
        "fork": ["sonde", "lab", "fork", "q1", "--at", "2", "--budget", "5"],
        "again": ["sonde", "lab", "replay", "q1"],
    }


def test_an_interrupted_replay_goes_on(lab, book):
    lab()
    old = inquiries.opened(book, "q1")

    def interrupt(now):
        if now.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab(loop.Repeater(old), name="again", replay_of="q1", on_progress=interrupt)
    again = lab(loop.Repeater(old), name="again", replay_of="q1")
    fresh = inquiries.opened(book, again.results["inquiry"])
    assert [one["tool"] for one in fresh.entries("call")] == ["run_experiment"] * 3
    assert fresh.ended()["why"] == "A replay of q1: 0 of 3 calls came out differently."


def test_what_is_served_may_be_served_again_and_goes_on(lab, book):
    def ask(layer):
        def drive(at, tell):
            at.call("run_experiment", {"corruption": f"skip:{layer}"})

        return drive

    for layer in (1, 2):
        found = lab(cls=research.Served, drive=ask(layer), planner_model=None)
        assert found.run.manifest["status"] == "finished"
        assert found.run.verify() == []
    assert [one["corruption"] for one in found.results["runs"]] == ["none", "skip:1", "skip:2"]
    assert shlex.split(found.report.command)[:3] == ["sonde", "lab", "mcp"]


def test_a_server_that_is_gone_says_how_to_go_on(lab, book):
    def gone(at, tell):
        raise errors.ServerError("the server is down")

    with pytest.raises(errors.ServerError, match="with --run it goes on"):
        lab(drive=gone)
    assert store.Run.open(book.path.parent / "it").status == "failed"
    assert lab().run.manifest["status"] == "finished"


def test_two_processes_cannot_conduct_the_same_inquiry(lab, book):
    def meanwhile(at, tell):
        lab()

    with pytest.raises(errors.StoreError, match="another process"):
        lab(drive=meanwhile)
