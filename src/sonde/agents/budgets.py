"""How much may clients spend, all together? A hard stop, in money, tokens or requests, shared between clients.

    budget = Budget(cost=2.0, tokens=1_000_000)
    oracle, agent = OpenAIClient("a", budget=budget, prices=…), OpenAIClient("b", budget=budget, prices=…)
    budget.spent.cost

Before a request is sent, the most that it could take is set aside; what it really took is booked when it is answered.
A request that could overshoot is refused, not shortened: shortening would change what is measured. Where only other
requests under way stand in its way, a client lets it wait until they are booked. So parallel requests cannot overshoot
together, and the last few per cent of a budget may stay unused. A request of unknown outcome (cancelled, timed out,
connection lost after sending) is booked in full, because the server may have charged it.
"""

import asyncio
import contextlib
import dataclasses
import math
import threading
from types import TracebackType
from typing import Self

from sonde.core import errors

ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """Money, tokens (prompt and generated) and requests (retries counted) together."""

    cost: float = 0.0
    tokens: int = 0
    requests: int = 0


class Budget:
    """A limit that several clients share; safe to use from many tasks and threads."""

    def __init__(self, cost: float | None = None, tokens: int | None = None, requests: int | None = None) -> None:
        """Sets the limits; None means no limit.

        Args:
            cost: Money, in the currency of the clients' prices.
            tokens: Prompt and generated tokens together.
            requests: Requests sent, each retry counted.

        Raises:
            ValueError: A limit is negative or not a number.
        """
        for name, limit in (("cost", cost), ("tokens", tokens), ("requests", requests)):
            if limit is not None and not (limit >= 0 and math.isfinite(limit)):
                raise ValueError(f"the {name} of a budget must be a number from 0, got {limit!r}")
        self.cost, self.tokens, self.requests = cost, tokens, requests
        self._lock = threading.Lock()
        self._spent = Amount()
        self._held: dict[int, Amount] = {}
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def spent(self) -> Amount:
        """What is booked so far."""
        with self._lock:
            return self._spent

    @property
    def held(self) -> Amount:
        """What requests under way could take at most."""
        with self._lock:
            return _sum(*self._held.values())

    def hold(self, *, tokens: int, cost: float = 0.0) -> "Hold":
        """Sets aside what one request could take at most.

        Use the result as a context manager: what is not booked or given back inside is booked in full at its end.

        Raises:
            BudgetError: The budget is used up, or this request could overshoot it.
        """
        asked = Amount(cost, tokens, 1)
        with self._lock:
            if refusal := self._refusal(asked, _sum(*self._held.values())):
                raise refusal
            return self._hold(asked)

    async def wait_and_hold(self, *, tokens: int, cost: float = 0.0) -> "Hold":
        """As `hold`, but waits as long as only other requests under way stand in the way.

        Raises:
            BudgetError: The budget is used up, or this request alone could overshoot it.
        """
        asked, loop = Amount(cost, tokens, 1), asyncio.get_running_loop()
        while True:
            with self._lock:
                if refusal := self._refusal(asked, Amount()):
                    raise refusal
                if self._refusal(asked, _sum(*self._held.values())) is None:
                    return self._hold(asked)
                booked = asyncio.Event()
                self._waiting.append((loop, booked))
            await booked.wait()

    def __repr__(self) -> str:
        """Limits and what is spent."""
        limits = ", ".join(
            f"{getattr(self.spent, name):g} of {limit:g} {name}" for name, limit in self._limits() if limit is not None
        )
        return f"Budget({limits or 'no limit'})"

    def _limits(self) -> tuple[tuple[str, int | float | None], ...]:
        return ("cost", self.cost), ("tokens", self.tokens), ("requests", self.requests)

    def _hold(self, asked: Amount) -> "Hold":
        hold = Hold(self, asked)
        self._held[id(hold)] = asked
        return hold

    def _refusal(self, asked: Amount, held: Amount) -> errors.BudgetError | None:
        """Why a request must not be sent, None if it may."""
        for name, limit in self._limits():
            if limit is None:
                continue
            spent, busy, more = (float(getattr(amount, name)) for amount in (self._spent, held, asked))
            if spent + busy + more <= limit * (1 + ROUNDING):
                continue
            text = f"{spent:g} of {limit:g} {name} spent"
            if spent >= limit:
                return errors.BudgetError(f"the budget is used up: {text}; raise it to go on")
            text += f", {busy:g} held by {held.requests} requests under way" if busy else ""
            todo = "raise the budget, lower max_output_tokens" + (", or send fewer at once" if busy else "")
            return errors.BudgetError(f"this request could overshoot the budget: {text}, it may take {more:g}; {todo}")
        return None

    def _book(self, hold: "Hold", amount: Amount) -> None:
        with self._lock:
            if self._held.pop(id(hold), None) is None:
                return
            self._spent = _sum(self._spent, amount)
            waiting, self._waiting = self._waiting, []
        for loop, booked in waiting:
            with contextlib.suppress(RuntimeError):  # a loop that was closed meanwhile waits for nothing
                loop.call_soon_threadsafe(booked.set)


class Hold:
    """What is set aside for one request."""

    def __init__(self, budget: Budget, amount: Amount) -> None:
        """Made by `Budget.hold`."""
        self.amount = amount
        self._budget = budget

    def book(self, *, tokens: int, cost: float = 0.0) -> None:
        """Books what the request really took; the rest is free again. Only the first booking counts."""
        self._budget._book(self, Amount(cost, tokens, 1))

    def give_back(self) -> None:
        """Books a request that took nothing, because the server refused it or was not reached."""
        self.book(tokens=0)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Books in full what was neither booked nor given back."""
        self._budget._book(self, self.amount)


def _sum(*amounts: Amount) -> Amount:
    return Amount(
        math.fsum(one.cost for one in amounts),
        sum(one.tokens for one in amounts),
        sum(one.requests for one in amounts),
    )
