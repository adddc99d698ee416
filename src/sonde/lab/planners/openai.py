"""A language model decides what to try: any OpenAI-compatible server with tool calls.

    planner = openai.OpenAIPlanner("my-model", server="http://127.0.0.1:8000/v1")

Each turn the model sees its instructions, a summary of the log, and the last few turns, never more than `CONTEXT`
characters (and the tools, at most 12,000): what is older is in the summary, and all of it can be asked for with `aggregate`.
So a thousand turns cost as much each as the tenth.

What a model writes is not to be trusted. A reply that is no valid call is told back and counted, apart from the
experiments; after `MOST_INVALID` of them in a row the inquiry ends. Once a call was valid, a plain text without one is the
model's last word and ends the inquiry, unless it was cut off. When the experiments are spent, the model has
`CLOSING` turns to conclude. A server that dies ends the process, not the inquiry: taken up again, the model is shown the
summary of what it did. Costs one request a turn, against the budget of tokens.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from sonde.agents import budgets, openai_client
from sonde.core import errors, records
from sonde.lab import inquiries, planning, summaries, tools

#: All messages of a request together, in characters of JSON; a token has at least one.
CONTEXT = 20_000
SUMMARY = 7_000
REPLY = 1_500
ARGUMENTS = 600
SAID = 800
MOST_INVALID = 5
MOST_CALLS = 3
CLOSING = 6
DONE = "DONE"
NEW_TOKENS = 1024
Ask = Callable[[records.LLMRequest], records.LLMResponse]
INSTRUCTIONS = f"""You are a careful researcher who finds out which layers of a language model a task needs, by corrupting
the model and measuring. You act only by calling tools, one or a few per reply.

Rules of the lab, which it enforces:
- run_experiment without a prediction uses exploring examples. Explore with small, informative experiments. Begin with a
  sweep: it skips every layer for the price of one experiment, and says which do more harm than their size explains. Heads
  and MLPs can be swept, pairs of prompts patched, and directions probed for, added and removed.
- Propose hypotheses that could be wrong, and rivals to them. Say what you would see if they were wrong.
- Before a held-out test, register_prediction. Then run_experiment with that prediction, then three times with
  control=true. Then conclude: the lab decides from the runs whether the hypothesis is supported or refuted.
- Cite runs by their ids. A refuted hypothesis is a good result. If nothing matters, conclude nothing.
- The budget is hard. Keep four experiments for each hypothesis you want to conclude.
When you are finished, reply with the single word {DONE}."""
TOLD_BACK = "That was no valid tool call: {why}. Call one of the tools, or reply DONE if you are finished."


class OpenAIPlanner:
    """Plans with a model behind an OpenAI-compatible server."""

    replays = False

    def __init__(self, model: str, *, server: str | None = None, api_key: str | None = None, **options: Any) -> None:
        """Sets up the planner; nothing is sent yet.

        Args:
            model: The server's name for the model.
            server: Where it is; `OPENAI_BASE_URL`, else OpenAI itself.
            api_key: The key; `OPENAI_API_KEY` if left out. A server on this machine needs none.
            **options: Further options of `OpenAIClient`.
        """
        self.name = f"openai:{model}"
        self._options = {"max_output_tokens": NEW_TOKENS, "temperature": 0.0, **options}
        self._model, self._server, self._key = model, server, api_key
        self._client(None)  # a bad address or a missing key is said at once

    def steps(self, inquiry: inquiries.Inquiry) -> planning.Steps:
        """The calls of an inquiry."""
        limits, used = inquiry.settings.limits, inquiry.spent()
        left = None if limits.tokens is None else max(limits.tokens - used.tokens, 0)
        client = self._client(budgets.Budget(tokens=left))
        with asyncio.Runner() as runner:
            return (yield from self._turns(inquiry, lambda request: runner.run(_answered(client, request))))

    def _turns(self, inquiry: inquiries.Inquiry, ask: Ask) -> planning.Steps:
        limits, turns, invalid, closing = inquiry.settings.limits, list[list[dict[str, Any]]](), 0, 0
        while True:
            used = inquiry.spent()
            closing += used.experiments >= limits.experiments
            if stop := _stop(inquiry, invalid, closing):
                return stop
            try:
                response = _asked(inquiry, turns, ask)
            except errors.BudgetError as error:
                return f"The budget of tokens ended the inquiry: {error}"
            calls = [part for part in response.data if isinstance(part, openai_client.ToolCall)][:MOST_CALLS]
            if not calls and (last := _final(inquiry, response)):
                return last
            turn, wrong = [_assistant(response.text, calls)], "there was none" if not calls else ""
            for call in calls:
                reply = yield planning.Call(call.name, call.arguments)
                turn.append({"role": "tool", "tool_call_id": call.id[:80], "content": _clipped(reply.text(), REPLY)})
                wrong = str(reply.result["error"]) if reply.outcome == "invalid" else wrong
            if not calls:
                turn.append({"role": "user", "content": TOLD_BACK.format(why=wrong)})
            invalid = invalid + 1 if wrong else 0
            if wrong:
                inquiry.append("usage", {"tokens": 0, "seconds": 0.0, "strikes": 1, "why": wrong[:SAID]})
            turns = [*turns, turn][-12:]

    def _client(self, budget: budgets.Budget | None) -> openai_client.OpenAIClient:
        return openai_client.OpenAIClient(
            self._model, base_url=self._server, api_key=self._key, budget=budget, **self._options
        )


def functions() -> list[dict[str, Any]]:
    """The tools as such servers want them."""
    return [{"type": "function", "function": one} for one in tools.listed()]


def context(inquiry: inquiries.Inquiry, turns: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What the model sees: instructions, the log in short, the last turns; at most `CONTEXT` characters."""
    told = _clipped(f"The log so far:\n{summaries.of(inquiry, most=SUMMARY)}\nDecide what to do next.", SUMMARY + 500)
    head = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": told}]
    kept: list[dict[str, Any]] = []
    for turn in reversed(turns):
        if len(json.dumps([*head, *turn, *kept], ensure_ascii=False)) > CONTEXT:
            break
        kept = [*turn, *kept]
    return [*head, *kept]


def _asked(inquiry: inquiries.Inquiry, turns: Sequence[list[dict[str, Any]]], ask: Ask) -> records.LLMResponse:
    """One request; what it took is written down."""
    began = time.monotonic()
    response = ask(records.LLMRequest(messages=context(inquiry, turns), tools=functions(), seed=inquiry.settings.seed))
    took = {"tokens": response.usage.total_tokens, "seconds": round(time.monotonic() - began, 3), "strikes": 0}
    inquiry.append("usage", took | {"said": response.text[:SAID]})
    return response


async def _answered(client: openai_client.OpenAIClient, request: records.LLMRequest) -> records.LLMResponse:
    return await client(request)


def _stop(inquiry: inquiries.Inquiry, invalid: int, closing: int) -> str:
    """Why there is no further turn; empty if there is one."""
    limits, used = inquiry.settings.limits, inquiry.spent()
    if invalid >= MOST_INVALID:
        return f"The model gave {invalid} replies in a row that are no valid calls."
    if closing > CLOSING:
        return f"The budget is spent: {used.of(limits)}."
    if limits.seconds is not None and used.seconds >= limits.seconds:
        return f"The time is spent: {used.of(limits)}."
    if used.calls >= limits.calls:
        return f"The model made {used.calls} calls, the most that a budget of {limits.experiments} experiments allows."
    return ""


def _final(inquiry: inquiries.Inquiry, response: records.LLMResponse) -> str:
    """Why a reply without a call ends the inquiry; empty if it does not."""
    said = response.text.strip()
    if said.strip(".").upper() == DONE:
        return "The model said that it is finished."
    began = any(one["outcome"] in ("ok", "refused") for one in inquiry.entries("call", own=True))
    if not said or not began or response.finish_reason == "length":
        return ""
    return f"The model ended with: {said[:SAID]}"


def _assistant(text: str, calls: Sequence[openai_client.ToolCall]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _clipped(text, SAID)}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id[:80],
                "type": "function",
                "function": {"name": call.name[:80], "arguments": _short(call.arguments)},
            }
            for call in calls
        ]
    return message


def _short(arguments: str) -> str:
    """Arguments as the model sees them later: very long ones are not shown again."""
    return arguments if len(json.dumps(arguments, ensure_ascii=False)) <= ARGUMENTS else '{"left_out": "too long"}'


def _clipped(text: str, most: int) -> str:
    """A text whose JSON is at most so long."""
    while len(json.dumps(text, ensure_ascii=False)) > most:
        text = text[: max(len(text) - max(len(json.dumps(text, ensure_ascii=False)) - most, 16), 0)]
    return text
