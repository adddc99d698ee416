"""Requests and responses as an OpenAI-compatible chat server writes them: plain JSON there, records here.

Strict about what is used, silent about what is not: a server that answers nonsense is an error in words, never a
KeyError three rooms further on.
"""

import dataclasses
import email.utils
import json
import math
import time
from collections.abc import Mapping
from typing import Any

from sonde.core import errors, records

SHOWN = 300
FINISH = {"function_call": "tool_calls", "eos": "stop", "end_turn": "stop", "stop_sequence": "stop", "": "stop"}
Prices = tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall(records.TextData):
    """A tool that the model wants called, as a part of `response.data` whose text is empty.

    Attributes:
        id: The server's id of the call, to be named in the message that brings the result.
        name: Of the tool.
        arguments: As the model wrote them: JSON, if it kept to the rules.
    """

    content: str = ""
    id: str = ""
    name: str = ""
    arguments: str = ""


def body_of(request: records.LLMRequest, own: Mapping[str, Any], *, limit_field: str) -> dict[str, Any]:
    """A request as the server wants it; `own` says what holds where the request leaves it open.

    Raises:
        RequestError: There are no messages, one has no role, or the limit is below 1.
    """
    messages = [plain(message) for message in request.messages]
    if request.system_prompt:
        messages.insert(0, {"role": "system", "content": plain(request.system_prompt)})
    if not messages or not all(message.get("role") for message in messages):
        raise errors.RequestError(f"a request needs messages, each with a role, got {clip(repr(messages))}")
    asked = {
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences,
        "seed": request.seed,
    }
    given = {name: own.get(name) if value is None else value for name, value in asked.items()}
    limit, stop = given.pop("max_output_tokens"), given["stop"]
    if limit is not None and limit < 1:
        raise errors.RequestError(f"max_output_tokens must be at least 1, got {limit}")
    given |= {
        limit_field: limit,
        "stop": ([stop] if isinstance(stop, str) else plain(list(stop))) if stop else None,
        "tools": plain(list(request.tools)) if request.tools else None,
    }
    return {"messages": messages, **{name: value for name, value in given.items() if value is not None}}


def read(body: bytes, *, server: str) -> Mapping[str, Any]:
    """The JSON object of a body.

    Raises:
        ServerError: It is not one.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise errors.ServerError(
            f"{server} answered with something that is not JSON: {clip(body.decode(errors='replace'))!r}; "
            "is the base_url right? It usually ends in /v1"
        ) from None
    if not isinstance(value, Mapping):
        raise _nonsense(server, "a JSON object", value)
    return value


def usage_of(reply: Mapping[str, Any], *, server: str) -> records.Usage | None:
    """The token counts of a reply, None if it has none.

    Raises:
        ServerError: They are no counts.
    """
    usage = reply.get("usage")
    if usage is None:
        return None
    counts = [_get(usage, "prompt_tokens"), _get(usage, "completion_tokens")]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in counts):
        raise _nonsense(server, "usage with prompt_tokens and completion_tokens", usage)
    return records.Usage(*counts)


def cost_of(usage: records.Usage, prices: Prices | None) -> float:
    """What the tokens cost, with prices per million prompt and generated tokens."""
    if prices is None:
        return 0.0
    return (usage.prompt_tokens * prices[0] + usage.generated_tokens * prices[1]) / 1e6


def response_of(reply: Mapping[str, Any], *, server: str, usage: records.Usage, cost: float) -> records.LLMResponse:
    """The response in a reply.

    Raises:
        ServerError: There are no choices, no text and no tool calls, or something has the wrong type.
    """
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _nonsense(server, "a list of choices", choices if "choices" in reply else reply)
    message = _get(choices[0], "message")
    if not isinstance(message, Mapping):
        raise _nonsense(server, "a message in the first choice", choices[0])
    reason = _get(choices[0], "finish_reason") or ""
    text = message.get("content") or message.get("refusal") or ""
    calls = message.get("tool_calls") or []
    if not isinstance(reason, str) or not isinstance(text, str) or not isinstance(calls, list):
        raise _nonsense(server, "text as content and finish_reason", choices[0])
    if not text and not calls:
        todo = "raise max_output_tokens" if reason == "length" else "try again, or look at the server's log"
        raise errors.ServerError(f"{server} answered with no text (finish_reason {reason!r}): {todo}")
    return records.LLMResponse(
        data=(*([records.TextData(text)] if text else []), *(_call(call, server) for call in calls)),
        cost=cost,
        usage=usage,
        logprobs=_logprobs(choices[0], server),
        finish_reason=FINISH.get(reason, reason),
    )


def clip(text: str, length: int = SHOWN) -> str:
    """A text in bounded space, on one line."""
    text = " ".join(text[: 10 * length].split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """How many seconds the server asks to wait (`Retry-After`, as seconds or as a date); None if it does not say."""
    value = headers.get("retry-after") or ""
    try:
        pause = float(value)
    except ValueError:
        try:
            pause = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return None if math.isnan(pause) else max(pause, 0.0)


def plain(value: Any) -> Any:
    """A copy as JSON data; halves of surrogate pairs, which UTF-8 has not, become question marks."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _call(call: Any, server: str) -> ToolCall:
    function = _get(call, "function")
    name, arguments = _get(function, "name"), _get(function, "arguments")
    if not isinstance(name, str):
        raise _nonsense(server, "a tool call with the name of a function", call)
    if not isinstance(arguments, str):  # some servers send the object itself
        arguments = json.dumps(arguments or {})
    return ToolCall(id=str(_get(call, "id") or ""), name=name, arguments=arguments)


def _logprobs(choice: Any, server: str) -> tuple[float, ...]:
    given = _get(_get(choice, "logprobs"), "content") or []
    values = [_get(one, "logprob") for one in given] if isinstance(given, list) else [given]
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        raise _nonsense(server, "logprobs as numbers", given)
    return tuple(map(float, values))


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _nonsense(server: str, expected: str, got: Any) -> errors.ServerError:
    return errors.ServerError(
        f"{server} answered nonsense: expected {expected}, got {clip(json.dumps(got, ensure_ascii=False))}; "
        "is it an OpenAI-compatible chat server?"
    )
