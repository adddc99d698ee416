"""The client against real HTTP servers on this machine: kind, busy, broken, slow and rude ones."""

import asyncio
import contextlib
import email.utils
import json
import logging
import subprocess
import sys
import time
import types

import pytest

import sonde
from sonde import testing
from sonde.agents import budgets, openai_client
from sonde.core import errors

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_LOG"):
        monkeypatch.delenv(name, raising=False)


def completion(text="Yes.", **changes):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage, **changes}


def answered(body, status=200, **headers):
    """The bytes of an HTTP response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(data)), "Connection": "close"}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in (fields | headers).items()]
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", *lines, "", ""]).encode() + data


class Server:
    """Answers each request with the next of its answers, the last one for ever.

    An answer is the bytes to send, or an async function of the server, the request's JSON, reader and writer.
    """

    def __init__(self, *answers):
        self.answers = answers
        self.requests, self.headers, self.under_way, self.most_at_once = [], [], 0, 0
        self.asked, self.hung_up = asyncio.Event(), asyncio.Event()

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(body)
        self.asked.set()
        self.headers.append({"request": head[0], **headers})
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(self, body, reader, writer)
        except ConnectionError:
            self.hung_up.set()
        finally:
            self.under_way -= 1
            writer.close()


@contextlib.asynccontextmanager
async def serving(*answers):
    server = Server(*answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    async with listening:
        yield server


def connect(server, **options):
    settings = {"backoff": 0.001, "retries": 3, "timeout": 10.0, "max_output_tokens": 20} | options
    return openai_client.OpenAIClient("some-model", base_url=server.url, **settings)


def ask(text="Is it alive?", **settings):
    return sonde.LLMRequest(messages=[{"role": "user", "content": text}], **settings)


async def test_a_request_comes_back_as_a_response():
    async with serving(answered(completion("Yes, it is."))) as server:
        client = connect(server, prices=(2.0, 10.0))
        response = await client(ask(seed=5))
    assert isinstance(client, sonde.LLMClient)
    assert response.text == "Yes, it is."
    assert response.usage == sonde.Usage(11, 3)
    assert response.cost == pytest.approx((11 * 2 + 3 * 10) / 1e6)
    assert (response.finish_reason, response.seed, response.logprobs) == ("stop", 5, ())
    assert server.headers[0]["request"] == "POST /v1/chat/completions HTTP/1.1"


async def test_everything_a_request_says_reaches_the_server():
    tool = types.MappingProxyType({"type": "function", "function": {"name": "look", "parameters": {}}})
    history = (
        types.MappingProxyType({"role": "user", "content": "Look."}),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a dog"},
    )
    async with serving(answered(completion())) as server:
        request = sonde.LLMRequest(
            messages=history, system_prompt="Be brief.", temperature=0.5, top_p=0.9, top_k=7, tools=[tool],
            stop_sequences=["\n", "END"], seed=3, max_output_tokens=9, metadata={"episode_id": "secret"},
        )  # fmt: skip
        await connect(server, logprobs=True, extra_body={"min_p": 0.1})(request)
    assert server.requests == [
        {
            "model": "some-model",
            "messages": [{"role": "system", "content": "Be brief."}, *[dict(message) for message in history]],
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 7,
            "stop": ["\n", "END"],
            "seed": 3,
            "max_tokens": 9,
            "tools": [dict(tool)],
            "logprobs": True,
            "min_p": 0.1,
        }
    ]


async def test_what_a_request_leaves_open_is_as_the_client_was_told_or_not_sent():
    async with serving(answered(completion())) as server:
        client = connect(server, temperature=0.0, stop="END", seed=1, limit_field="max_completion_tokens")
        response = await client(ask())
        await client(ask(temperature=1.0, seed=2, stop_sequences=["X"]))
        await openai_client.OpenAIClient("some-model", base_url=server.url)(ask())
    messages = [{"role": "user", "content": "Is it alive?"}]
    basic = {"model": "some-model", "messages": messages}
    limit = {"max_completion_tokens": 20}
    assert server.requests == [
        {**basic, **limit, "temperature": 0.0, "stop": ["END"], "seed": 1},
        {**basic, **limit, "temperature": 1.0, "stop": ["X"], "seed": 2},
        basic,
    ]
    assert response.seed == 1


def test_openai_itself_is_told_the_limit_under_its_newer_name():
    hosted = openai_client.OpenAIClient("m", api_key=KEY)
    assert hosted.server == "https://api.openai.com/v1"
    assert hosted._limit_field == "max_completion_tokens"


async def test_text_of_any_script_survives_and_half_characters_do_no_harm():
    text = "naïve 東京 🦊 \u2028 \x00 ﷽"
    async with serving(answered(completion(text))) as server:
        response = await connect(server)(ask(f"{text}\ud83e"))
    assert response.text == text
    assert server.requests[0]["messages"][0]["content"] == f"{text}?"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "tool_calls"), ("function_call", "tool_calls"),
     ("content_filter", "content_filter"), ("eos", "stop"), (None, "stop")],
)  # fmt: skip
async def test_finish_reasons_are_those_of_sonde(given, meant):
    reply = completion()
    reply["choices"][0]["finish_reason"] = given
    async with serving(answered(reply)) as server:
        assert (await connect(server)(ask())).finish_reason == meant


async def test_log_probabilities_are_returned_where_given():
    reply = completion()
    reply["choices"][0]["logprobs"] = {"content": [{"token": "Y", "logprob": -0.5}, {"token": "es", "logprob": 0}]}
    async with serving(answered(reply)) as server:
        assert (await connect(server)(ask())).logprobs == (-0.5, 0.0)


async def test_tool_calls_are_parts_of_the_data_without_text():
    reply = completion(None)
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}},
        {"id": "c2", "type": "function", "function": {"name": "touch", "arguments": {"at": 1}}},
    ]
    reply["choices"][0] |= {"finish_reason": "tool_calls"}
    reply["choices"][0]["message"]["tool_calls"] = calls
    async with serving(answered(reply)) as server:
        response = await connect(server)(ask())
    assert response.text == ""
    assert response.data == (
        openai_client.ToolCall(id="c1", name="look", arguments='{"at": "it"}'),
        openai_client.ToolCall(id="c2", name="touch", arguments='{"at": 1}'),
    )
    assert response.finish_reason == "tool_calls"


async def test_without_counts_from_the_server_the_most_it_can_have_been_is_counted():
    async with serving(answered(completion(usage=None))) as server:
        response = await connect(server, budget=budgets.Budget(tokens=10_000))(ask())
    assert response.usage.generated_tokens == 20
    assert response.usage.prompt_tokens > len("Is it alive?")


async def test_an_episode_is_played_over_http():
    async with serving(answered(completion())) as server, testing.ScriptedEnvironment() as env:
        client, now = connect(server), await env.reset()
        while not now.last():
            now = await env.step(await client(now.observation))
    assert [len(body["messages"]) for body in server.requests] == [2, 4, 6, 8]
    assert server.requests[1]["messages"][2] == {"role": "assistant", "content": "Yes."}
    assert {body["max_tokens"] for body in server.requests} == {16}


# ------------------------------------------------------------------------------------------------ trying again


async def test_a_busy_server_is_asked_again_after_the_pause_it_names():
    async with serving(answered({}, 429, Retry_After="0.25"), answered(completion())) as server:
        began = time.monotonic()
        response = await connect(server, backoff=0.0)(ask())
        assert time.monotonic() - began > 0.2  # a pause is never shorter than asked, but for the clock
    assert response.text == "Yes."
    assert len(server.requests) == 2
    assert server.requests[0] == server.requests[1]


async def test_a_pause_past_the_total_timeout_is_not_begun():
    async with serving(answered({"error": {"message": "busy"}}, 429, Retry_After="3600")) as server:
        with pytest.raises(errors.ServerError, match=r"busy.*3.6e\+03 s, past total_timeout=5"):
            await connect(server, total_timeout=5.0)(ask())
    assert len(server.requests) == 1


def test_a_pause_may_be_given_as_a_date_and_nonsense_is_ignored():
    soon = email.utils.formatdate(time.time() + 100, usegmt=True)
    pauses = [openai_client.openai_wire.asked_pause({"retry-after": value}) for value in (soon, "nan", "soon", "-3")]
    assert 90 < pauses[0] <= 100
    assert pauses[1:] == [None, None, 0.0]
    assert openai_client.openai_wire.asked_pause({}) is None


@pytest.mark.parametrize("status", [500, 502, 503, 529, 408])
async def test_a_failing_server_is_asked_until_the_retries_run_out(status):
    async with serving(answered({"error": {"message": "out of memory"}}, status)) as server:
        pattern = rf"{server.url} gave no answer in 4 attempts; the last: status {status}: out of memory"
        with pytest.raises(errors.ServerError, match=pattern):
            await connect(server)(ask())
    assert len(server.requests) == 4


def test_pauses_grow_up_to_a_bound_and_differ():
    pauses = [[openai_client.growing_pause(1.0, attempt) for attempt in (0, 1, 3, 5, 9999)] for _ in range(20)]
    for row in pauses:
        for pause, whole in zip(row, (1, 2, 8, 30, 30), strict=True):
            assert whole / 2 <= pause <= whole
    assert len({row[0] for row in pauses}) == 20


async def never(server, body, reader, writer):
    await reader.read()  # until the other side hangs up
    server.hung_up.set()


async def test_a_slow_server_is_given_up_and_the_connection_closed():
    async with serving(never) as server:
        with pytest.raises(errors.ServerError, match=r"2 attempts; the last: no answer within 0\.5 s; raise timeout"):
            await connect(server, timeout=0.5, retries=1)(ask())
        await asyncio.wait_for(server.hung_up.wait(), 10)
    assert len(server.requests) == 2


async def trickle(server, body, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_the_timeout_is_over_the_whole_answer_not_over_its_pieces():
    async with serving(trickle) as server:
        with pytest.raises(errors.ServerError, match=r"no answer within 0\.1 s"):
            await connect(server, timeout=0.1, retries=0)(ask())
        await asyncio.wait_for(server.hung_up.wait(), 10)


async def test_the_total_timeout_is_over_all_attempts():
    async with serving(never) as server:
        with pytest.raises(errors.ServerError, match=r"past total_timeout|no answer within"):
            await connect(server, timeout=0.5, total_timeout=0.8, retries=1000)(ask())
    assert len(server.requests) <= 2


async def test_a_server_that_is_not_there_is_named_with_what_to_do():
    async with serving(b"") as server:
        pass
    budget = budgets.Budget(tokens=1000)
    with pytest.raises(errors.ServerError, match=rf"{server.url} .*3 attempts.*ConnectError.*is the server running"):
        await connect(server, retries=2, budget=budget)(ask())
    assert budget.spent == budgets.Amount(0.0, 0, 3)


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 200 OK\r\nContent-", answered(completion())[:-30]])
async def test_a_connection_that_drops_is_tried_again(cut):
    async with serving(cut, answered(completion("At last."))) as server:
        budget = budgets.Budget(tokens=10_000)
        assert (await connect(server, budget=budget)(ask())).text == "At last."
    assert len(server.requests) == 2
    assert budget.spent.requests == 2
    assert budget.spent.tokens > 256 + 20 + 14  # of the lost attempt the most is booked: the server may charge it


async def test_a_connection_that_always_drops_is_an_error():
    async with serving(answered(completion())[:-30]) as server:
        with pytest.raises(errors.ServerError, match="the connection failed"):
            await connect(server, retries=1)(ask())


# ------------------------------------------------------------------------------------------------ nonsense

NONSENSE = {
    "not JSON": (b"<html>It works!</html>", "not JSON: '<html>It works!</html>'.*base_url"),
    "nothing": (b"", "not JSON"),
    "no UTF-8": (b'{"a": "\xff\xfe"}', "not JSON"),
    "too deep": (b"[" * 200_000, "not JSON"),
    "a list": ([1, 2], r"expected a JSON object, got \[1, 2\]"),
    "no choices": ({"usage": None}, "expected a list of choices"),
    "empty choices": (completion(choices=[]), r"expected a list of choices, got \[\]"),
    "choices of a wrong type": (completion(choices={"a": 1}), "expected a list of choices"),
    "a choice of a wrong type": (completion(choices=["Yes"]), "expected a message"),
    "no message": (completion(choices=[{"text": "Yes"}]), "expected a message"),
    "a message of a wrong type": (completion(choices=[{"message": "Yes"}]), "expected a message"),
    "content of a wrong type": (completion(choices=[{"message": {"content": 5}}]), "expected text as content"),
    "empty content": (completion(""), r"no text \(finish_reason 'stop'\): try again"),
    "null content": (completion(None), "no text"),
    "tool calls of a wrong type": (
        completion(choices=[{"message": {"tool_calls": [{"id": 1}]}}]),
        "tool call with the",
    ),
    "finish reason of a wrong type": (
        completion(choices=[{"message": {"content": "x"}, "finish_reason": 5}]),
        "finish",
    ),
    "usage of a wrong type": (completion(usage="many"), "expected usage with prompt_tokens"),
    "usage below zero": (completion(usage={"prompt_tokens": -1, "completion_tokens": 2}), "expected usage"),
    "logprobs of a wrong type": (
        completion(choices=[{"message": {"content": "x"}, "logprobs": {"content": [{"logprob": "low"}]}}]),
        "logprobs as numbers",
    ),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_is_an_error_in_words_and_not_asked_for_again(name):
    body, words = NONSENSE[name]
    async with serving(answered(body)) as server:
        with pytest.raises(errors.ServerError, match=words) as caught:
            await connect(server)(ask())
    assert server.url in str(caught.value)
    assert len(str(caught.value)) < 800
    assert len(server.requests) == 1


async def test_an_answer_cut_to_nothing_says_to_raise_the_limit():
    reply = completion("")
    reply["choices"][0]["finish_reason"] = "length"
    async with serving(answered(reply)) as server:
        with pytest.raises(errors.ServerError, match="raise max_output_tokens"):
            await connect(server)(ask())


async def flood(server, body, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(b"[" * 2**20)
        await writer.drain()


async def test_an_endless_answer_is_cut_off():
    async with serving(flood) as server:
        with pytest.raises(errors.ServerError, match="more than 32 MiB"):
            await connect(server)(ask())
        await asyncio.wait_for(server.hung_up.wait(), 10)


async def test_a_long_answer_is_taken_whole():
    text = "word " * 400_000
    async with serving(answered(completion(text))) as server:
        assert (await connect(server)(ask())).text == text


# ------------------------------------------------------------------------------------------------ refused


async def test_a_request_the_server_refuses_brings_its_reason_in_bounded_space():
    reason = "top_k is not a field. " * 1000
    async with serving(answered({"error": {"message": reason}}, 400)) as server:
        with pytest.raises(errors.RequestError, match=r"status 400: top_k is not a field") as caught:
            await connect(server)(ask(top_k=3))
    assert len(str(caught.value)) < 500
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, {"error": {"message": "who are you"}}, "who are you.*set OPENAI_API_KEY"),
        (403, b"", "status 403.*OPENAI_API_KEY"),
        (404, b"page not found", "page not found.*'some-model'.*/v1"),
        (422, {"detail": [{"loc": ["body"]}]}, "status 422"),
        (400, [1], "status 400"),
    ],
)
async def test_a_refusal_says_what_to_do(status, body, words):
    async with serving(answered(body, status)) as server:
        with pytest.raises(errors.RequestError, match=words):
            await connect(server)(ask())
    assert len(server.requests) == 1


async def test_an_account_without_credit_is_not_asked_again():
    async with serving(answered({"error": {"message": "pay", "code": "insufficient_quota"}}, 429)) as server:
        with pytest.raises(errors.ServerError, match="no credit left"):
            await connect(server)(ask())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (sonde.LLMRequest(messages=[]), "needs messages"),
        (sonde.LLMRequest(messages=[{"content": "x"}]), "each with a role"),
        (ask(max_output_tokens=0), "at least 1"),
    ],
)
async def test_a_request_that_makes_no_sense_is_not_sent(request_, words):
    async with serving(answered(completion())) as server:
        with pytest.raises(errors.RequestError, match=words):
            await connect(server)(request_)
    assert server.requests == []


# ------------------------------------------------------------------------------------------------ settings and key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "https://example.org/v1"}, "no key for https://example.org/v1: set OPENAI_API_KEY"),
        ({"base_url": "example.org"}, "begin with http"),
        ({"api_key": "sk-ü"}, "characters that no key has"),
        ({"api_key": KEY, "retries": -1}, "retries"),
        ({"api_key": KEY, "at_once": 0}, "at_once"),
        ({"api_key": KEY, "timeout": 0.0}, "timeouts positive"),
        ({"api_key": KEY, "budget": budgets.Budget(cost=1.0)}, "needs prices"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_sent(options, words):
    with pytest.raises(errors.RequestError, match=words) as caught:
        openai_client.OpenAIClient("m", **options)
    assert KEY not in str(caught.value)


def test_an_unknown_option_is_refused_with_the_nearest_known():
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        openai_client.OpenAIClient("m", api_key=KEY, temprature=1.0)


async def test_server_and_key_come_from_the_environment_and_a_local_server_needs_no_key(monkeypatch):
    async with serving(answered(completion())) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        await openai_client.OpenAIClient("m")(ask())
        monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
        await openai_client.OpenAIClient("m")(ask())
        await openai_client.OpenAIClient("m", api_key="sk-another")(ask())
    assert [headers["authorization"] for headers in server.headers] == [
        "Bearer none",
        f"Bearer {KEY}",
        "Bearer sk-another",
    ]


async def test_a_proxy_set_in_the_environment_is_not_asked_for_a_server_on_this_machine(monkeypatch):
    async with serving(answered(completion())) as server, serving(answered({}, 500)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        assert (await connect(server)(ask())).text == "Yes."
    assert proxy.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        answered({"error": {"message": f"Incorrect API key provided: {KEY}."}}, 401),
        answered({"error": {"message": f"{'x' * 290}{KEY}"}}, 400),
        answered({"error": {"message": f"bad key {KEY}"}}, 500),
        answered(f"not JSON, but {KEY}".encode()),
        answered(f"{'x' * 285}{KEY}".encode()),
        answered({"choices": [], "key": KEY}),
        answered({"echo": KEY}),
        answered(completion(usage=KEY)),
        b"",
    ],
)
async def test_the_key_is_never_shown(answer, caplog):
    caplog.set_level(logging.DEBUG)
    async with serving(answer) as server:
        client = connect(server, api_key=KEY, retries=1)
        with pytest.raises(errors.SondeError) as caught:
            await client(ask())
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    shown = f"{caught.value!r} {client!r} {client.options!r} {caught.getrepr(style='short', chain=True)}"
    assert KEY[:12] not in shown
    assert caplog.records
    assert KEY not in caplog.text


def test_a_password_in_the_address_is_not_shown():
    client = openai_client.OpenAIClient("m", base_url="http://ann:hunter2@127.0.0.1:1/v1", retries=0)
    assert repr(client) == "OpenAIClient('m', base_url='http://127.0.0.1:1/v1')"


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(errors.MissingExtraError, match=r'pip install "sonde\[openai\]"'):
        openai_client.OpenAIClient("m", api_key=KEY)


def test_the_module_loads_neither_the_package_nor_torch():
    code = "import sys, sonde.agents.openai_client; sys.exit(bool({'openai', 'httpx2', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


# ------------------------------------------------------------------------------------------------ many at once


async def slowly(server, body, reader, writer):
    await asyncio.sleep(0.02)
    said = body["messages"][-1]["content"]
    usage = {"prompt_tokens": 40, "completion_tokens": 20}
    writer.write(answered(completion(f"{said}!", usage=usage)))
    await writer.drain()


async def test_no_more_than_so_many_are_under_way_at_once_and_none_gets_the_answer_of_another():
    async with serving(slowly) as server:
        client = connect(server, at_once=3)
        responses = await asyncio.gather(*(client(ask(f"number {i}")) for i in range(20)))
    assert [response.text for response in responses] == [f"number {i}!" for i in range(20)]
    assert server.most_at_once == 3


async def test_a_budget_of_tokens_is_not_overshot_by_many_at_once_from_two_clients():
    budget = budgets.Budget(tokens=2500)
    async with serving(slowly) as server:
        clients = [connect(server, budget=budget, at_once=50) for _ in range(2)]
        done = await asyncio.gather(*(clients[i % 2](ask()) for i in range(80)), return_exceptions=True)
    answers = [one for one in done if isinstance(one, sonde.LLMResponse)]
    assert len(answers) + sum(isinstance(one, errors.BudgetError) for one in done) == 80
    assert len(server.requests) == len(answers)
    assert server.most_at_once > 1
    assert budget.spent == budgets.Amount(0.0, 60 * len(answers), len(answers))
    assert budget.held == budgets.Amount()
    most = clients[0]._most(server.requests[0]).total_tokens
    assert 2500 - most < budget.spent.tokens <= 2500  # it stops when, and only when, one more could be too much


async def test_a_budget_of_money_stops_before_it_is_overshot():
    budget = budgets.Budget(cost=0.01)
    async with serving(slowly) as server:
        client = connect(server, budget=budget, prices=(5.0, 50.0))
        done = await asyncio.gather(*(client(ask()) for _ in range(30)), return_exceptions=True)
    assert {type(one) for one in done} == {sonde.LLMResponse, errors.BudgetError}
    total = sum(one.cost for one in done if isinstance(one, sonde.LLMResponse))
    assert budget.spent.cost == pytest.approx(total)
    assert 0.005 < total <= 0.01


async def test_a_budget_of_requests_counts_every_attempt():
    budget = budgets.Budget(requests=3)
    async with serving(answered({}, 500)) as server:
        with pytest.raises(errors.BudgetError, match="3 of 3 requests spent"):
            await connect(server, budget=budget, retries=10)(ask())
    assert len(server.requests) == 3


async def test_a_budget_of_tokens_needs_a_limit_on_the_answer():
    async with serving(answered(completion())) as server:
        client = connect(server, budget=budgets.Budget(tokens=100_000), max_output_tokens=None)
        with pytest.raises(errors.BudgetError, match="without max_output_tokens"):
            await client(ask())
        assert server.requests == []
        await client(ask(max_output_tokens=5))
        with pytest.raises(errors.BudgetError, match="could overshoot"):
            await client(ask(max_output_tokens=100_000))
    assert len(server.requests) == 1


async def test_a_refused_request_costs_no_tokens():
    budget = budgets.Budget(tokens=1000)
    async with serving(answered({}, 400)) as server:
        with pytest.raises(errors.RequestError):
            await connect(server, budget=budget)(ask())
    assert budget.spent == budgets.Amount(0.0, 0, 1)


async def test_cancelling_closes_the_connection_and_books_what_the_server_may_charge():
    budget = budgets.Budget(tokens=1000)
    async with serving(never, answered(completion())) as server:
        client = connect(server, budget=budget, at_once=1)
        running = asyncio.create_task(client(ask()))
        await asyncio.wait_for(server.asked.wait(), 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(server.hung_up.wait(), 10)
        assert budget.held == budgets.Amount()
        assert budget.spent.tokens > 256 + 20
        assert (await client(ask())).text == "Yes."  # its turn is free again


def test_one_client_serves_several_event_loops_one_after_the_other():
    client = None
    for _ in range(3):

        async def once():
            nonlocal client
            async with serving(answered(completion())) as server:
                client = client or connect(server)
                client.base_url = server.url
                return (await client(ask())).text

        assert asyncio.run(once()) == "Yes."
    assert len(client._loops) == 1
