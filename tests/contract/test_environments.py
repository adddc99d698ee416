"""Every environment of the package keeps every promise of the public conformance suite."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import sonde
from sonde import testing
from sonde.core import errors


@dataclasses.dataclass(frozen=True)
class Case:
    """One environment, always made the same way, and what is said in it."""

    make: Callable[[], Any]
    replies: Sequence[str]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    without: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Riddle:
    """A task for an agent."""

    id: str
    text: str


RIDDLES = [Riddle("sea", "What is blue?"), Riddle("grass", "What is green?"), Riddle("snow", "What is white?")]


async def guesser(client, task):
    """Asks twice, and is rewarded for the second answer."""
    messages = [{"role": "user", "content": task.text}]
    for _ in range(2):
        response = await client(sonde.LLMRequest(messages=messages, system_prompt="Guess."))
        messages += [{"role": "assistant", "content": response.text}, {"role": "user", "content": "Sure?"}]
    return float(len(response.text))


def blocking_guesser(client, task):
    """The same for a thread of its own."""
    first = client.call(sonde.LLMRequest(messages=[{"role": "user", "content": task.text}]))
    second = client.call(sonde.LLMRequest(messages=[{"role": "user", "content": f"{task.text} Not {first.text}."}]))
    return float(len(second.text))


def scripted():
    return testing.ScriptedEnvironment()


def shuffled():
    return testing.ScriptedEnvironment(seed=4)


def mediated():
    from sonde.agents import mediated

    return mediated.MediatedEnvironment(guesser, RIDDLES, seed=1)


def mediated_thread():
    from sonde.agents import mediated

    return mediated.MediatedEnvironment(blocking_guesser, RIDDLES, in_thread=True)


def twenty_questions():
    from sonde.agents.twenty_questions import environment

    return environment.TwentyQuestionsEnvironment(step_limit=5)


def code():
    from sonde.agents.code import environment

    whole = environment.CodeEnvironment(step_limit=4, check=False)  # that tasks can be played is tested elsewhere
    return whole.with_tasks(whole.tasks[:3])


PLAIN = ("the sea", "the sky")
QUESTIONS = ("Is it alive?", "Is it bigger than a car?", "What?")
COMMANDS = ("```bash\nls\n```", "no command at all", "```bash\ncat *.py | head -3\n```")
NO_SNAPSHOTS = frozenset({"snapshot_restore"})
CASES = {
    "scripted": Case(scripted, PLAIN),
    "scripted, shuffled": Case(shuffled, PLAIN, {"episodes": 4}),
    "mediated": Case(mediated, PLAIN, without=NO_SNAPSHOTS),
    "mediated, blocking": Case(mediated_thread, PLAIN, without=NO_SNAPSHOTS),
    "20q": Case(twenty_questions, QUESTIONS),
    "code": Case(code, COMMANDS, without=NO_SNAPSHOTS),
}


@pytest.mark.parametrize("name", CASES)
async def test_an_environment_keeps_every_promise(name):
    case = CASES[name]
    try:
        await case.make().close()
    except errors.SandboxError as missing:
        pytest.skip(str(missing))
    report = await testing.check_environment(
        case.make, testing.ScriptedClient(case.replies, loop=True), max_steps=30, **case.options
    )
    assert report.ok, str(report)
    assert {one.name for one in report.skipped} == case.without
