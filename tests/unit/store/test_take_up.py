"""A run of the same name is gone on with if it is the same run, and refused if it is not."""

import threading

import pytest

from sonde import store
from sonde.core import errors

SETTINGS = {"episodes": 4, "layers": (0, 3), "probes": {"folds": 5}, "note": None}


def take_up(folder, **changes):
    return store.Run.take_up(folder, **{"kind": "study", "settings": SETTINGS, "seed": 1, "id": "it", **changes})


def test_the_first_time_makes_the_run_and_the_second_opens_it(tmp_path):
    first = take_up(tmp_path, model="tiny")
    (first.folder / "kept").write_text("x")
    again = take_up(tmp_path, model="tiny")
    assert again.folder == first.folder
    assert again.manifest == first.manifest
    assert (again.folder / "kept").exists()


def test_without_a_name_every_run_is_new(tmp_path):
    assert take_up(tmp_path, id=None).id != take_up(tmp_path, id=None).id


def test_a_finished_run_is_opened_too(tmp_path):
    take_up(tmp_path).finish({"n": 1})
    assert take_up(tmp_path).status == "finished"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {**SETTINGS, "episodes": 5}}, r"episodes was 4, now 5"),
        ({"settings": {**SETTINGS, "layers": (0, 4)}}, r"layers was \[0, 3\], now \[0, 4\]"),
        ({"settings": {**SETTINGS, "probes": {"folds": 4}}}, r"probes was .*5.*, now .*4"),
        ({"settings": {**SETTINGS, "new": True}}, r"new was None, now True"),
        ({"kind": "play"}, r"run it is of kind 'study', not 'play': give this one another name"),
    ],
)
def test_another_run_of_the_same_name_is_refused_and_left_alone(tmp_path, changes, message):
    before = (take_up(tmp_path).folder / "manifest.json").read_bytes()
    with pytest.raises(errors.RequestError, match=message):
        take_up(tmp_path, **changes)
    assert (tmp_path / "it" / "manifest.json").read_bytes() == before


def test_a_name_cannot_reach_a_run_elsewhere(tmp_path):
    take_up(tmp_path)
    (tmp_path / "inner").mkdir()
    with pytest.raises(errors.StoreError, match="cannot be a folder name"):
        take_up(tmp_path / "inner", id="../it")


def test_a_damaged_manifest_is_named(tmp_path):
    path = take_up(tmp_path).folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 1', b'"seed": 2'))
    with pytest.raises(errors.DamagedError, match=r"manifest\.json: the checksum does not match"):
        take_up(tmp_path)


def test_of_many_at_once_all_have_the_same_run_or_are_told_that_it_is_there(tmp_path):
    results = []

    def one():
        try:
            results.append(take_up(tmp_path).manifest["created"])
        except errors.StoreError as error:
            results.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    created = take_up(tmp_path).manifest["created"]
    assert created in results
    assert all(result == created or "already" in result for result in results)
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
