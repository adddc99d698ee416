"""Runs have safe, sortable, unique ids, a manifest that tells how they were made, and an index that never lies."""

import multiprocessing
import re
import sqlite3

import pytest

from sonde import store
from sonde.core import errors
from sonde.store import documents
from sonde.store import run as run_module

FORK = multiprocessing.get_context("fork")


def make(runs_dir, episodes=1, steps=2, **about):
    run = store.Run.create(runs_dir, **({"kind": "test", "model": "tiny-gpt2"} | about))
    for _ in range(episodes):
        with run.new_episode() as writer:
            for step in range(steps):
                writer.append_step({"n": step})
    return run


def test_the_manifest_tells_how_the_run_was_made(tmp_path):
    settings = {"layers": [1, 2], "odd": object}
    run = store.Run.create(tmp_path, kind="20q", model={"name": "m", "dtype": "F32"}, settings=settings, seed=7)
    manifest = store.Run.open(run.folder).manifest
    assert manifest == run.manifest
    assert (manifest["format"], manifest["kind"], manifest["seed"], manifest["status"]) == (1, "20q", 7, "running")
    assert manifest["model"] == {"name": "m", "dtype": "F32"}
    assert manifest["settings"]["odd"]["__type__"] == "type"
    assert set(manifest["versions"]) == {"sonde", "python", "torch", "transformers"}
    assert manifest["created"].endswith("+00:00")


def test_finishing_clears_the_journals_that_killed_writers_had_no_time_to_delete(tmp_path):
    run = make(tmp_path, episodes=2)
    closed, damaged = (run.episodes_dir / id for id in run.episode_ids())
    for folder in (closed, damaged):
        (folder / "activations.journal").write_bytes(b"rows that are packed already")
    (damaged / "episode.json").write_text("{")
    open_writer = run.new_episode()
    open_writer.append_step({"n": 0})
    run.finish()
    assert not (closed / "activations.journal").exists()
    assert (damaged / "activations.journal").exists()
    assert (open_writer.folder / "activations.journal").exists()
    open_writer.close()
    assert store.EpisodeReader.open(closed).status == "closed"


def test_finishing_is_written_down(tmp_path):
    run = make(tmp_path)
    run.finish({"accuracy": 0.5})
    again = store.Run.open(run.folder)
    assert (again.status, again.manifest["summary"]) == ("finished", {"accuracy": 0.5})
    with store.Run.create(tmp_path, kind="block") as run:
        pass
    assert store.Run.open(run.folder).status == "finished"


def test_a_run_whose_block_failed_is_not_finished(tmp_path):
    run = store.Run.create(tmp_path, kind="block")
    with pytest.raises(RuntimeError), run:
        raise RuntimeError("no")
    assert store.Run.open(run.folder).status == "interrupted"


def test_ids_sort_by_time(tmp_path):
    ids = [make(tmp_path, episodes=0).id for _ in range(5)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 5


@pytest.mark.parametrize(
    "id", ["..", ".", "", "a/b", "/abs", ".hidden", "a\\b", "a\0b", "x" * 200, "a b", "-x", "é", "a.", "a\n"]
)
def test_unsafe_ids_are_refused(tmp_path, id):
    with pytest.raises(errors.StoreError, match="run id"):
        store.Run.create(tmp_path / "runs", kind="test", id=id)
    run = store.Run.create(tmp_path / "runs", kind="test", id="fine")
    with pytest.raises(errors.StoreError, match="episode id"):
        run.new_episode(id)
    assert run.episode_ids() == []
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


def test_an_id_that_is_taken_is_refused(tmp_path):
    run = store.Run.create(tmp_path, kind="first", id="mine")
    with pytest.raises(errors.StoreError, match="already"):
        store.Run.create(tmp_path, kind="second", id="mine")
    assert store.Run.open(run.folder).manifest["kind"] == "first"
    assert list(tmp_path.iterdir()) == [run.folder]


def test_episodes_are_numbered_named_and_resumed(tmp_path):
    run = make(tmp_path, episodes=2)
    writer = run.new_episode("extra")
    writer.append_step({"n": 0})
    writer.abort()
    with run.resume_episode("extra") as writer:
        writer.append_step({"n": 1})
    assert run.episode_ids() == ["00000", "00001", "extra"]
    assert [len(episode.steps) for episode in run.episodes()] == [2, 2, 2]
    with pytest.raises(errors.StoreError, match="did you mean 'extra'"):
        run.episode("extr")


def test_a_newer_run_is_refused_and_listed_as_newer(tmp_path):
    run = make(tmp_path)
    documents.write(run.folder / "manifest.json", run.manifest | {"format": 2, "versions": {"sonde": "3.0"}})
    with pytest.raises(errors.VersionError, match=r"format 2, written by sonde 3.0.*upgrade"):
        store.Run.open(run.folder)
    with pytest.raises(errors.VersionError):
        store.verify_run(run.folder)
    assert [row.status for row in store.Index(tmp_path).runs()] == ["newer"]


def test_there_is_no_run_in_an_empty_folder(tmp_path):
    with pytest.raises(errors.StoreError, match="no run"):
        store.Run.open(tmp_path)


def test_removing_a_run_removes_only_that_run(tmp_path):
    first, second = make(tmp_path), make(tmp_path)
    run_module.remove(first.folder)
    assert [row.id for row in store.Index(tmp_path).runs()] == [second.id]
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [second.folder]
    with pytest.raises(errors.StoreError, match="no run"):
        run_module.remove(tmp_path)


def test_a_run_that_is_being_written_is_not_removed(tmp_path):
    run = make(tmp_path)
    with run.new_episode(), pytest.raises(errors.StoreError, match="being written"):
        run_module.remove(run.folder)
    assert run.folder.exists()


def test_the_default_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SONDE_RUNS", str(tmp_path / "elsewhere"))
    run = store.Run.create(kind="test")
    assert run.folder.parent == tmp_path / "elsewhere"
    monkeypatch.delenv("SONDE_RUNS")
    monkeypatch.chdir(tmp_path)
    assert store.Run.create(kind="test").folder.parent == tmp_path / "runs"
    assert len(store.Index().runs()) == 1


# ---------------------------------------------------------------------------------------------- the index


def test_the_index_sums_up_every_run(tmp_path):
    run = make(tmp_path, episodes=2, steps=3)
    (row,) = store.Index(tmp_path).runs()
    assert (row.id, row.kind, row.model, row.status) == (run.id, "test", "tiny-gpt2", "interrupted")
    assert (row.episodes, row.steps, row.folder) == (2, 6, run.folder)
    assert row.bytes == sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())


def test_the_index_follows_every_change(tmp_path):
    index = store.Index(tmp_path)
    assert index.runs() == []
    run = make(tmp_path, episodes=0)
    assert index.runs()[0].steps == 0
    writer = run.new_episode()
    for count in range(1, 4):
        writer.append_step({})
        assert index.runs()[0].steps == count
    writer.close()
    assert index.runs()[0].steps == 3
    run.finish()
    assert index.runs()[0].status == "finished"
    other = make(tmp_path)
    assert [row.id for row in index.runs()] == [run.id, other.id]
    run_module.remove(run.folder)
    assert [row.id for row in index.runs()] == [other.id]


def test_unchanged_runs_are_not_read_again(tmp_path, monkeypatch):
    make(tmp_path)
    rows = store.Index(tmp_path).runs()
    monkeypatch.setattr(documents, "read", lambda path: pytest.fail("read again"))
    assert store.Index(tmp_path).runs() == rows


@pytest.mark.parametrize("how", ["missing", "garbage", "empty", "old schema", "cut", "folder", "lying"])
def test_a_spoilt_index_is_made_anew(tmp_path, how):
    make(tmp_path)
    make(tmp_path)
    good = store.Index(tmp_path).runs()
    path = tmp_path / "index.sqlite"
    for leftover in tmp_path.glob("index.sqlite-*"):
        leftover.unlink()
    data = path.read_bytes()
    if how == "old schema":
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE runs (x)")
        db.close()
    elif how == "lying":
        with sqlite3.connect(path) as db:
            db.execute("UPDATE runs SET kind = 'something else'")
        db.close()
    elif how in ("missing", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    else:
        path.write_bytes({"garbage": b"no database" * 1000, "empty": b"", "cut": data[: len(data) // 2]}[how])
    assert store.Index(tmp_path).runs() == good
    assert store.Index(tmp_path).runs() == good


def test_an_index_locked_by_another_process_is_done_without(tmp_path, monkeypatch):
    from sonde.store import index

    monkeypatch.setattr(index, "_TIMEOUT", 0.05)
    make(tmp_path)
    store.Index(tmp_path).runs()
    db = sqlite3.connect(tmp_path / "index.sqlite", isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    make(tmp_path)
    assert len(store.Index(tmp_path).runs()) == 2
    db.close()
    assert (tmp_path / "index.sqlite").exists()


def test_a_damaged_run_is_listed_as_damaged(tmp_path):
    run = make(tmp_path)
    (run.folder / "manifest.json").write_text("{")
    other = make(tmp_path)
    (other.folder / "manifest.json").unlink()
    assert [row.status for row in store.Index(tmp_path).runs()] == ["damaged", "damaged"]


def test_other_folders_and_odd_texts_do_not_disturb(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "readme.txt").write_text("x")
    make(tmp_path, kind="\ud800 [red]")
    (row,) = store.Index(tmp_path).runs()
    assert "[red]" in row.kind


def _make_and_list(runs_dir, queue):
    try:
        ids = []
        for _ in range(6):
            run = make(runs_dir, steps=1)
            ids.append(run.id)
            rows = {row.id: row for row in store.Index(runs_dir).runs()}
            assert rows[run.id].steps == 1
        queue.put(ids)
    except BaseException as error:
        queue.put(repr(error))
        raise


def test_processes_that_create_and_list_at_once_do_not_disturb_each_other(tmp_path):
    queue = FORK.Queue()
    workers = [FORK.Process(target=_make_and_list, args=(tmp_path, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    made = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert all(isinstance(ids, list) for ids in made), made
    flat = sorted(id for ids in made for id in ids)
    assert len(set(flat)) == 18
    assert [row.id for row in store.Index(tmp_path).runs()] == flat


def _add_episodes(folder, queue):
    run = store.Run.open(folder)
    for _ in range(5):
        with run.new_episode() as writer:
            writer.append_step({})
    queue.put("done")


def test_processes_that_add_episodes_to_one_run_get_numbers_of_their_own(tmp_path):
    run = store.Run.create(tmp_path, kind="shared")
    queue = FORK.Queue()
    workers = [FORK.Process(target=_add_episodes, args=(run.folder, queue)) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert [queue.get(timeout=60) for _ in workers] == ["done"] * 3
    for worker in workers:
        worker.join()
    assert run.episode_ids() == [f"{number:05d}" for number in range(15)]
    assert run.verify() == []


def test_the_public_names_of_the_room_are_documented():
    assert all(re.search(r"\w", getattr(store, name).__doc__ or "") for name in store.__all__ if name != "FORMAT")
