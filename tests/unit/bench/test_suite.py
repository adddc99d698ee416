"""Many cases: tries that go on from one another, the best of each, one suite per folder."""

import dataclasses
import json

import pytest

from sonde.bench import suite, training

SHORT = training.Recipe(seeds=(0,), epochs=1, samples=32, batch=16, check=2, rows=8, threshold=None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, told = tmp_path_factory.mktemp("suite"), []
    found = suite.train([3], SHORT, folder, report=lambda case, number, one: told.append((case, number, one.seed)))
    return folder, found, told


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
    assert suite.score(found[3][0]) == max(scores)


def test_a_finished_suite_trains_nothing_again(trained):
    folder, _, _ = trained
    again = []
    suite.train([3], SHORT, folder, report=lambda case, number, one: again.append(one))
    assert again == []


def test_a_case_that_another_process_is_at_is_left_to_it(tmp_path):
    with training.alone(suite.place(tmp_path, 3, 0)):
        found = suite.train([3], SHORT, tmp_path)
    assert found == {3: []}
    assert not (suite.place(tmp_path, 3, 1) / "seed-0").exists()  # its second try waits for the first


def test_seeds_may_be_added_to_a_suite(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "TRIES", suite.TRIES[:1])
    suite.train([3], SHORT, tmp_path)
    more, told = dataclasses.replace(SHORT, seeds=(0, 1)), []
    suite.train([3], more, tmp_path, report=lambda case, number, one: told.append(one.seed))
    assert told == [1]


def test_a_try_that_was_stopped_half_way_goes_on_though_more_seeds_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "TRIES", suite.TRIES[:1])
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)

    def stop(doing, done, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        suite.train([3], SHORT, tmp_path, tell=lambda doing, done, of: stop(doing, done, of) if done == 2 else None)
    assert training.under_way(suite.place(tmp_path, 3, 0)) == (0,)
    found = suite.train([3], dataclasses.replace(SHORT, seeds=(0, 1)), tmp_path)
    assert [one.seed for one in found[3]] == [0, 1]


def test_short_tries_come_first_whatever_their_case():
    found = suite.tries([97, 3])
    assert [number for case, number in found if case == 97] == [0, 1, 2]
    assert found.index((3, 2)) < found.index((97, 0))


def test_small_cases_come_first():
    assert suite.by_size([39, 3, 97, 15]) == [15, 3, 97, 39]
