"""Playing episodes, plainly and inside an event loop; reading and comparing them; the scripted environment."""

import asyncio
import inspect

import pytest
import torch

import sonde
from sonde import testing
from sonde.core import errors

RESID = "blocks.3.hook_resid_post"


@pytest.fixture
def client(model):
    return sonde.HookedTransformerLLMClient(model, generation_kwargs={"temperature": 1.0})


def environment(index=0):
    return testing.ScriptedEnvironment([testing.scripted_tasks()[index]], max_output_tokens=6)


def test_an_episode_is_played_to_its_end_and_returned_with_its_reward(model, client):
    seen = []
    trajectory = sonde.run_episode(environment(), client, on_step=lambda step, action, now: seen.append((step, now)))
    assert len(trajectory) == 4
    assert [step for step, _ in seen] == [0, 1, 2, 3]
    assert trajectory.reward == pytest.approx(sum(now.reward for _, now in seen))
    assert [note["reward"] for note in trajectory.step_metadata] == [now.reward for _, now in seen]
    assert trajectory.get_activation(3, "blocks.5.hook_resid_post").shape == (1, 1, 32)
    assert float(trajectory) == trajectory.reward
    assert trajectory - trajectory == 0.0
    assert 1.0 - trajectory == pytest.approx(1.0 - trajectory.reward)


async def test_inside_an_event_loop_the_same_call_is_awaited(model, client):
    episode = sonde.run_episode(environment(), client, max_steps=2)
    assert inspect.iscoroutine(episode)
    inside = await episode
    assert len(inside) == 2
    outside = await asyncio.to_thread(lambda: sonde.run_episode(environment(), client, max_steps=2))
    assert [outside.generated(step) for step in range(2)] == [inside.generated(step) for step in range(2)]


def test_a_capture_in_force_and_one_that_is_not_both_record(model, client):
    with sonde.ActivationCapture(model, RESID) as capture:
        inside = sonde.run_episode(environment(), client, capture)
    outside = sonde.run_episode(environment(), client, sonde.ActivationCapture(model, RESID))
    assert len(inside) == len(outside) == 4
    assert torch.allclose(inside.get_activation(3, RESID), outside.get_activation(3, RESID), atol=1e-4)


def test_an_episode_under_a_manager_differs_and_leaves_the_model_alone(model, client):
    manager = sonde.InterventionManager(model)
    manager.add_intervention(RESID, sonde.create_zero_ablation_hook(), apply_at_steps=[1])
    base = sonde.run_episode(environment(), client)
    changed = sonde.run_episode_with_intervention(environment(), client, manager)
    again = sonde.run_episode(environment(), client)
    assert base.generated(0) == changed.generated(0)
    assert base.generated(1) != changed.generated(1)
    assert [base.generated(step) for step in range(4)] == [again.generated(step) for step in range(4)]
    with manager:  # in force already: applied once, not twice
        nested = sonde.run_episode_with_intervention(environment(), client, manager)
    assert [nested.generated(step) for step in range(4)] == [changed.generated(step) for step in range(4)]
    with pytest.raises(TypeError):
        sonde.run_episode_with_intervention(environment(), client, manager, maxsteps=2)


def test_an_episode_of_a_chosen_task_is_recorded_whole(model, client):
    tasks = testing.scripted_tasks()
    trajectory = sonde.run_and_cache_episode(environment(), client, tasks[2], "blocks.*.hook_resid_post", max_steps=2)
    assert len(trajectory) == 2
    assert len(trajectory.site_names) == 6
    assert "Name a colour." in model.tokenizer.decode(trajectory.tokens(0))
    assert len(sonde.run_and_cache_episode(environment(), client, max_steps=1).site_names) > 6


def test_a_request_that_fails_leaves_no_step_open(model):
    class Failing:
        def __init__(self):
            self.model = model

        async def __call__(self, request):
            raise ZeroDivisionError

    with sonde.ActivationCapture(model, RESID) as capture:
        with pytest.raises(ZeroDivisionError):
            sonde.run_episode(environment(), Failing(), capture)
        sonde.run_episode(environment(), sonde.HookedTransformerLLMClient(model), capture, max_steps=1)
    assert len(capture.get_trajectory()) == 1


def test_trajectories_are_compared_row_by_row(model, client, llama):
    other = sonde.HookedTransformerLLMClient(llama)
    trajectories = [
        sonde.run_and_cache_episode(environment(2), one, hook_filter="blocks.*.hook_resid_post", max_steps=2)
        for one in (client, other)
    ]
    table = sonde.compare_trajectories(trajectories)
    assert [row["label"] for row in table.rows] == ["tiny-gpt2", "tiny-llama"]
    assert [len(row["norms"]) for row in table.rows] == [6, 4]
    expected = torch.linalg.vector_norm(trajectories[0].get_activation(1, RESID), dim=-1).mean()
    assert table.rows[0]["norms"][3] == pytest.approx(float(expected), rel=1e-4)
    assert "tiny-llama" in str(table)
    assert len(str(table).splitlines()) == 3
    named = sonde.compare_trajectories(trajectories, labels=["a", "b"])
    assert [row["label"] for row in named.rows] == ["a", "b"]
    with pytest.raises(errors.CaptureError, match="nothing to compare"):
        sonde.compare_trajectories([])


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("```bash\nsed -i s/a/b/ x.py\n```", "edit"),
        ("echo done >> notes.txt", "edit"),
        ("--- a/x.py\n+++ b/x.py", "edit"),
        (">>> x = 1", "message"),
        ("```bash\npytest -q\n```", "test"),
        ("$ cat src/parser.py", "read"),
        ("$ make", "command"),
        ("Is it alive?", "question"),
        ("I am done.", "message"),
    ],
)
def test_actions_are_told_apart(text, kind):
    assert sonde.classify_action(text) == kind
    usage = sonde.Usage(1, 1)
    assert sonde.classify_action(sonde.LLMResponse(data=[sonde.TextData(text)], usage=usage)) == kind


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ValueError: bad", True),
        ("Error: no such thing", True),
        ("Traceback (most recent call last):", True),
        ("bash: x: No such file or directory", True),
        ("FAILED tests/test_x.py", True),
        ("gcc: error: x", True),
        ("All tests pass.", False),
        ("There was no error at all.", False),
        ("Errors are human", False),
    ],
)
def test_errors_on_the_screen_are_seen(text, shown):
    assert sonde.check_for_errors(text) == shown
    assert sonde.check_for_errors(sonde.LLMRequest(messages=[{"role": "user", "content": text}])) == shown
    parts = [{"type": "text", "text": text}]
    assert sonde.check_for_errors(sonde.LLMRequest(messages=[{"role": "user", "content": parts}])) == shown


def test_file_names_are_found_in_order_each_once():
    text = "Look at src/a.py, then /repo/pkg/b.json and src/a.py again; see README.md (not example.com)."
    assert sonde.extract_file_context(text) == ["src/a.py", "/repo/pkg/b.json", "README.md"]
    assert sonde.extract_file_context(sonde.LLMRequest(messages=[])) == []


def test_success_is_a_mark_or_a_positive_reward():
    good, bad, _ = testing.scripted_tasks()
    assert (sonde.is_success(good), sonde.is_success(bad)) == (True, False)
    step = sonde.TimeStep(sonde.StepType.LAST, 0.5, 0.0, None)
    assert sonde.is_success(step)
    assert not sonde.is_success(sonde.TimeStep(sonde.StepType.LAST, None, 0.0, None))


def answer(text):
    return sonde.LLMResponse(data=[sonde.TextData(text)], usage=sonde.Usage(1, 1))


async def test_observations_are_snapshots_that_nothing_changes():
    env = testing.ScriptedEnvironment(testing.scripted_tasks()[:1])
    steps = [await env.reset()]
    while not steps[-1].last():
        steps.append(await env.step(answer("aeb")))
    assert [len(step.observation.messages) for step in steps] == [1, 3, 5, 7, 8]
    assert [step.step_type.value for step in steps] == ["first", "mid", "mid", "mid", "last"]
    assert [step.reward for step in steps[1:]] == [pytest.approx(2 / 3)] * 4
    assert steps[0].reward is None
    with pytest.raises(TypeError):
        steps[0].observation.messages[0]["content"] = "changed"
    with pytest.raises(TypeError):
        steps[0].observation.metadata["task_id"] = "changed"
    with pytest.raises(AttributeError):
        steps[0].observation.messages.append({})
    assert len({step.observation.metadata["episode_id"] for step in steps}) == 1


async def test_a_reset_in_the_middle_starts_the_next_episode_afresh():
    env = testing.ScriptedEnvironment(testing.scripted_tasks()[:2])
    first = await env.reset()
    await env.step(answer("x"))
    second = await env.reset()
    assert (first.observation.metadata["task_id"], second.observation.metadata["task_id"]) == (
        "fix-parser",
        "missing-file",
    )
    assert second.first()
    assert len(second.observation.messages) == 1
    third = await env.reset()
    assert third.observation.metadata["task_id"] == "fix-parser"
    assert third.observation.metadata["episode_id"] != first.observation.metadata["episode_id"]


async def test_a_step_outside_an_episode_is_an_error():
    async with testing.ScriptedEnvironment() as env:
        with pytest.raises(errors.EpisodeError, match=r"call reset\(\) before step"):
            await env.step(answer("x"))
        step = await env.reset()
        while not step.last():
            step = await env.step(answer("x"))
        with pytest.raises(errors.EpisodeError):
            await env.step(answer("x"))
    assert isinstance(env, sonde.Environment)
    with pytest.raises(ValueError, match="at least one task"):
        testing.ScriptedEnvironment([])


def test_the_reward_is_a_property_of_the_text():
    assert testing.vowel_share("abc") == pytest.approx(1 / 3)
    assert testing.vowel_share("123") == 0.0
