"""Planners: delta debugging, the search, and a language model behind a real HTTP server."""

import asyncio
import contextlib
import itertools
import json
import threading

import hypothesis
import pytest
from hypothesis import strategies

from sonde.core import errors
from sonde.lab import budget, desk, inquiries, loop, summaries
from sonde.lab.planners import minimising, openai, search


def answered(items, has):
    """Drives the search; returns its result and all that it asked."""
    asked, steps = [], minimising.ddmin(items)
    try:
        candidate = next(steps)
        while True:
            asked.append(candidate)
            candidate = steps.send(has(candidate))
    except StopIteration as end:
        return end.value, asked


@hypothesis.given(strategies.integers(1, 24).flatmap(lambda n: strategies.tuples(strategies.just(n), strategies.sets(strategies.integers(0, n - 1), min_size=1))))  # fmt: skip
def test_delta_debugging_finds_exactly_what_is_needed(case):
    count, needed = case
    found, asked = answered(range(count), lambda one: needed <= set(one))
    assert set(found) == needed
    assert len(asked) <= count**2 + 3 * count


@hypothesis.given(strategies.integers(2, 10), strategies.randoms(use_true_random=False))
def test_what_delta_debugging_returns_is_1_minimal_for_any_property(count, rng):
    everything = tuple(range(count))
    verdicts = {everything: True}

    def has(one):
        return verdicts.setdefault(tuple(one), rng.random() < 0.3)

    found, _ = answered(everything, has)
    assert has(found)
    assert not any(has(one) for one in minimising.smaller(found))


def test_one_of_many_is_found_in_about_twice_log_two_questions():
    found, asked = answered(range(64), lambda one: 37 in one)
    assert found == (37,)
    assert len(asked) <= 12


def test_the_search_finds_the_two_layers_that_matter_and_says_so_only_after_testing(begun):
    at = begun(40)
    end = loop.conduct(at, search.SearchPlanner())
    claims = {one["claim"]: one["status"] for one in at.inquiry.entries("finding")}
    assert claims == {
        "Skipping layer 2 breaks 'letters'.": "supported",
        "Skipping layer 5 breaks 'letters'.": "supported",
        "Layers 2 and 5 are enough for 'letters', all other layers skipped. It is 1-minimal: leaving out any one of them "
        "does not do it.": "supported",
    }
    assert end["why"] == "The search is complete."
    tried = {one["corruption"]: one["kept"] for one in at.inquiry.entries("run") if one["split"] == "explore"}
    assert tried["keep:2,5"] == 1.0
    assert (tried["keep:2"], tried["keep:5"]) == (0.0, 0.0), "1-minimality is measured, not inferred"
    held_out = [one.seq for one in at.inquiry.entries("run") if one["split"] == "held_out"]
    assert max(one.seq for one in at.inquiry.entries("prediction")) < min(held_out)


def test_the_search_goes_on_after_an_interrupt_as_if_nothing_had_happened(begun):
    whole = begun(12)
    loop.conduct(whole, search.SearchPlanner())
    part = begun(12)

    def interrupt(call, reply, used):
        if used.experiments == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.conduct(part, search.SearchPlanner(), on_call=interrupt)
    loop.conduct(part, search.SearchPlanner())
    first, second = (
        [(one["tool"], one["outcome"], one["result"].get("kept")) for one in at.inquiry.entries("call")]
        for at in (whole, part)
    )
    assert first == second


@pytest.mark.parametrize("experiments", [1, 9])
def test_the_search_never_spends_more_than_its_budget(begun, experiments):
    at = begun(experiments)
    loop.conduct(at, search.SearchPlanner())
    assert at.inquiry.spent().experiments <= experiments


def test_the_search_that_is_told_no_says_that_and_not_that_the_budget_is_spent(begun):
    at = begun(approve=True)
    said = iter([True, False])
    end = loop.conduct(at, search.SearchPlanner(), approver=lambda request: next(said))
    assert "was not approved" in end["why"]
    assert "budget" not in end["why"]


def test_the_search_looks_only_at_the_layers_it_may_leave_out(begun):
    at = begun(30, more={"layers": [0, 1, 2, 3]})
    loop.conduct(at, search.SearchPlanner())
    assert at.inquiry.entries("finding")[0]["claim"] == "Skipping layer 2 breaks 'letters'."
    skipped = {layer for one in at.inquiry.entries("run") if one["split"] == "explore" and one["corruption_kind"] == "skip" for layer in one["layers"]}  # fmt: skip
    assert skipped <= {0, 1, 2, 3}


# ------------------------------------------------------------------------------------------ a language model


def said(text=None, *calls):
    """What a server answers: a text, or tool calls."""
    listed = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(calls)
    ]  # fmt: skip
    message = {"role": "assistant", "content": text, **({"tool_calls": listed} if listed else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if listed else "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


class Server:
    """A real HTTP server in a thread of its own; each request gets the next answer, None hangs up."""

    def __init__(self, answers):
        self.answers, self.requests = iter(answers), []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ready = threading.Event()

    def _serve(self):
        asyncio.set_event_loop(self._loop)
        self._listening = self._loop.run_until_complete(asyncio.start_server(self._answer, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        self._loop.run_forever()

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        self.requests.append(json.loads(await reader.readexactly(length)))
        answer = next(self.answers)
        answer = answer(self.requests[-1]) if callable(answer) else answer
        if answer is not None:
            data = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    def __enter__(self):
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_):
        async def close():
            self._listening.close()
            await self._listening.wait_closed()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def planned(begun):
    """Runs an inquiry with a model that gives these answers."""

    @contextlib.contextmanager
    def run(answers, at=None, **settings):
        at = at or begun(**settings)
        with Server(answers) as server:
            planner = openai.OpenAIPlanner("m", server=server.url, retries=0)
            yield at, server, lambda: loop.conduct(at, planner)

    return run


def test_a_model_researches_with_tool_calls_and_concludes(planned):
    def cited(tool, **arguments):
        def answer(request):
            log = request["messages"][1]["content"]
            ids = {kind: next((word for word in log.replace(",", " ").split() if word[0] == kind and word[1:].isdigit()), "") for kind in "hp"}  # fmt: skip
            return said(None, (tool, {name: ids.get(value, value) for name, value in arguments.items()}))

        return answer

    answers = [
        said(
            "Let me look.", ("run_experiment", {"corruption": "skip:2"}), ("run_experiment", {"corruption": "skip:3"})
        ),
        said(None, ("propose_hypothesis", {"statement": "Layer 2 is needed."})),
        cited("register_prediction", hypothesis="h", corruption="skip:2", relation="below", value=0.5),
        cited("run_experiment", prediction="p"),
        *[cited("run_experiment", prediction="p", control=True)] * 3,
        cited("conclude", hypothesis="h", claim="Layer 2 is needed for the letters."),
        said("DONE."),
    ]
    with planned(answers) as (at, server, conduct):
        assert conduct()["why"] == "The model said that it is finished."
    (finding,) = at.inquiry.entries("finding")
    assert (finding["status"], finding["claim"]) == ("supported", "Layer 2 is needed for the letters.")
    assert at.inquiry.spent().tokens == 110 * len(answers)
    names = [one["function"]["name"] for one in server.requests[0]["tools"]]
    assert names == ["run_experiment", "sweep", "patch_pairs", "probe", "compare", "aggregate", "note", "propose_hypothesis", "register_prediction", "conclude"]  # fmt: skip
    roles = [message["role"] for message in server.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]


def test_replies_that_are_no_call_are_told_back_and_counted_apart_from_experiments(planned):
    answers = [
        said("I think I shall skip some layers."),
        said(None, ("run_experiment", {"corruption": "skip:2"})),
        said(None, ("run_experiment", "{not json")),
        said(None, ("run_everything", {})),
        said(None, ("run_experiment", {"corruption": "skip:99"})),
        said("DONE"),
    ]
    with planned(answers) as (at, server, conduct):
        conduct()
    assert "no valid tool call" in server.requests[1]["messages"][-1]["content"]
    assert "not JSON" in server.requests[3]["messages"][-1]["content"]
    used = at.inquiry.spent()
    assert (used.experiments, used.no_calls) == (1, 4)
    assert used.of(at.inquiry.settings.limits) == "1 of 30 experiments, 4 replies that were no valid call"


def test_replies_that_are_no_call_never_make_more_experiments_than_the_budget_has(planned):
    answers = itertools.cycle([
        said(None, ("run_experiment", {"corruption": "skip:2"})),
        said(None, ("run_experiment", {"corruption": "skip:99"})),
        said(None, ("run_everything", {})),
        said(None, ("run_experiment", {"corruption": "skip:3"})),
    ])  # fmt: skip
    with planned(answers, experiments=2) as (at, _, conduct):
        end = conduct()
    assert "2 of 2 experiments" in end["why"]
    assert at.inquiry.spent().experiments == 2


def test_a_plain_final_text_ends_an_inquiry_and_is_kept(planned):
    answers = [said(None, ("run_experiment", {"corruption": "skip:2"})), said("Layer 2 matters most. That is all.")]
    with planned(answers) as (at, server, conduct):
        end = conduct()
    assert end["why"] == "The model ended with: Layer 2 matters most. That is all."
    assert len(server.requests) == 2
    assert at.inquiry.spent().no_calls == 0


def test_a_text_that_was_cut_off_is_not_final(planned):
    cut = said("I shall now skip the layers one by one, beginning with")
    cut["choices"][0]["finish_reason"] = "length"
    answers = [said(None, ("run_experiment", {"corruption": "skip:2"})), cut, said("DONE")]
    with planned(answers) as (at, server, conduct):
        assert conduct()["why"] == "The model said that it is finished."
    assert len(server.requests) == 3
    assert at.inquiry.spent().no_calls == 1


def test_a_model_that_never_makes_a_valid_call_ends_the_inquiry(planned):
    with planned(itertools.repeat(said("blah"))) as (_, server, conduct):
        end = conduct()
    assert "5 replies in a row" in end["why"]
    assert len(server.requests) == openai.MOST_INVALID


def test_a_model_that_goes_on_after_the_budget_is_stopped(planned):
    answers = (said(None, ("run_experiment", {"corruption": f"skip:{at % 8}"})) for at in itertools.count())
    with planned(answers, experiments=2) as (_, server, conduct):
        end = conduct()
    assert "The budget is spent: 2 of 2 experiments" in end["why"]
    assert len(server.requests) == 2 + openai.CLOSING


def test_the_budget_of_tokens_is_hard(planned):
    answers = itertools.repeat(said(None, ("note", {"text": "hm"})))
    limits = budget.Limits(30, 40_000)
    with planned(answers, limits=limits) as (at, _, conduct):
        end = conduct()
    assert "budget" in end["why"]
    assert at.inquiry.spent().tokens <= 40_000


def test_a_server_that_dies_leaves_the_log_whole_and_the_inquiry_goes_on(planned):
    answers = [said(None, ("run_experiment", {"corruption": "skip:2"})), None]
    with planned(answers) as (at, _, conduct), pytest.raises(errors.ServerError):
        conduct()
    assert [one["corruption"] for one in at.inquiry.entries("run")] == ["none", "skip:2"]
    assert at.inquiry.ended() is None
    again = desk.Desk(at.bench, inquiries.opened(at.inquiry.book, at.inquiry.id))
    with planned([said(None, ("note", {"text": "I am back."})), said("DONE")], at=again) as (_, server, conduct):
        conduct()
    assert "skip:2" in server.requests[0]["messages"][1]["content"], "it is shown what it did before"
    assert at.inquiry.spent().experiments == 1


@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_any_number_of_turns_stays_below_the_bound_of_the_context(planned, count):
    long = "ü" * 900 + '"\\' * 400

    def turns():
        for number in range(count):
            if number % 3 == 0:
                yield said(long, ("propose_hypothesis", {"statement": f"{number} {'x' * 900}"}))
            elif number % 3 == 1:
                yield said(long, *[("note", {"text": f"{number} {long}"[:1990]})] * (5 if number > count - 10 else 1))
            else:
                yield said(long, ("aggregate", {"kind": "note", "of": ["text"], "where": ["text~" + "y" * 1500]}))
        yield said("DONE")

    with planned(turns(), limits=budget.Limits(100)) as (_, server, conduct):
        assert "finished" in conduct()["why"]
    sizes = [len(json.dumps(one["messages"], ensure_ascii=False)) for one in server.requests]
    assert len(sizes) == count + 1
    assert max(sizes) <= openai.CONTEXT
    assert len(json.dumps(server.requests[0]["tools"])) < 12_000


def test_a_summary_is_never_longer_than_asked_for(begun):
    at = begun()
    for number in range(40):
        at.call("note", {"text": f"note {number} " + "z" * 500})
        at.call("propose_hypothesis", {"statement": f"hypothesis {number} " + "w" * 500})
    for most in (200, 1000, 7000):
        assert len(summaries.of(at.inquiry, most=most)) <= most
    text = summaries.of(at.inquiry, most=7000)
    assert "note 39" in text
    assert "older; use aggregate" in text


def test_a_distant_server_without_a_key_is_refused_at_once(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(errors.RequestError, match="OPENAI_API_KEY"):
        openai.OpenAIPlanner("m", server="https://example.org/v1")
