"""Trajectories on disk."""

import json

import numpy as np
import pytest
import torch

import sonde
from sonde import store
from sonde.core import errors

RESID = "blocks.3.hook_resid_post"
SITES = [RESID, "blocks.2.attn.hook_pattern", "hook_embed"]


async def record(model, kit, steps=3, **options):
    model.pool.entries.clear()
    with sonde.ActivationCapture(model, SITES, **options) as capture:
        await kit.episode(model, steps, capture=capture)
        capture.record_step_metadata({"note": "last"})
        capture.reward = 0.5
    return capture.get_trajectory()


def assert_equal(left, right):
    assert len(left) == len(right)
    assert left.site_names == right.site_names
    assert left.reward == right.reward
    assert left.step_metadata == right.step_metadata
    for step in range(len(left)):
        assert torch.equal(left.tokens(step), right.tokens(step))
        assert torch.equal(left.positions(step), right.positions(step))
        assert left.generated(step) == right.generated(step)
        assert left.prompt_length(step) == right.prompt_length(step)
        for name in left.site_names:
            a, b = left.get_activation(step, name), right.get_activation(step, name)
            assert a.dtype == b.dtype
            assert torch.equal(a, b), (step, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
async def test_what_was_saved_is_loaded_to_the_bit(model, kit, tmp_path, dtype):
    trajectory = await record(model, kit, dtype=dtype)
    assert trajectory.save(tmp_path / "a" / "episode") == tmp_path / "a" / "episode"
    assert_equal(sonde.TrajectoryActivations.load(tmp_path / "a" / "episode"), trajectory)


@pytest.mark.parametrize("positions", ["last_prompt", "generated", (0, -1)], ids=str)
async def test_filtered_trajectories_are_loaded_to_the_bit_too(model, kit, tmp_path, positions):
    trajectory = await record(model, kit, positions=positions)
    trajectory.save(tmp_path / "episode")
    assert_equal(sonde.TrajectoryActivations.load(tmp_path / "episode"), trajectory)


async def test_streaming_into_a_folder_gives_what_memory_would(model, kit, tmp_path):
    memory = await record(model, kit)
    streamed = await record(model, kit, folder=tmp_path / "episode")
    assert_equal(sonde.TrajectoryActivations.load(tmp_path / "episode"), memory)
    assert_equal(streamed, memory)


async def test_a_step_can_be_read_as_soon_as_it_has_ended(model, kit, tmp_path):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=3)
    with sonde.ActivationCapture(model, RESID, folder=tmp_path / "episode") as capture:
        messages = []
        for step in range(3):
            messages = [*messages, {"role": "user", "content": f"turn {step}"}]
            capture.start_step()
            response = await client(sonde.LLMRequest(messages=messages))
            capture.end_step()
            messages = [*messages, {"role": "assistant", "content": response.text}]
            other = sonde.TrajectoryActivations.load(tmp_path / "episode")
            assert len(other) == step + 1
            assert torch.equal(other.get_activation(step, RESID), capture.step_activations[step][RESID])
            capture.record_step_metadata({"late": step})
            assert sonde.TrajectoryActivations.load(tmp_path / "episode").step_metadata[step] == {"late": step}
        with pytest.raises(errors.CaptureError, match="leave out clear"):
            capture.clear()


async def test_a_shorter_save_over_a_longer_one_leaves_nothing_stale(model, kit, tmp_path):
    (await record(model, kit, steps=4)).save(tmp_path / "episode")
    short = await record(model, kit, steps=1)
    short.save(tmp_path / "episode")
    assert_equal(sonde.TrajectoryActivations.load(tmp_path / "episode"), short)
    lines = (tmp_path / "episode" / "steps.jsonl").read_text().splitlines()
    assert len(lines) == 1


async def test_a_trajectory_can_be_saved_over_the_folder_it_was_loaded_from(model, kit, tmp_path):
    trajectory = await record(model, kit)
    trajectory.save(tmp_path / "episode")
    loaded = sonde.TrajectoryActivations.load(tmp_path / "episode")
    loaded.metadata["note"] = "mine"
    loaded.save(tmp_path / "episode")
    again = sonde.TrajectoryActivations.load(tmp_path / "episode")
    assert_equal(again, trajectory)
    assert again.metadata["note"] == "mine"


async def test_metadata_that_is_not_json_is_kept_as_a_marked_repr(model, kit, tmp_path):
    trajectory = await record(model, kit)
    trajectory.metadata["object"] = {1, 2}
    trajectory.steps[0].metadata["tensor"] = torch.tensor([1.5])
    trajectory.save(tmp_path / "episode")
    loaded = sonde.TrajectoryActivations.load(tmp_path / "episode")
    assert loaded.metadata["object"] == {"__repr__": "{1, 2}", "__type__": "set"}
    assert loaded.step_metadata[0]["tensor"]["__value__"] == [1.5]


async def test_a_reward_of_any_number_type_survives(model, kit, tmp_path):
    trajectory = await record(model, kit, steps=1)
    for number, reward in enumerate((np.float32(0.25), torch.tensor(0.25), 1, None)):
        trajectory.reward = reward
        trajectory.save(tmp_path / str(number))
        assert sonde.TrajectoryActivations.load(tmp_path / str(number)).reward == (None if reward is None else reward)


async def test_an_empty_trajectory_can_be_saved(model, tmp_path):
    with sonde.ActivationCapture(model, RESID) as capture:
        pass
    capture.get_trajectory().save(tmp_path / "episode")
    assert len(sonde.TrajectoryActivations.load(tmp_path / "episode")) == 0


async def test_a_damaged_byte_is_named(model, kit, tmp_path):
    trajectory = await record(model, kit)
    trajectory.save(tmp_path / "episode")
    data = tmp_path / "episode" / "activations.safetensors"
    content = bytearray(data.read_bytes())
    content[-100] ^= 1
    data.write_bytes(content)
    (found,) = store.verify_episode(tmp_path / "episode")
    assert found.file.name == "activations.safetensors"
    assert found.array in {*trajectory.site_names, "records.token", "records.position", "records.keys"}
    steps = tmp_path / "episode" / "steps.jsonl"
    steps.write_bytes(steps.read_bytes().replace(b'"prompt_length"', b'"prompt_lenght"', 1))
    with pytest.raises(errors.DamagedError, match=r"steps\.jsonl"):
        sonde.TrajectoryActivations.load(tmp_path / "episode")


def test_a_resumed_episode_whose_steps_come_out_otherwise_is_refused(model, tmp_path):
    with sonde.ActivationCapture(model, RESID, folder=tmp_path / "episode") as capture:
        with capture.step():
            model.generate("hello", max_new_tokens=2)
        capture.suspend()
    again = sonde.ActivationCapture(model, RESID, folder=tmp_path / "episode")
    assert again.resume() == 1
    with again, pytest.raises(errors.CaptureError, match="6 recorded tokens where running its steps again gave 9"):  # noqa: SIM117
        with again.step():
            model.generate("hello you", max_new_tokens=1)


def test_an_episode_that_is_no_trajectory_is_refused(tmp_path):
    with store.EpisodeWriter.create(tmp_path / "episode", metadata={"format": "other"}) as writer:
        writer.append_step({"x": 1})
    with pytest.raises(errors.StoreError, match="no trajectory: its format is 'other'"):
        sonde.TrajectoryActivations.load(tmp_path / "episode")
    with pytest.raises(errors.StoreError):
        sonde.TrajectoryActivations.load(tmp_path / "nothing")


async def test_the_folder_is_plain_json_and_safetensors(model, kit, tmp_path):
    (await record(model, kit)).save(tmp_path / "episode")
    line = json.loads((tmp_path / "episode" / "steps.jsonl").read_text().splitlines()[0])
    assert line["step"]["calls"][0]["records"][0][0] == 0
    assert {path.suffix for path in (tmp_path / "episode").iterdir()} == {".json", ".jsonl", ".safetensors"}


async def test_a_folder_that_is_taken_is_refused_before_anything_runs(model, kit, tmp_path):
    await record(model, kit, steps=1, folder=tmp_path / "episode")
    with (
        pytest.raises(errors.StoreError, match="episode"),
        sonde.ActivationCapture(model, RESID, folder=tmp_path / "episode"),
    ):
        pass
    assert len(sonde.TrajectoryActivations.load(tmp_path / "episode")) == 1


def test_a_note_made_after_a_step_ended_is_durable_and_no_step_of_its_own(model, tmp_path):
    run = store.Run.create(tmp_path, kind="test")
    folder = run.folder / "episodes" / "noted"
    with sonde.ActivationCapture(model, "blocks.0.hook_resid_post", folder=folder) as capture:
        for step in range(2):
            capture.start_step()
            model.generate("hello", max_new_tokens=2)
            capture.end_step()
            capture.record_step_metadata({"number": step})
            assert sonde.TrajectoryActivations.load(folder).step_metadata[step] == {"number": step}
            assert [row.steps for row in store.Index(tmp_path).runs()] == [step + 1]
    assert len(sonde.TrajectoryActivations.load(folder)) == 2
    assert [row.steps for row in store.Index(tmp_path).runs()] == [2]
