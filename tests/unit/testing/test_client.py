"""The scripted client: given texts in turn, or a function, and a memory of what it was asked."""

import asyncio
import subprocess
import sys

import pytest

import sonde
from sonde import testing
from sonde.core import errors


def ask(text, **settings):
    return sonde.LLMRequest(messages=[{"role": "user", "content": text}], **settings)


async def test_replies_come_in_their_order_with_words_for_tokens():
    client = testing.ScriptedClient(["Is it alive?", "Is it a dog?"])
    first = await client(ask("What is it", system_prompt="Be brief.", seed=7))
    second = await client(ask("No."))
    assert (first.text, second.text) == ("Is it alive?", "Is it a dog?")
    assert (first.usage.prompt_tokens, first.usage.generated_tokens) == (5, 3)
    assert (first.seed, second.seed) == (7, None)
    assert isinstance(client, sonde.LLMClient)


async def test_a_script_that_runs_out_says_so():
    client = testing.ScriptedClient(["one"])
    await client(ask("first"))
    with pytest.raises(errors.EpisodeError, match=r"1 replies.*number 2.*'and then'.*loop=True"):
        await client(ask("and then"))


async def test_a_looping_script_starts_again():
    client = testing.ScriptedClient(["one", "two"], loop=True)
    assert [(await client(ask("x"))).text for _ in range(5)] == ["one", "two", "one", "two", "one"]


async def test_a_function_answers_and_may_be_a_coroutine():
    async def later(request):
        await asyncio.sleep(0)
        return request.messages[-1]["content"][::-1]

    assert (
        await testing.ScriptedClient(lambda request: request.messages[0]["content"].upper())(ask("abc"))
    ).text == "ABC"
    assert (await testing.ScriptedClient(later)(ask("abc"))).text == "cba"


async def test_a_whole_response_is_passed_on_as_it_is():
    response = sonde.LLMResponse(data=[sonde.TextData("x")], usage=sonde.Usage(1, 2), finish_reason="length")
    assert await testing.ScriptedClient([response])(ask("a")) is response


async def test_requests_are_kept_as_they_were():
    client = testing.ScriptedClient(["x"], loop=True)
    messages = [{"role": "user", "content": "before"}]
    await client(sonde.LLMRequest(messages=messages, temperature=0.5))
    messages[0]["content"] = "after"
    messages.append({})
    assert [dict(message) for message in client.requests[0].messages] == [{"role": "user", "content": "before"}]
    assert client.requests[0].temperature == 0.5


async def test_steps_are_counted_per_episode():
    client = testing.ScriptedClient(["x"], loop=True)
    names = ["a", "a", "b", "a", "b"]
    steps = [(await client(ask("?", metadata={"episode_id": name}))).step for name in names]
    assert steps == [0, 1, 0, 2, 1]


@pytest.mark.parametrize("replies", ["one string", []])
def test_a_script_that_is_none_is_refused(replies):
    with pytest.raises(ValueError, match="repl"):
        testing.ScriptedClient(replies)


def test_the_testing_room_loads_no_torch():
    code = "import sys, sonde.testing; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
