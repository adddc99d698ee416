"""Episodes are written step by step, read in any state, continued after a crash, and never mixed with old ones."""

import errno
import json
import multiprocessing
import os
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sonde import store
from sonde.core import errors
from sonde.store import documents, tensors


def array(*shape, dtype="f4"):
    return store.Array.from_numpy(np.random.default_rng(0).normal(size=shape).astype(dtype))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "ü/[]"]), st.integers(0, 3), max_size=3), max_size=6))
def test_open_resumed_and_closed_episodes_hold_the_same(tmp_path, plan):
    folder = tmp_path / "e"
    expected = {}
    writer = store.EpisodeWriter.create(folder, metadata={"plan": plan}, overwrite=True)
    for number, counts in enumerate(plan):
        values = {name: np.full((count, 2), number, "f4") for name, count in counts.items()}
        writer.append_step({"n": number}, {name: store.Array.from_numpy(value) for name, value in values.items()})
        for name, value in values.items():
            expected[name] = np.concatenate([expected[name], value]) if name in expected else value
            assert writer.rows(name) == len(expected[name])
        if number % 2:
            writer.abort()
            writer = store.EpisodeWriter.resume(folder)
    before = store.EpisodeReader.open(folder)
    writer.close({"reward": 1})
    for reader in (before, store.EpisodeReader.open(folder)):
        assert reader.metadata == {"plan": plan}
        assert [step["n"] for step in reader.steps] == list(range(len(plan)))
        assert reader.names == sorted(expected)
        assert reader.verify() == []
        for name, value in expected.items():
            np.testing.assert_array_equal(reader.array(name).to_numpy(), value)
            for step, counts in enumerate(plan):
                assert len(reader.rows(name, step)) == counts.get(name, 0)
                part = reader.rows(name, step)
                assert (value[part.start : part.stop] == step).all()


def test_status_reward_and_summary_are_kept(tmp_path):
    with store.EpisodeWriter.create(tmp_path / "e") as writer:
        writer.append_step({"a": 1})
        assert store.EpisodeReader.open(tmp_path / "e").status == "open"
        writer.close({"reward": np.float32(0.5), "won": True, "odd": object})
    reader = store.EpisodeReader.open(tmp_path / "e")
    assert (reader.status, reader.reward, reader.summary["won"]) == ("closed", 0.5, True)
    assert reader.summary["odd"]["__repr__"] == "<class 'object'>"


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "much"])
def test_odd_rewards_do_no_harm(tmp_path, reward):
    writer = store.EpisodeWriter.create(tmp_path / "e")
    writer.close({"reward": reward})
    found = store.EpisodeReader.open(tmp_path / "e").reward
    assert repr(found) == (repr(reward) if isinstance(reward, float) else "None")


def test_a_closed_folder_holds_exactly_three_files(closed):
    assert sorted(path.name for path in closed.iterdir()) == ["activations.safetensors", "episode.json", "steps.jsonl"]


def test_rows_that_do_not_fit_are_refused_and_leave_no_trace(tmp_path):
    writer = store.EpisodeWriter.create(tmp_path / "e")
    writer.append_step({}, {"x": array(2, 3)})
    with pytest.raises(
        errors.StoreError, match=r"'x': got F32 rows of shape \(4,\), expected F32 rows of shape \(3,\)"
    ):
        writer.append_step({}, {"y": array(1), "x": array(2, 4)})
    with pytest.raises(errors.StoreError, match="got F16"):
        writer.append_step({}, {"x": array(2, 3, dtype="f2")})
    with pytest.raises(errors.StoreError, match="at least one axis"):
        writer.append_step({}, {"z": array()})
    with pytest.raises(errors.StoreError, match="__metadata__"):
        writer.append_step({}, {"__metadata__": array(1)})
    writer.close()
    reader = store.EpisodeReader.open(tmp_path / "e")
    assert (reader.names, reader.shape("x"), len(reader.steps)) == (["x"], (2, 3), 1)


def test_a_name_that_was_not_recorded_is_answered_with_the_nearest(closed):
    reader = store.EpisodeReader.open(closed)
    with pytest.raises(errors.CaptureError, match="did you mean 'resid'"):
        reader.array("resit")
    with pytest.raises(errors.CaptureError, match="no step 9"):
        reader.rows("resid", 9)


def test_steps_that_are_not_json_are_stored_all_the_same(tmp_path):
    cyclic = []
    cyclic.append(cyclic)
    odd = {"f": float("nan"), "o": object(), "b": b"x", "k": {1: 2}, "c": cyclic, "a": np.arange(3)}
    with store.EpisodeWriter.create(tmp_path / "e", metadata=odd) as writer:
        writer.append_step(odd)
    reader = store.EpisodeReader.open(tmp_path / "e")
    assert reader.steps[0]["a"]["__value__"] == [0, 1, 2]
    assert set(reader.metadata) == set(reader.steps[0]) == set(odd)
    for line in (tmp_path / "e" / "steps.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_a_shorter_episode_over_a_longer_one_leaves_nothing_behind(closed, steps_into):
    with pytest.raises(errors.StoreError, match="overwrite=True"):
        store.EpisodeWriter.create(closed)
    assert len(store.EpisodeReader.open(closed).steps) == 4
    writer = store.EpisodeWriter.create(closed, overwrite=True)
    steps_into(writer, 1)
    assert len(store.EpisodeReader.open(closed).steps) == 1
    writer.close()
    assert store.EpisodeReader.open(closed).shape("resid") == (1, 3)
    assert [path.name for path in closed.parent.iterdir()] == ["closed"]


def test_overwriting_never_deletes_what_is_not_an_episode(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(errors.StoreError, match="not an episode"):
        store.EpisodeWriter.create(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_only_one_writer_at_a_time(tmp_path, steps_into):
    with store.EpisodeWriter.create(tmp_path / "e") as writer:
        steps_into(writer, 1)
        with pytest.raises(errors.StoreError, match="being written"):
            store.EpisodeWriter.resume(tmp_path / "e")
        with pytest.raises(errors.StoreError, match="being written"):
            store.EpisodeWriter.create(tmp_path / "e", overwrite=True)
        steps_into(writer, 1)
    assert len(store.EpisodeReader.open(tmp_path / "e").steps) == 2


def test_a_writer_says_when_it_can_take_no_more_steps(tmp_path, steps_into):
    writer = store.EpisodeWriter.create(tmp_path / "e")
    writer.abort()
    with pytest.raises(errors.StoreError, match=r"aborted.*resume"):
        steps_into(writer, 1)
    writer = store.EpisodeWriter.resume(tmp_path / "e")
    writer.close()
    writer.close()
    with pytest.raises(errors.StoreError, match="closed"):
        steps_into(writer, 1)
    with pytest.raises(errors.StoreError, match="closed"):
        store.EpisodeWriter.resume(tmp_path / "e")


def test_a_block_that_fails_keeps_its_finished_steps(tmp_path, steps_into):
    def play():
        with store.EpisodeWriter.create(tmp_path / "e") as writer:
            steps_into(writer, 2)
            raise RuntimeError("the model exploded")

    with pytest.raises(RuntimeError, match="exploded"):
        play()
    assert len(store.EpisodeReader.open(tmp_path / "e").steps) == 2
    with store.EpisodeWriter.resume(tmp_path / "e") as writer:
        steps_into(writer, 1)
    assert len(store.EpisodeReader.open(tmp_path / "e").steps) == 3


@pytest.mark.parametrize("moment", ["pack", "write", "unlink"])
def test_a_crash_at_any_point_of_closing_leaves_an_episode_that_opens(tmp_path, steps_into, monkeypatch, moment):
    writer = store.EpisodeWriter.create(tmp_path / "e")
    steps_into(writer, 3)
    expected = bytes(store.EpisodeReader.open(tmp_path / "e").array("resid").data)

    def crash(*args, **kwargs):
        raise KeyboardInterrupt

    target = {"pack": (tensors, "pack"), "write": (documents, "write"), "unlink": (type(tmp_path), "unlink")}[moment]
    with monkeypatch.context() as patch:
        patch.setattr(*target, crash)
        with pytest.raises(KeyboardInterrupt):
            writer.close()
    writer.abort()
    reader = store.EpisodeReader.open(tmp_path / "e")
    assert bytes(reader.array("resid").data) == expected
    assert reader.verify() == []
    if moment != "unlink":
        with store.EpisodeWriter.resume(tmp_path / "e") as writer:
            steps_into(writer, 1)
        assert len(store.EpisodeReader.open(tmp_path / "e").steps) == 4


def test_an_interrupt_in_the_middle_of_a_step_takes_the_step_back(tmp_path, steps_into, monkeypatch):
    writer = store.EpisodeWriter.create(tmp_path / "e")
    steps_into(writer, 2)
    with monkeypatch.context() as patch:
        patch.setattr(writer._steps, "append", lambda line: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            steps_into(writer, 1)
    steps_into(writer, 1)
    writer.close()
    reader = store.EpisodeReader.open(tmp_path / "e")
    assert [step["index"] for step in reader.steps] == [0, 1, 2]
    assert reader.verify() == []


def test_a_step_is_synced_to_the_disk_before_it_is_promised(tmp_path, steps_into, monkeypatch):
    writer = store.EpisodeWriter.create(tmp_path / "e")
    folder, synced, fsync = tmp_path / "e", [], os.fsync

    def watch(fd):
        fsync(fd)
        synced.append([(folder / name).stat().st_size for name in ("activations.journal", "steps.jsonl")])

    monkeypatch.setattr(os, "fsync", watch)
    steps_into(writer, 1)
    journal, lines = ((folder / name).stat().st_size for name in ("activations.journal", "steps.jsonl"))
    assert synced == [[journal, 0], [journal, lines]]  # the rows first, then the line that speaks of them


@pytest.mark.parametrize("failing", [0, 1])
def test_a_step_that_could_not_be_synced_is_taken_back(tmp_path, steps_into, monkeypatch, failing):
    writer = store.EpisodeWriter.create(tmp_path / "e")
    steps_into(writer, 2)
    calls, fsync = [], os.fsync

    def full(fd):
        calls.append(fd)
        if len(calls) == failing + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(errors.StoreError, match=r"disk is full.*free some space"):
            steps_into(writer, 1)
    assert len(store.EpisodeReader.open(tmp_path / "e").steps) == 2
    steps_into(writer, 1)
    writer.close()
    assert store.EpisodeReader.open(tmp_path / "e").verify() == []


def test_closing_takes_little_memory_however_long_the_episode(tmp_path):
    block = store.Array.from_numpy(np.ones((256, 1024), "f4"))  # 1 MiB
    writer = store.EpisodeWriter.create(tmp_path / "e")
    for _ in range(24):
        writer.append_step({}, {"x": block})
    tracemalloc.start()
    writer.close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert store.EpisodeReader.open(tmp_path / "e").shape("x") == (24 * 256, 1024)
    assert peak < 4 * tensors.CHUNK


def test_a_reader_sees_whole_steps_while_a_writer_works(tmp_path, steps_into):
    folder = tmp_path / "e"
    writer = store.EpisodeWriter.create(folder)

    def write():
        steps_into(writer, 60)
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    seen = []
    while thread.is_alive() or not seen:
        reader = store.EpisodeReader.open(folder)
        assert [step["index"] for step in reader.steps] == list(range(len(reader.steps)))
        if reader.steps:
            assert reader.array("tokens").shape == (2 * len(reader.steps),)
        assert reader.verify() == []
        seen.append(len(reader.steps))
    thread.join()
    assert seen == sorted(seen)
    assert len(store.EpisodeReader.open(folder).steps) == 60


def test_there_is_no_episode_in_an_empty_folder(tmp_path):
    for open_it in (store.EpisodeReader.open, store.EpisodeWriter.resume):
        with pytest.raises(errors.StoreError, match="no episode"):
            open_it(tmp_path)


def _create(folder, queue):
    try:
        store.EpisodeWriter.create(folder).abort()
        queue.put("made")
    except errors.StoreError:
        queue.put("taken")


def test_two_processes_that_want_one_folder_do_not_both_get_it(tmp_path):
    context = multiprocessing.get_context("fork")
    for number in range(5):
        queue = context.Queue()
        workers = [context.Process(target=_create, args=(tmp_path / str(number), queue)) for _ in range(2)]
        for worker in workers:
            worker.start()
        assert sorted(queue.get(timeout=30) for _ in workers) == ["made", "taken"]
        for worker in workers:
            worker.join()
