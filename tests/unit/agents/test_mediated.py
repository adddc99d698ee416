"""Any agent becomes an environment: its requests are observed, answers are actions, its result is the reward."""

import asyncio
import threading
import time

import pytest

from sonde import testing
from sonde.agents import mediated
from sonde.agents.code import bash_agent
from sonde.core import errors, records

TASKS = testing.scripted_tasks()


def request(text, **settings):
    return records.LLMRequest(messages=[{"role": "user", "content": text}], **settings)


def last_of(now):
    return now.observation.messages[-1]["content"]


async def counting(client, task):
    """Asks three times and returns how many answers said yes."""
    answers = [await client(request(f"{task.id} {number}")) for number in range(3)]
    return sum(answer.text == "yes" for answer in answers)


def counting_in_thread(client, task):
    answers = [client.call(request(f"{task.id} {number}")) for number in range(3)]
    return sum(answer.text == "yes" for answer in answers)


BOTH = pytest.mark.parametrize(
    ("agent", "in_thread"), [(counting, False), (counting_in_thread, True)], ids=["async", "thread"]
)


@BOTH
async def test_requests_are_observed_answers_are_actions_and_the_result_is_the_reward(agent, in_thread):
    async with mediated.MediatedEnvironment(agent, TASKS, in_thread=in_thread) as env:
        now = await env.reset()
        assert (now.first(), last_of(now)) == (True, "fix-parser 0")
        now = await env.step(bash_agent.answer("yes"))
        assert (now.mid(), now.reward, last_of(now)) == (True, 0.0, "fix-parser 1")
        now = await env.step(bash_agent.answer("no"))
        now = await env.step(bash_agent.answer("yes"))
        assert (now.last(), now.reward, now.discount, last_of(now)) == (True, 2.0, 0.0, "yes")
        with pytest.raises(errors.EpisodeError, match="reset"):
            await env.step(bash_agent.answer("yes"))
        assert last_of(await env.reset()) == "missing-file 0"


@BOTH
async def test_a_second_reset_ends_the_agent_and_starts_anew(agent, in_thread):
    before = threading.active_count()
    async with mediated.MediatedEnvironment(agent, TASKS[:1], in_thread=in_thread) as env:
        await env.reset()
        await env.step(bash_agent.answer("yes"))
        assert last_of(await env.reset()) == "fix-parser 0"
    assert threading.active_count() == before


async def test_observations_are_snapshots_of_what_the_agent_asked():
    async def agent(client, task):
        messages = [{"role": "user", "content": [{"type": "text", "text": "one"}]}]
        asked = asyncio.ensure_future(
            client(records.LLMRequest(messages=messages, temperature=0.5, system_prompt="rules", metadata={"a": 1}))
        )
        await asyncio.sleep(0)
        messages[0]["content"][0]["text"] = "changed"
        messages.append({"role": "user", "content": "two"})
        await asked

    async with mediated.MediatedEnvironment(agent, TASKS) as env:
        now = await env.reset()
        await asyncio.sleep(0.01)
        assert len(now.observation.messages) == 1
        assert now.observation.messages[0]["content"][0]["text"] == "one"
        assert (now.observation.temperature, now.observation.system_prompt) == (0.5, "rules")
        assert now.observation.metadata["info"]["metadata"] == {"a": 1}
        now = await env.step(bash_agent.answer("x"))
        assert (now.last(), now.reward) == (True, 0.0)


async def test_concurrent_calls_are_handed_out_one_after_another():
    async def agent(client, task):
        answers = await asyncio.gather(*(client(request(f"q{number}")) for number in range(3)))
        return float([answer.text for answer in answers] == ["a q0", "a q1", "a q2"])

    async with mediated.MediatedEnvironment(agent, TASKS) as env:
        now = await env.reset()
        seen = []
        while not now.last():
            seen.append(last_of(now))
            now = await env.step(bash_agent.answer(f"a {last_of(now)}"))
        assert seen == ["q0", "q1", "q2"]
        assert now.reward == 1.0


async def test_a_call_that_the_agent_gives_up_is_not_handed_out():
    async def agent(client, task):
        waiting = asyncio.ensure_future(client(request("given up")))
        first = asyncio.ensure_future(client(request("wanted")))
        await asyncio.sleep(0)
        waiting.cancel()
        return float((await first).text == "yes")

    async with mediated.MediatedEnvironment(agent, TASKS) as env:
        now = await env.reset()
        if last_of(now) == "given up":  # handed out before it was given up: the answer goes nowhere
            now = await env.step(bash_agent.answer("lost"))
        assert last_of(now) == "wanted"
        now = await env.step(bash_agent.answer("yes"))
        assert (now.last(), now.reward) == (True, 1.0)


async def test_an_agent_that_fails_is_an_error_that_names_task_and_cause():
    async def agent(client, task):
        await client(request("x"))
        raise KeyError("lost")

    async with mediated.MediatedEnvironment(agent, TASKS) as env:
        await env.reset()
        with pytest.raises(errors.EpisodeError, match="'fix-parser' failed: KeyError") as caught:
            await env.step(bash_agent.answer("x"))
        assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(errors.EpisodeError, match="no episode is under way"):
            await env.step(bash_agent.answer("x"))
        assert (await env.reset()).first()


def failing_thread(client, task):
    raise RuntimeError("at once")


async def failing(client, task):
    raise RuntimeError("at once")


@pytest.mark.parametrize(("agent", "in_thread"), [(failing, False), (failing_thread, True)], ids=["async", "thread"])
async def test_an_agent_that_fails_before_its_first_call_fails_the_reset(agent, in_thread):
    async with mediated.MediatedEnvironment(agent, TASKS, in_thread=in_thread) as env:
        with pytest.raises(errors.EpisodeError, match="RuntimeError: at once"):
            await env.reset()
        with pytest.raises(errors.EpisodeError, match="no episode is under way"):
            await env.step(bash_agent.answer("x"))


async def test_an_agent_that_asks_nothing_is_over_at_reset():
    async def agent(client, task):
        return 0.75

    async with mediated.MediatedEnvironment(agent, TASKS) as env:
        now = await env.reset()
        assert (now.last(), now.reward, now.discount) == (True, 0.75, 0.0)
        with pytest.raises(errors.EpisodeError, match="no episode is under way"):
            await env.step(bash_agent.answer("x"))
        assert (await env.reset()).observation.metadata["task_id"] == "missing-file"


async def test_a_result_that_is_no_reward_is_an_error():
    async def agent(client, task):
        return "great"

    async with mediated.MediatedEnvironment(agent, TASKS) as env:
        with pytest.raises(errors.EpisodeError, match="returned 'great'"):
            await env.reset()


async def test_an_agent_that_ignores_being_cancelled_once_ends_all_the_same():
    ended = asyncio.Event()

    async def agent(client, task):
        try:
            for _ in range(3):
                try:
                    await client(request("x"))
                except asyncio.CancelledError:
                    continue
                await asyncio.sleep(60)
        finally:
            ended.set()

    env = mediated.MediatedEnvironment(agent, TASKS)
    await env.reset()
    await env.close()
    assert ended.is_set()


async def test_an_agent_in_a_thread_that_catches_every_exception_ends_at_close():
    ended = threading.Event()

    def agent(client, task):
        try:
            while True:
                try:
                    client.call(request("x"))
                except Exception:
                    continue
        finally:
            ended.set()

    env = mediated.MediatedEnvironment(agent, TASKS, in_thread=True)
    await env.reset()
    await env.step(bash_agent.answer("x"))
    await env.close()
    assert ended.is_set()


async def test_a_thread_that_does_not_end_is_reported(monkeypatch):
    monkeypatch.setattr(mediated, "GRACE", 0.2)
    release = threading.Event()

    def agent(client, task):
        try:
            client.call(request("x"))
        finally:
            release.wait(30)

    env = mediated.MediatedEnvironment(agent, TASKS, in_thread=True)
    await env.reset()
    with pytest.raises(errors.EpisodeError, match="did not end"):
        await env.close()
    release.set()
    for thread in threading.enumerate():
        if thread.name == "sonde-agent":
            await asyncio.to_thread(thread.join, 30)
            assert not thread.is_alive()


async def test_the_step_limit_cuts_an_endless_agent_off():
    ended = asyncio.Event()

    async def agent(client, task):
        try:
            while True:
                await client(request("more"))
        finally:
            ended.set()

    async with mediated.MediatedEnvironment(agent, TASKS, step_limit=2) as env:
        await env.reset()
        assert (await env.step(bash_agent.answer("x"))).mid()
        now = await env.step(bash_agent.answer("x"))
        assert (now.last(), now.reward, now.discount) == (True, 0.0, 1.0)
        assert ended.is_set()


async def test_an_agent_that_returns_at_the_step_limit_gets_its_reward():
    async with mediated.MediatedEnvironment(counting, TASKS, step_limit=3) as env:
        now = await env.reset()
        while not now.last():
            now = await env.step(bash_agent.answer("yes"))
        assert (now.reward, now.discount) == (3.0, 0.0)


async def test_a_blocking_call_in_the_event_loop_is_refused():
    async def agent(client, task):
        client.call(request("x"))

    async with mediated.MediatedEnvironment(agent, TASKS) as env:
        with pytest.raises(errors.EpisodeError, match="blocks"):
            await env.reset()


async def test_a_reset_that_waits_for_a_slow_agent_can_be_interrupted():
    started = asyncio.Event()

    async def agent(client, task):
        started.set()
        await asyncio.sleep(60)

    env = mediated.MediatedEnvironment(agent, TASKS)
    waiting = asyncio.ensure_future(env.reset())
    await started.wait()
    await env.close()
    with pytest.raises(errors.EpisodeError, match="reset or closed"):
        await waiting


async def test_environments_made_from_one_do_not_share_an_agent():
    env = mediated.MediatedEnvironment(counting_in_thread, TASKS, in_thread=True)
    async with env.with_task("fix-parser") as one, env.with_task("small-talk") as two:
        assert [last_of(await one.reset()), last_of(await two.reset())] == ["fix-parser 0", "small-talk 0"]
        assert last_of(await two.step(bash_agent.answer("yes"))) == "small-talk 1"
        assert last_of(await one.step(bash_agent.answer("yes"))) == "fix-parser 1"


async def test_the_event_loop_goes_on_while_a_thread_works():
    def agent(client, task):
        time.sleep(0.2)
        return 1.0

    ticks = 0
    async with mediated.MediatedEnvironment(agent, TASKS, in_thread=True) as env:
        waiting = asyncio.ensure_future(env.reset())
        while not waiting.done():
            ticks += 1
            await asyncio.sleep(0.01)
    assert waiting.result().last()
    assert ticks > 1


async def test_what_a_thread_waits_for_on_the_loop_is_cancelled_at_close():
    ended = threading.Event()
    cancelled = asyncio.Event()

    async def slow():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def soon(value):
        return value

    def agent(client, task):
        try:
            client.call(request(client.wait(soon("x"))))
            client.wait(slow())
        finally:
            ended.set()

    async with mediated.MediatedEnvironment(agent, TASKS, in_thread=True) as env:
        now = await env.reset()
        assert last_of(now) == "x"
        step = asyncio.ensure_future(env.step(bash_agent.answer("x")))
        await asyncio.sleep(0.1)
        await env.close()
        with pytest.raises(errors.EpisodeError, match="reset or closed"):
            await step
    assert cancelled.is_set()
    assert ended.is_set()
