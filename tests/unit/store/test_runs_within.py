"""A study is a run that holds runs: they are counted, checked and deleted with it, and can be looked at one by one."""

import pytest

from sonde import store
from sonde.core import errors
from sonde.store import documents
from sonde.store import run as run_module


@pytest.fixture
def study(tmp_path, steps_into):
    """A study with one stage, plain results, and two runs of games: one with two closed episodes, one with none."""
    study = store.Run.create(tmp_path / "runs", kind="study", id="study")
    games = store.Run.create(study.folder / "games", kind="play", model="tiny-gpt2", id="collect")
    for _ in range(2):
        with games.new_episode() as writer:
            steps_into(writer, 3)
    games.finish()
    store.Run.create(study.folder / "games", kind="play", id="steer")
    documents.keep(study.folder / "stages" / "collect.json", {"rate": 0.5, "names": ["a"]})
    documents.write_results(study.folder / "results.json", {"rate": 0.5})
    study.finish()
    return study


def test_a_study_counts_what_its_runs_hold(study):
    (row,) = store.Index(study.folder.parent).runs()
    assert (row.id, row.episodes, row.steps) == ("study", 2, 6)
    collect, steer = store.runs_within(study.folder)
    assert (collect.id, collect.kind, collect.status) == ("games/collect", "play", "finished")
    assert (collect.episodes, collect.steps, collect.folder) == (2, 6, study.folder / "games" / "collect")
    assert (steer.id, steer.episodes, steer.status) == ("games/steer", 0, "interrupted")
    assert store.runs_within(collect.folder) == []
    assert 0 < collect.bytes < row.bytes


def test_a_new_game_is_counted_at_once(study, steps_into):
    store.Index(study.folder.parent).runs()
    with store.Run.open(study.folder / "games" / "steer").new_episode() as writer:
        steps_into(writer, 1)
    assert store.Index(study.folder.parent).runs()[0].episodes == 3


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "stages/collect.json",
        "games/collect/manifest.json",
        "games/collect/episodes/00001/steps.jsonl",
        "games/collect/episodes/00001/activations.safetensors",
    ],
)
def test_a_flipped_byte_anywhere_in_a_study_is_found_and_named(study, name):
    assert store.verify_run(study.folder) == []
    path = study.folder / name
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        problems = store.verify_run(study.folder)
        assert {problem.file for problem in problems} == {path}, at
    path.write_bytes(good)
    assert store.verify_run(study.folder) == []


def test_json_of_other_programs_is_left_alone(study):
    (study.folder / "stages" / "mine.json").write_text('{\n  "format": "png",\n  "note": "crc32"\n}\n')
    (study.folder / "broken.json").write_text("{")
    assert store.verify_run(study.folder) == []


def test_a_document_that_cannot_be_read_is_named(study):
    (study.folder / "stages" / "gone.json").symlink_to(study.folder / "nowhere.json")
    (problem,) = store.verify_run(study.folder)
    assert problem.file.name == "gone.json"
    assert "is a link" in problem.problem


def test_a_game_of_a_newer_version_is_not_judged(study):
    documents.write(study.folder / "games" / "steer" / "manifest.json", {"format": 99})
    with pytest.raises(errors.VersionError, match="format 99"):
        store.verify_run(study.folder)


def test_a_study_whose_games_are_being_written_is_not_deleted(study):
    writer = store.Run.open(study.folder / "games" / "steer").new_episode()
    writer.append_step({"n": 0})
    with pytest.raises(errors.StoreError, match="being written by another process"):
        run_module.remove(study.folder)
    writer.close()
    run_module.remove(study.folder)
    assert store.Index(study.folder.parent).runs() == []


def test_what_is_kept_comes_back_without_its_seal(study):
    path = study.folder / "stages" / "probe.json"
    documents.keep(path, {"auroc": 0.7})
    assert documents.kept(path, "document") == {"auroc": 0.7}
    path.write_bytes(path.read_bytes().replace(b"0.7", b"0.8"))
    with pytest.raises(errors.DamagedError, match=r"probe\.json"):
        documents.kept(path, "document")
