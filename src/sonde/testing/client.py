"""A client that says what you tell it to: for tests of environments, agents and studies, without a model.

    client = ScriptedClient(["Is it alive?", "Is it a dog?"])
    client = ScriptedClient(lambda request: request.messages[-1]["content"].upper())

It keeps the requests it got, so that a test can look at what was asked.
"""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sonde.agents import reading
from sonde.core import errors, records

Reply = str | records.LLMResponse
Answering = Callable[[records.LLMRequest], Reply | Awaitable[Reply]]


class ScriptedClient:
    """Answers with given texts in turn, or with what a function says; safe to call from many tasks of one loop."""

    def __init__(self, replies: Sequence[Reply] | Answering, *, loop: bool = False) -> None:
        """Takes the script.

        Args:
            replies: Texts (or whole responses) in the order they are given out, or a function from the request to
                one, which may be a coroutine function.
            loop: Whether to start again when all texts are used up.

        Raises:
            ValueError: No replies, or a string where a list of strings is meant.
        """
        if isinstance(replies, str):
            raise ValueError(f"replies must be a list of texts or a function, got one string: write [{replies!r}]")
        if not callable(replies) and not replies:
            raise ValueError("a scripted client needs at least one reply")
        self.replies = replies if callable(replies) else list(replies)
        self.loop = loop
        self.requests: list[records.LLMRequest] = []

    async def __call__(self, request: records.LLMRequest) -> records.LLMResponse:
        """Answers a request; tokens are counted roughly, as words.

        Raises:
            EpisodeError: The replies are used up.
        """
        index, step = len(self.requests), self._step(request)
        self.requests.append(_kept(request))
        reply = self._reply(index, request)
        reply = await reply if inspect.isawaitable(reply) else reply
        if not isinstance(reply, str):
            return reply
        words = [len(str(message.get("content") or "").split()) for message in request.messages]
        prompt = sum(words) + len((request.system_prompt or "").split())
        return records.LLMResponse(
            data=(records.TextData(reply),),
            usage=records.Usage(prompt, len(reply.split())),
            seed=request.seed,
            step=step,
        )

    def _reply(self, index: int, request: records.LLMRequest) -> Reply | Awaitable[Reply]:
        if callable(self.replies):
            return self.replies(request)
        if index >= len(self.replies) and not self.loop:
            raise errors.EpisodeError(
                f"the scripted client has {len(self.replies)} replies and was asked for number {index + 1}, after "
                f"{reading.text_of(request)[-80:]!r}: give it more, or loop=True"
            )
        return self.replies[index % len(self.replies)]

    def _step(self, request: records.LLMRequest) -> int:
        """How many requests of the same episode came before."""
        episode = (request.metadata or {}).get("episode_id")
        return sum((one.metadata or {}).get("episode_id") == episode for one in self.requests)


def _kept(request: records.LLMRequest) -> records.LLMRequest:
    """The request as it is now, whatever its sender does to its messages later."""
    return dataclasses.replace(request, messages=tuple(_plain(message) for message in request.messages))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
