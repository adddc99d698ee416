"""The scripted environment puts an episode away as JSON and goes on from it, here or elsewhere."""

import json

import pytest

import sonde
from sonde import testing
from sonde.agents import environment
from sonde.core import errors


def answer(text):
    return sonde.LLMResponse(data=[sonde.TextData(text)], usage=sonde.Usage(1, 1))


def contents(step):
    return [message["content"] for message in step.observation.messages]


async def test_a_snapshot_taken_midway_is_taken_up_by_another_environment():
    env, other = testing.ScriptedEnvironment(), testing.ScriptedEnvironment()
    await env.reset()
    now = await env.step(answer("Look at the traceback."))
    kept = json.loads(json.dumps(env.snapshot()))
    restored = await other.restore(kept)
    assert contents(restored) == contents(now)
    assert (restored.step_type, restored.reward, restored.discount) == (now.step_type, now.reward, now.discount)
    assert restored.observation.messages == now.observation.messages
    ids = [step.observation.metadata["episode_id"] for step in (restored, now)]
    assert len(set(ids)) == 2, "what goes on elsewhere is an episode of its own"
    ends = [await env.step(answer("int() fails.")), await other.step(answer("int() fails."))]
    assert contents(ends[0]) == contents(ends[1])
    assert (await other.reset()).observation.metadata["task_id"] == "missing-file"


async def test_a_snapshot_is_not_changed_by_what_comes_after_it():
    env = testing.ScriptedEnvironment()
    await env.reset()
    kept = env.snapshot()
    await env.step(answer("x"))
    assert kept["replies"] == []
    restored = await env.restore(kept)
    assert restored.first()
    assert restored.reward is None
    assert env.step_count == 0


async def test_a_snapshot_out_of_place_is_refused():
    env = testing.ScriptedEnvironment()
    with pytest.raises(errors.EpisodeError, match=r"call reset\(\) before snapshot"):
        env.snapshot()
    await env.reset()
    kept = env.snapshot()
    small_talk = testing.ScriptedEnvironment(testing.scripted_tasks()[2:])
    with pytest.raises(errors.EpisodeError, match="'fix-parser', which this environment has not"):
        await small_talk.restore(kept)
    with pytest.raises(errors.EpisodeError, match="4 replies"):
        await env.restore({**kept, "replies": ["x"] * 4})


async def test_one_task_can_be_chosen_by_its_id_with_the_settings_kept():
    env = testing.ScriptedEnvironment(max_output_tokens=5)
    one = env.with_task("small-talk")
    step = await one.reset()
    assert step.observation.metadata["task_id"] == "small-talk"
    assert step.observation.max_output_tokens == 5
    assert one.task_ids == ["small-talk"]
    with pytest.raises(ValueError, match="did you mean 'small-talk'"):
        env.with_task("smalltalk")
    assert isinstance(env, environment.Snapshots)
