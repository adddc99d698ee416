"""What the checks of the conformance suite share: rehearsed episodes, fresh environments, and comparing what was seen.

Episodes are rehearsed once with the client; the checks reuse its actions, so that a client that costs money is asked
`episodes` × `max_steps` times at most.
"""

import asyncio
import contextlib
import dataclasses
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from sonde.core import records

FIELDS = tuple(field.name for field in dataclasses.fields(records.LLMRequest))
FALLBACK = records.LLMResponse(data=(records.TextData("Yes."),), usage=records.Usage(1, 1))
GRACE = 1.0


class Broken(Exception):  # noqa: N818  # a verdict, not an error
    """A promise that the environment does not keep, in words."""


class Skipped(Exception):  # noqa: N818
    """Why a check does not apply."""


@dataclasses.dataclass(slots=True)
class Rehearsal:
    """One episode as it was played with the client.

    Attributes:
        steps: The TimeSteps as the environment gave them.
        copies: Their observations, copied the moment they came.
        actions: What the client answered.
    """

    steps: list[Any] = dataclasses.field(default_factory=list)
    copies: list[Any] = dataclasses.field(default_factory=list)
    actions: list[Any] = dataclasses.field(default_factory=list)

    def add(self, step: Any) -> None:
        """Takes up a TimeStep."""
        self.steps.append(step)
        self.copies.append(plain(step.observation))


@dataclasses.dataclass(slots=True)
class Stage:
    """What a check works with.

    Attributes:
        factory: Makes an environment, always the same way.
        max_steps: How long an episode may take.
        deterministic: Whether the same actions must lead to the same observations.
        rehearsals: Episodes of one environment, one after the other.
        trouble: What stopped the rehearsals, empty if nothing did.
    """

    factory: Callable[[], Any]
    max_steps: int
    deterministic: bool
    rehearsals: list[Rehearsal] = dataclasses.field(default_factory=list)
    trouble: str = ""

    async def make(self) -> Any:
        """A fresh environment."""
        env = self.factory()
        return await env if inspect.isawaitable(env) else env

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        """A fresh environment, closed afterwards."""
        env = await self.make()
        try:
            yield env
        finally:
            await env.close()

    @property
    def first(self) -> Rehearsal:
        """The first episode."""
        if not self.rehearsals or not self.rehearsals[0].steps:
            raise Broken(f"no episode could be started: {self.trouble}")
        return self.rehearsals[0]

    @property
    def actions(self) -> list[Any]:
        """Actions to try: those of the first episode."""
        return (self.rehearsals[0].actions if self.rehearsals else []) or [FALLBACK]

    def compare(self, steps: Sequence[Any], episode: int, where: str) -> None:
        """Whether TimeSteps begin as a rehearsed episode did; where chance may play, only their kinds must.

        A None among the steps is passed over.

        Raises:
            Broken: They differ.
        """
        if episode >= len(self.rehearsals):
            return
        for index, (step, before) in enumerate(zip(steps, self.rehearsals[episode].steps, strict=False)):
            if step is None:
                continue
            if self.deterministic:
                same(step, before, f"{where}, TimeStep {index}")
            elif (kind(step) == "first") != (index == 0):
                raise Broken(f"{where}, TimeStep {index} is {shown(step)}")

    async def rehearse(self, client: Any, episodes: int) -> None:
        """Plays episodes with the client; what goes wrong is kept as `trouble`."""
        where = "making the environment"
        try:
            async with self.opened() as env:
                for episode in range(episodes):
                    where = f"reset() of episode {episode}"
                    played = Rehearsal()
                    self.rehearsals.append(played)
                    played.add(await env.reset())
                    while not played.steps[-1].last() and len(played.actions) < self.max_steps:
                        where = f"episode {episode}, step {len(played.actions)}"
                        action = await client(played.steps[-1].observation)
                        step = await env.step(action)
                        played.actions.append(action)
                        played.add(step)
        except Exception as error:  # whatever it is, it is the environment's answer
            self.trouble = f"{where} raised {named(error)}"


Check = Callable[[Stage], Awaitable[None]]


@contextlib.asynccontextmanager
async def under_way(env: Any, action: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """A step that has begun and is not waited for."""
    running = asyncio.ensure_future(env.step(action))
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        yield running
    finally:
        running.cancel()
        await asyncio.wait([running], timeout=GRACE)
        if running.done() and not running.cancelled():
            running.exception()  # looked at, so that nobody complains that it was not


async def replayed(env: Any, actions: Sequence[Any]) -> list[Any]:
    """The TimeSteps of a new episode under given actions."""
    steps = [await env.reset()]
    for action in actions:
        if steps[-1].last():
            break
        steps.append(await env.step(action))
    return steps


async def refuses(env: Any, action: Any, when: str) -> None:
    """A step that must raise.

    Raises:
        Broken: It did not.
    """
    try:
        step = await env.step(action)
    except Exception:  # any error will do: environments that are not Sonde's have their own
        return
    raise Broken(f"step() {when} must raise, but gave {shown(step)}")


def same(left: Any, right: Any, where: str) -> None:
    """Two TimeSteps of which nothing but the episode's id and its info may differ.

    Raises:
        Broken: They differ in kind, reward, discount, messages or system prompt.
    """
    for name, value in seen(left).items():
        other = seen(right)[name]
        if value != other:
            raise Broken(f"{where}: {name} differs, {clip(value)} and {clip(other)}")


def seen(step: Any) -> dict[str, Any]:
    """What an agent sees of a TimeStep, and may rely on."""
    request = plain(step.observation)
    return {
        "kind": kind(step),
        "reward": step.reward,
        "discount": step.discount,
        "messages": request["messages"],
        "system_prompt": request["system_prompt"],
    }


def kind(step: Any) -> str:
    """Whether a TimeStep says it is `first`, `mid` or `last`; more than one word if it says several."""
    return " and ".join(word for word in ("first", "mid", "last") if getattr(step, word)()) or "none of the three"


def ids(step: Any) -> tuple[Any, Any]:
    """The ids of task and episode, None where missing."""
    metadata = getattr(step.observation, "metadata", None) or {}
    return metadata.get("task_id"), metadata.get("episode_id")


def plain(value: Any) -> Any:
    """A deep copy as dicts and lists; of a request, its fields."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "messages"):
        return {name: plain(getattr(value, name, None)) for name in FIELDS}
    return value


def shown(step: Any) -> str:
    """A TimeStep in a few words."""
    return f"a {kind(step)} TimeStep with reward {step.reward!r}"


def named(error: BaseException) -> str:
    """An error in one line."""
    return clip(f"{type(error).__name__}: {error}", 300)


def clip(value: Any, length: int = 120) -> str:
    """Something shown in bounded space."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"
