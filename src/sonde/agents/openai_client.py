"""A client for any OpenAI-compatible chat server: hosted, or vLLM, llama.cpp, Ollama and the like on this machine.

    client = OpenAIClient("gpt-4o-mini", prices=(0.15, 0.60), budget=Budget(cost=1.0))
    client = OpenAIClient("my-model", base_url="http://127.0.0.1:8000/v1")

A request takes what the server takes; failed ones are repeated (429, 5xx, timeouts, lost connections) with growing,
jittered pauses, or as long as the server asks. Every request opens a connection of its own, so a client holds
nothing that must be closed and works in any event loop; against a distant server that is one more handshake.

Tool calls come back as `ToolCall` parts of `response.data`, after the text; `finish_reason` is then `tool_calls`.
"""

import asyncio
import contextlib
import dataclasses
import ipaddress
import json
import os
import random
import threading
import time
import urllib.parse
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from sonde.agents import budgets, openai_wire
from sonde.core import errors, records

OPENAI_URL = "https://api.openai.com/v1"
LARGEST_BODY = 32 * 2**20
RETRIED = frozenset({408, 409, 425, 429})
LONGEST_PAUSE = 30.0
SHORTEST_SECRET = 8
#: Tokens that a chat template may add of its own.
TEMPLATE = 256
ToolCall = openai_wire.ToolCall


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The finer settings of a client; see `OpenAIClient`."""

    retries: int = 4
    backoff: float = 0.5
    total_timeout: float = 600.0
    at_once: int = 8
    prices: openai_wire.Prices | None = None
    limit_field: str | None = None
    logprobs: bool = False
    extra_body: Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: Sequence[str] | None = None
    seed: int | None = None


class Retry(Exception):  # noqa: N818  # a reason to try again, not an error of its own
    """An attempt that failed in a way that may pass."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class OpenAIClient:
    """Answers requests with a model behind an OpenAI-compatible HTTP server."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        budget: budgets.Budget | None = None,
        **options: Any,
    ) -> None:
        """Sets up a client; nothing is sent yet.

        Args:
            model: The server's name for the model.
            base_url: Where the server is; `OPENAI_BASE_URL`, else OpenAI itself.
            api_key: The key; `OPENAI_API_KEY` if left out. A server on this machine needs none.
            timeout: Seconds that one attempt may take.
            budget: Shared limit. With a limit on tokens or cost, requests need `max_output_tokens`, and their prompts
                are reckoned before they are sent as one token per byte of text, which no tokenizer exceeds.
            **options: `retries` (4) after failed attempts; `backoff` (0.5), the first pause in seconds, doubled each
                time; `total_timeout` (600) for an answer with all retries; `at_once` (8) requests under way in one
                event loop; `prices`, dollars per million prompt and generated tokens; `limit_field`, what the server
                calls `max_output_tokens` (`max_completion_tokens` at OpenAI, `max_tokens` elsewhere); `logprobs`
                to ask for them; `extra_body`, further fields for servers that have them; and, where a request leaves
                them open, `max_output_tokens`, `temperature`, `top_p`, `top_k`, `stop`, `seed`. `top_k` is sent only
                if set: OpenAI itself refuses it, most local servers take it.

        Raises:
            MissingExtraError: The package `openai` is not installed.
            RequestError: There is no key for a distant server, or a setting makes no sense.
        """
        _library()
        names = {field.name for field in dataclasses.fields(Options)}
        if unknown := sorted(options.keys() - names):
            raise TypeError(f"unknown options {unknown}{errors.suggest(unknown[0], names)}; known: {sorted(names)}")
        self.options = Options(**options)
        self.model, self.timeout, self.budget = model, timeout, budget
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        self._local = _is_loopback(self.base_url)
        self._key = (api_key or os.environ.get("OPENAI_API_KEY") or ("none" if self._local else "")).strip()
        self._check()
        # Connections and locks belong to an event loop, and a client may meet several.
        self._loops: dict[asyncio.AbstractEventLoop, tuple[Any, asyncio.Semaphore]] = {}
        self._lock = threading.Lock()

    @property
    def server(self) -> str:
        """The server's address as shown in messages, without any password in it."""
        parts = urllib.parse.urlsplit(self.base_url)
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def __repr__(self) -> str:
        """Model and server; never the key."""
        return f"OpenAIClient({self.model!r}, base_url={self.server!r})"

    async def __call__(self, request: records.LLMRequest) -> records.LLMResponse:
        """Answers a request.

        Raises:
            RequestError: The request makes no sense, or the server refuses it.
            BudgetError: It could overshoot the budget; it was not sent.
            ServerError: The server is down, too slow, or answers nonsense.
        """
        body = self._body(request)
        client, turn = self._of_this_loop()
        async with turn:
            deadline = time.monotonic() + self.options.total_timeout
            for attempt in range(self.options.retries + 1):
                try:
                    response = await self._attempt(client, body, deadline)
                    return dataclasses.replace(response, seed=body.get("seed"))
                except Retry as why:
                    await self._pause(why, attempt, deadline)
        raise AssertionError("unreachable: the last pause raises")

    async def _attempt(self, client: Any, body: dict[str, Any], deadline: float) -> records.LLMResponse:
        """One attempt, its most set aside before and what it took booked after."""
        most, budget = self._most(body), self.budget or budgets.Budget()
        with await budget.wait_and_hold(tokens=most.total_tokens, cost=self._cost(most)) as hold:
            limit = max(min(self.timeout, deadline - time.monotonic()), 0.001)
            try:
                async with asyncio.timeout(limit), self._translated(hold):
                    received = await self._send(client, body)
                reply = openai_wire.read(received, server=self.server)
                # Without counts from the server, the most it can have been: a token is a byte at least.
                counted = openai_wire.usage_of(reply, server=self.server)
                usage = counted or records.Usage(most.prompt_tokens, most.generated_tokens or len(received))
                hold.book(tokens=usage.total_tokens, cost=self._cost(usage))
                return openai_wire.response_of(reply, server=self.server, usage=usage, cost=self._cost(usage))
            except TimeoutError:
                raise Retry(f"no answer within {limit:.3g} s; raise timeout=… if it is only slow") from None
            except errors.ServerError as error:
                raise errors.ServerError(self._without_key(str(error))) from None

    async def _send(self, client: Any, body: dict[str, Any]) -> bytes:
        """The bytes of the answer, as long as there are not absurdly many."""
        asked = client.chat.completions.with_streaming_response.create(
            model=self.model, messages=body["messages"], extra_body=body
        )
        async with asked as answer:
            received = bytearray()
            async for piece in answer.iter_bytes():
                received += piece
                if len(received) > LARGEST_BODY:
                    raise errors.ServerError(
                        f"{self.server} sent more than {LARGEST_BODY / 2**20:g} MiB as one answer: lower "
                        "max_output_tokens, or look at what runs there"
                    )
            return bytes(received)

    @contextlib.asynccontextmanager
    async def _translated(self, hold: budgets.Hold) -> AsyncIterator[None]:
        """The library's errors as Sonde's; what surely cost nothing is given back to the budget."""
        openai, httpx = _library()
        try:
            yield
        except openai.APIStatusError as error:
            hold.give_back()
            raise self._refusal(error) from None
        except (openai.APIConnectionError, httpx.HTTPError) as error:
            cause = error.__cause__ or error
            if isinstance(cause, (httpx.ConnectError, httpx.UnsupportedProtocol)):
                hold.give_back()  # nothing was sent
            what = openai_wire.clip(f"{type(cause).__name__}: {cause}")
            raise Retry(f"the connection failed ({what}); is the server running, and base_url right?") from None

    def _refusal(self, error: Any) -> Exception:
        """What a status of 400 or more means."""
        status, body = error.status_code, error.body
        said = body.get("message") if isinstance(body, Mapping) else body
        said = self._without_key(openai_wire.clip(said if isinstance(said, str) else error.message))
        what = f"{self.server} refused the request with status {status}: {said or 'no reason given'}"
        if status == 429 and error.code == "insufficient_quota":
            return errors.ServerError(f"{what}; the account has no credit left")
        if status in RETRIED or status >= 500:
            return Retry(f"status {status}: {said}", openai_wire.asked_pause(error.response.headers))
        if status in (401, 403):
            return errors.RequestError(f"{what}; check the key: set OPENAI_API_KEY, or pass api_key=…")
        if status == 404:
            return errors.RequestError(f"{what}; check the model {self.model!r}, and base_url, which often ends in /v1")
        return errors.RequestError(what)

    async def _pause(self, why: Retry, attempt: int, deadline: float) -> None:
        """Waits before the next attempt, if there is to be one."""
        pause = growing_pause(self.options.backoff, attempt) if why.pause is None else why.pause
        tried = f"{self.server} gave no answer in {attempt + 1} attempts; the last: {self._without_key(str(why))}"
        if attempt >= self.options.retries:
            raise errors.ServerError(tried) from None
        if time.monotonic() + pause >= deadline:
            left = f"the next would be in {pause:.3g} s, past total_timeout={self.options.total_timeout:g}"
            raise errors.ServerError(f"{tried}; {left}") from None
        await asyncio.sleep(pause)

    def _body(self, request: records.LLMRequest) -> dict[str, Any]:
        own = {field.name: getattr(self.options, field.name) for field in dataclasses.fields(Options)}
        body = openai_wire.body_of(request, own, limit_field=self._limit_field)
        return body | ({"logprobs": True} if own["logprobs"] else {}) | openai_wire.plain(own["extra_body"] or {})

    def _most(self, body: dict[str, Any]) -> records.Usage:
        """The most tokens a request could take: a token is a byte at least, and the template may add some."""
        limit = body.get(self._limit_field)
        if limit is None and self.budget and (self.budget.tokens is not None or self.budget.cost is not None):
            raise errors.BudgetError(
                "a budget of tokens or cost cannot be kept for a request without max_output_tokens: set it on the "
                "request or on the client"
            )
        text = json.dumps([body["messages"], body.get("tools")], ensure_ascii=False)
        return records.Usage(len(text.encode()) + TEMPLATE, int(limit or 0) * int(body.get("n", 1)))

    def _cost(self, usage: records.Usage) -> float:
        return openai_wire.cost_of(usage, self.options.prices)

    @property
    def _limit_field(self) -> str:
        hosted = (urllib.parse.urlsplit(self.base_url).hostname or "") == "api.openai.com"
        return self.options.limit_field or ("max_completion_tokens" if hosted else "max_tokens")

    def _check(self) -> None:
        own, parts = self.options, urllib.parse.urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise errors.RequestError(f"base_url must begin with http:// or https://, got {self.server!r}")
        if not self._key:
            raise errors.RequestError(f"no key for {self.server}: set OPENAI_API_KEY, or pass api_key=…")
        if not (self._key.isascii() and self._key.isprintable()):
            raise errors.RequestError("the key has characters that no key has: copy it again, or check OPENAI_API_KEY")
        if own.retries < 0 or own.at_once < 1 or min(self.timeout, own.total_timeout) <= 0 or own.backoff < 0:
            raise errors.RequestError(
                f"retries and backoff must be at least 0, at_once at least 1 and timeouts positive, got {own}"
            )
        if self.budget is not None and self.budget.cost is not None and own.prices is None:
            raise errors.RequestError(
                "a budget of cost needs prices=(per million prompt tokens, per million generated)"
            )

    def _of_this_loop(self) -> tuple[Any, asyncio.Semaphore]:
        """The library's client, and the turns that requests take, for the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._loops:
                self._loops = {known: value for known, value in self._loops.items() if not known.is_closed()}
                self._loops[loop] = (self._connected(), asyncio.Semaphore(self.options.at_once))
            return self._loops[loop]

    def _connected(self) -> Any:
        openai, httpx = _library()
        transport = openai.DefaultAsyncHttpxClient(
            limits=httpx.Limits(max_keepalive_connections=0),
            timeout=None,  # each attempt has its own, over everything
            trust_env=not self._local,  # a proxy does not lead to this machine
        )
        return openai.AsyncOpenAI(
            api_key=self._key, base_url=self.base_url, timeout=None, max_retries=0, http_client=transport
        )

    def _without_key(self, text: str) -> str:
        """A text without the key, and without the beginnings of it that cutting a text short leaves."""
        for length in range(len(self._key), SHORTEST_SECRET - 1, -1):
            text = text.replace(self._key[:length], "***")
        return text


def growing_pause(backoff: float, attempt: int) -> float:
    """Seconds to wait after a failed attempt, counted from 0: doubling, bounded, and never the same for two clients."""
    return min(backoff * 2.0 ** min(attempt, 60), LONGEST_PAUSE) * random.uniform(0.5, 1.0)


def _library() -> tuple[Any, Any]:
    """The package `openai`, and the HTTP package under it."""
    try:
        import httpx2
        import openai
    except ImportError as error:
        raise errors.MissingExtraError("openai", extra="openai", feature="OpenAIClient") from error
    return openai, httpx2


def _is_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
