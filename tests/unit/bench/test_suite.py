"""Many cases: tries that go on from one another, the best of each, one run, or several that share a folder."""

import json

import pytest

from sonde import experiments
from sonde.bench import courses, roster, suite, training

SHORT = training.Recipe(seeds=(0,), epochs=1, samples=32, batch=16, check=2, rows=8, threshold=None)


def core(runs, cases, recipe=SHORT, run="it", on_progress=None, **more):
    chosen = courses.BenchCoreSettings(cases=tuple(cases), **dict(recipe))
    return experiments.run(courses.BenchCore(**more), chosen, run=run, runs_dir=runs, on_progress=on_progress)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    runs, told = tmp_path_factory.mktemp("suite"), []
    found = core(runs, [3], on_trained=lambda case, number, one: told.append((case, number, one.seed)))
    return found.folder, found, told


def log_of(folder, number):
    return json.loads((suite.place(folder, 3, number) / "seed-0" / training.LOG).read_text())


def test_a_case_that_never_reaches_has_three_tries_each_slower_and_longer(trained):
    folder, _, told = trained
    assert told == [(3, number, 0) for number in range(3)]
    recipes = [log_of(folder, number)["recipe"] for number in range(3)]
    assert [one["epochs"] for one in recipes] == [1, 3, 10]
    assert recipes[0]["rate"] > recipes[1]["rate"] > recipes[2]["rate"]


def test_a_later_try_begins_with_the_best_weights_so_far(trained):
    folder, _, _ = trained
    assert log_of(folder, 0)["begun"] is None
    assert log_of(folder, 1)["begun"] == "try-0/seed-0"
    assert log_of(folder, 2)["begun"] in ("try-0/seed-0", "try-1/seed-0")


def test_the_best_try_of_a_seed_counts(trained):
    folder, found, _ = trained
    scores = [
        suite.score(one) for number in range(3) for one in training.finished(suite.place(folder, 3, number), (0,))
    ]
    (best,) = found.results["cases"]["3"]
    assert courses.lowest(best) == max(scores)


def test_a_run_of_cases_is_whole_and_a_suite_for_the_leaderboard(trained):
    folder, found, _ = trained
    assert found.run.verify() == []
    entries, _ = roster.suite_of(folder, least=0.0)
    assert [(entry.case, entry.seed) for entry in entries] == [("3", 0)]


def test_a_finished_suite_trains_nothing_again(trained):
    folder, found, _ = trained
    again = []
    same = core(folder.parent, [3], on_trained=lambda case, number, one: again.append(one))
    assert again == []
    assert same.results == found.results


def test_a_try_that_another_process_is_at_is_left_to_it_and_waited_for_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "TRIES", suite.TRIES[:2])
    monkeypatch.setattr(courses, "POLL", 0.0)
    shared, other, seen, told = tmp_path / "shared", training.alone(suite.place(tmp_path / "shared", 3, 0)), [], []
    other.__enter__()

    def waiting(now):
        seen.append(now.what)
        if now.what == "case 3, try 0, of another process":
            assert not (suite.place(shared, 3, 1) / "seed-0").exists()  # its second try waits for the first
            other.__exit__(None, None, None)  # it ends without a model

    core(tmp_path / "runs", [3], out=shared, on_progress=waiting, on_trained=lambda *one: told.append(one[:2]))
    assert "case 3, try 0, of another process" in seen
    assert told == [(3, 0), (3, 1)]


def test_runs_that_share_a_folder_share_the_work_and_each_has_all_models_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "TRIES", suite.TRIES[:1])
    shared, told = tmp_path / "shared", {"one": [], "two": []}
    for run, cases in (("one", [3]), ("two", [3, 53])):
        core(tmp_path / "runs", cases, run=run, out=shared, on_trained=lambda *one, run=run: told[run].append(one[0]))
    assert told == {"one": [3], "two": [53]}
    files = [
        {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("seed-*/*")}
        for place in (shared, tmp_path / "runs" / "two")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 4


def test_seeds_may_be_added_to_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "TRIES", suite.TRIES[:1])
    core(tmp_path / "runs", [3], out=tmp_path / "shared", run="first")
    more, told = SHORT.model_copy(update={"seeds": (0, 1)}), []
    found = core(
        tmp_path / "runs",
        [3],
        more,
        out=tmp_path / "shared",
        run="more",
        on_trained=lambda *one: told.append(one[2].seed),
    )
    assert told == [1]
    assert [one["seed"] for one in found.results["cases"]["3"]] == [0, 1]


def test_a_try_that_was_stopped_half_way_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "TRIES", suite.TRIES[:1])
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)

    def stop(now):
        if now.what == "case 3" and now.done == 1:
            raise KeyboardInterrupt

    longer = SHORT.model_copy(update={"samples": 64})
    with pytest.raises(KeyboardInterrupt):
        core(tmp_path, [3], longer, on_progress=stop)
    steps = []
    found = core(
        tmp_path, [3], longer, on_progress=lambda now: steps.append(now.done) if now.what == "case 3" else None
    )
    assert steps[0] == 1, "the step that was not saved is taken again, and no other"
    assert [one["seed"] for one in found.results["cases"]["3"]] == [0]


def test_short_tries_come_first_whatever_their_case():
    found = suite.tries([97, 3])
    assert [number for case, number in found if case == 97] == [0, 1, 2]
    assert found.index((3, 2)) < found.index((97, 0))


def test_small_cases_come_first():
    assert suite.by_size([39, 3, 97, 15]) == [15, 3, 97, 39]
