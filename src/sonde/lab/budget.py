"""How much may an inquiry spend? Hard limits on experiments, tokens and seconds, reckoned from the log.

    limits = budget.Limits(experiments=30, tokens=200_000, seconds=600)
    budget.check(limits, budget.spent(book, "q1"))  # raises when an experiment more would be too much

What is spent is what the log says, so a run that was killed and taken up again has not a second more than one that was
not. Every corruption that is measured counts as an experiment, controls too; a sweep over many counts as one. Replies
that are no valid call are counted apart. Tokens are those of the planner's model, prompts and answers. Seconds are those spent measuring
and waiting for that model; waiting for a person is free. The experiment under way when the seconds run out is finished.

Costs three short queries.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from sonde.core import errors
from sonde.lab import log

#: Tool calls of any kind per experiment, so that a planner that only takes notes ends too.
CALLS_PER_EXPERIMENT = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """The most an inquiry may spend; None is no limit."""

    experiments: int = 30
    tokens: int | None = None
    seconds: int | float | None = None

    def __post_init__(self) -> None:
        """Checks that they are amounts."""
        for name, value in asdict(self).items():
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise errors.RequestError(f"the budget of {name} must be a number from 0, got {value!r}")

    @property
    def calls(self) -> int:
        """The most tool calls of any kind."""
        return CALLS_PER_EXPERIMENT * self.experiments + CALLS_PER_EXPERIMENT


@dataclass(frozen=True, slots=True)
class Spent:
    """What an inquiry has spent."""

    experiments: int = 0
    tokens: int = 0
    seconds: int | float = 0.0
    calls: int = 0
    no_calls: int = 0

    def of(self, limits: Limits) -> str:
        """In words."""
        parts = [f"{self.experiments} of {limits.experiments} experiments"]
        parts += [f"{self.tokens:,} of {limits.tokens:,} tokens"] if limits.tokens is not None else []
        parts += [f"{self.seconds:.0f} of {limits.seconds:g} seconds"] if limits.seconds is not None else []
        if self.no_calls:
            parts.append(f"{self.no_calls} repl{'y that was' if self.no_calls == 1 else 'ies that were'} no valid call")
        return ", ".join(parts)


def spent(book: log.Log, inquiry: str) -> Spent:
    """What an inquiry has spent; what it inherited by a fork is not counted."""
    runs, measuring = book.read(
        "SELECT COALESCE(SUM(runs.split != 'all' AND json_extract(entries.body, '$.sweep') IS NULL), 0), "
        "COALESCE(SUM(runs.seconds), 0.0) FROM runs JOIN entries ON entries.seq = runs.seq WHERE runs.inquiry = ?",
        (inquiry,),
    )[0]
    sweeps, sweeping = book.read(
        "SELECT COUNT(*), COALESCE(SUM(json_extract(body, '$.seconds')), 0.0) FROM entries "
        "WHERE inquiry = ? AND kind = 'sweep'",
        (inquiry,),
    )[0]
    parts = ", ".join(f"COALESCE(SUM(json_extract(body, '$.{name}')), 0)" for name in ("tokens", "strikes", "seconds"))
    usage = f"SELECT {parts} FROM entries WHERE inquiry = ? AND kind = 'usage'"  # noqa: S608  # our own names
    tokens, strikes, planning = book.read(usage, (inquiry,))[0]
    (calls,) = book.read("SELECT COUNT(*) FROM entries WHERE inquiry = ? AND kind = 'call'", (inquiry,))[0]
    return Spent(runs + sweeps, tokens, float(measuring + sweeping + planning), calls, strikes)


def check(limits: Limits, used: Spent) -> None:
    """Checks that one more experiment is within the limits.

    Raises:
        BudgetError: It is not.
    """
    what: dict[str, tuple[Any, Any]] = {
        "experiments": (used.experiments, limits.experiments),
        "tokens": (used.tokens, limits.tokens),
        "seconds": (round(used.seconds, 1), limits.seconds),
        "tool calls": (used.calls, limits.calls),
    }
    for name, (amount, limit) in what.items():
        if limit is not None and amount >= limit:
            nothing = "the budget is zero, so nothing is measured" if not limit else "the budget is spent"
            raise errors.BudgetError(
                f"{nothing}: {amount} of {limit:g} {name} used; conclude from what is there, or begin with a larger budget"
            )
