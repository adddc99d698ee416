"""Does an environment keep the promises that agents, recordings and studies rely on?

    report = await check_environment(MyEnvironment, ScriptedClient(["Is it alive?"], loop=True))
    print(report)

Any object with the methods of an environment can be checked; it need not inherit from Sonde. The client is asked for
at most `episodes` × `max_steps` actions; the environment is made and started about thirty times.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from sonde.testing import checks, conduct
from sonde.testing import stage as testing_stage

_CHECKS = checks.CHECKS | conduct.CHECKS
#: What each check is about, by its name.
CHECKS: dict[str, str] = {name: (check.__doc__ or "").strip() for name, check in _CHECKS.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found.

    Attributes:
        name: Of the check.
        promise: What it checks, in words.
        outcome: Whether the promise is kept.
        detail: What is broken, or why the check was skipped; empty if all is well.
    """

    name: str
    promise: str
    outcome: Literal["kept", "broken", "skipped"]
    detail: str = ""

    def __str__(self) -> str:
        """One line, or two."""
        return f"{self.outcome:8}{self.name}: {self.promise}" + (f"\n        {self.detail}" if self.detail else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What all checks found, in their order."""

    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether no promise is broken."""
        return not self.broken

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """The checks that found something."""
        return tuple(one for one in self.verdicts if one.outcome == "broken")

    @property
    def skipped(self) -> tuple[Verdict, ...]:
        """The checks that do not apply."""
        return tuple(one for one in self.verdicts if one.outcome == "skipped")

    def __str__(self) -> str:
        """All verdicts, one after the other."""
        return "\n".join(map(str, self.verdicts))


async def check_environment(
    factory: Callable[[], Any],
    client: Any,
    *,
    episodes: int = 2,
    max_steps: int = 50,
    deterministic: bool = True,
    patience: float = 60.0,
) -> Report:
    """Puts an environment through every check.

    Args:
        factory: Makes the environment, each time with the same settings and seed; may be a coroutine function.
        client: Answers its requests.
        episodes: How many to play with the client, at least 2 to compare one with the next.
        max_steps: How many steps an episode may take.
        deterministic: Whether the same actions must give the same observations. Without it `replay` is skipped and
            the other checks compare less: set it for an environment with a model of its own inside.
        patience: Seconds that a check, or playing the episodes, may take before it counts as hanging.
    """
    if episodes < 1 or max_steps < 1:
        raise ValueError(f"episodes and max_steps must be at least 1, got {episodes} and {max_steps}")
    stage = testing_stage.Stage(factory, max_steps, deterministic)
    try:
        async with asyncio.timeout(patience):
            await stage.rehearse(client, episodes)
    except TimeoutError:
        stage.trouble = f"playing {episodes} episodes took longer than {patience} s"
    return Report(tuple([await judged(name, CHECKS[name], _CHECKS[name](stage), patience) for name in _CHECKS]))


async def assert_conforms(factory: Callable[[], Any], client: Any, **options: Any) -> None:
    """Puts an environment through every check and lists what is broken; options as for `check_environment`.

    Raises:
        AssertionError: A promise is broken.
    """
    assert_kept(await check_environment(factory, client, **options))


def assert_kept(report: Report) -> None:
    """Lists what is broken.

    Raises:
        AssertionError: A promise is broken.
    """
    if not report.ok:
        lines = "\n".join(map(str, report.broken))
        raise AssertionError(f"{len(report.broken)} of {len(report.verdicts)} checks found something:\n{lines}")


async def judged(name: str, promise: str, check: Awaitable[None], patience: float) -> Verdict:
    """The verdict of one check, which may take so many seconds."""
    limit = asyncio.timeout(patience)
    try:
        async with limit:
            await check
    except testing_stage.Skipped as why:
        return Verdict(name, promise, "skipped", str(why))
    except testing_stage.Broken as what:
        return Verdict(name, promise, "broken", str(what))
    except Exception as error:  # whatever is checked raises is its answer
        detail = f"no answer within {patience} s" if limit.expired() else f"raised {testing_stage.named(error)}"
        return Verdict(name, promise, "broken", detail)
    return Verdict(name, promise, "kept")
