"""The loop of an inquiry: the planner says what to do, the desk does it, the log remembers, until the planner stops.

    inquiry = loop.begin(book, bench, planner="search", seed=0, limits=budget.Limits(30))
    end = loop.conduct(desk.Desk(bench, inquiry), search.SearchPlanner())

Whatever stops it (Ctrl-C, a dead server, a killed process), the log is whole, and `conduct` on the same inquiry takes it
up: a planner that replays is told what it was told before, another one reads the log. A fork is an inquiry that begins
with the first calls of another. `replay` makes all calls of an inquiry again, in a new one, and `compared` says what differs.

Costs the experiments.
"""

import collections
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sonde.core import errors
from sonde.lab import budget, desk, experiments, inquiries, log, planning, schemas, tools

EXAMPLES = 12
#: Says yes or no to a request, or None to wait no longer.
Approver = Callable[[log.Entry], bool | None]
#: Told after each call: the call, the reply, what is spent.
OnCall = Callable[[planning.Call, desk.Reply, budget.Spent], None]
TOLERANCE = 1e-4
_NUMBERS = ("kept", "accuracy", "loss_delta", "success", "recovery", "auroc")


def begin(book: log.Log, bench: experiments.Experiments, *, most: int = EXAMPLES, **settings: Any) -> inquiries.Inquiry:
    """Begins an inquiry: see `settings_of` and `measure_intact`."""
    inquiry = inquiries.begin(book, settings_of(bench, most=most, **settings))
    measure_intact(bench, inquiry)
    return inquiry


def settings_of(bench: experiments.Experiments, *, most: int = EXAMPLES, **chosen: Any) -> inquiries.InquirySettings:
    """Settings of an inquiry: the intact model is measured on the whole task, and its solved examples are split.

    Args:
        bench: Model and task.
        most: Examples on each side of the split at most.
        **chosen: Further `inquiries.InquirySettings`: planner, seed, limits, approve, more.

    Raises:
        BudgetError: The budget is zero.
        AnalysisError: The intact model cannot do the task.
    """
    given: dict[str, Any] = {
        "model": bench.model.cfg.model_name,
        "task": bench.task.name,
        "n_layers": bench.n_layers,
        "held": bench.held,
    } | chosen
    made = inquiries.InquirySettings(**given)
    budget.check(made.limits, budget.Spent())
    explore, held_out = experiments.split(bench.solved, made.seed, most=most)
    return inquiries.InquirySettings(**given, explore=explore, held_out=held_out)


def measure_intact(bench: experiments.Experiments, inquiry: inquiries.Inquiry) -> None:
    """Writes down how the intact model does on the whole task, unless that was done."""
    if inquiry.entries("run"):
        return
    whole = bench.measure(bench.parse("none"), range(len(bench.task.examples)))
    more = {"split": "all", "prediction": None, "control": None, "intact_seconds": bench.intact_seconds}
    inquiry.append("run", whole.body | more, examples=whole.examples)


def conduct(
    at: desk.Desk, planner: planning.Planner, *, approver: Approver | None = None, on_call: OnCall | None = None
) -> log.Entry | None:
    """Runs an inquiry to its end, from wherever it stopped.

    Args:
        at: Where the tools are used.
        planner: Who decides.
        approver: Who is asked, in approval mode; waits for another process if left out.
        on_call: Told after each call.

    Returns:
        The end, or None if an experiment still waits for a yes.

    Raises:
        BudgetError: The budget is zero.
        ServerError: The planner's server is gone; the log is whole, and the inquiry can be taken up.
    """
    inquiry = at.inquiry
    if (end := inquiry.ended()) is not None:
        return end
    if not inquiry.settings.limits.experiments:
        budget.check(inquiry.settings.limits, inquiry.spent())
    past = collections.deque(inquiry.entries("call") if planner.replays else ())
    steps = planner.steps(inquiry)
    try:
        call = next(steps)
        while True:
            reply = _known(past, call) or _done(at, call, approver or waiting(inquiry))
            if reply.outcome == "pending":
                steps.close()
                return None
            if on_call is not None:
                on_call(call, reply, inquiry.spent())
            call = steps.send(reply)
    except StopIteration as end:
        return inquiry.append("end", {"why": str(end.value)})


def waiting(inquiry: inquiries.Inquiry, *, seconds: int | float | None = None, every: float = 0.2) -> Approver:
    """An approver that waits until another process answers, for so many seconds at most."""

    def wait(request: log.Entry) -> bool | None:
        began = time.monotonic()
        while (said := desk.answer_to(inquiry, request.id)) is None:
            if seconds is not None and time.monotonic() - began >= seconds:
                return None
            time.sleep(every)
        return said

    return wait


def _known(past: "collections.deque[log.Entry]", call: planning.Call) -> desk.Reply | None:
    """What the log says about a call that was made before; from the first new call on, nothing."""
    if past and past[0]["tool"] == call.tool and past[0]["arguments"] == _written(call):
        entry = past.popleft()
        return desk.Reply(entry["outcome"], entry["result"], tuple(entry["made"]))
    past.clear()
    return None


def _written(call: planning.Call) -> Any:
    """Arguments as the log has them."""
    try:
        return schemas.write(schemas.read(tools.get(call.tool).arguments, call.arguments))
    except errors.RequestError:
        return {"text": str(call.arguments)[:500]}


def _done(at: desk.Desk, call: planning.Call, approver: Approver) -> desk.Reply:
    reply = at.call(call.tool, call.arguments)
    while reply.outcome == "pending":
        request = at.inquiry.book.get(reply.result["request"])
        said = approver(request)
        if said is None:
            return reply
        if desk.answer_to(at.inquiry, request.id) is None:
            desk.answer(at.inquiry.book, request.id, yes=said)
        reply = at.call(call.tool, call.arguments)
    return reply


@dataclass(frozen=True, slots=True)
class Repeated:
    """A call that was made again.

    Attributes:
        number: Which call it was, from 0.
        tool: Its tool.
        before: What it made first.
        after: What it made now.
        difference: The largest difference of a number; None where there are none.
        same: Whether outcome and numbers agree.
    """

    number: int
    tool: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    difference: float | None
    same: bool


class Repeater:
    """The planner that makes the calls of another inquiry again, citing what they make now."""

    name, replays = "replay", True

    def __init__(self, old: inquiries.Inquiry) -> None:
        """Takes the inquiry to make again."""
        self._old = old

    def steps(self, inquiry: inquiries.Inquiry) -> planning.Steps:
        """The same calls; says how many came out differently."""
        names = dict[str, str]()
        for entry in self._old.entries("call"):
            reply = yield planning.Call(entry["tool"], _renamed(entry["arguments"], names))
            names |= dict(zip(entry["made"], reply.made, strict=False))
        rows = compared(self._old, inquiry)
        different = sum(not one.same for one in rows)
        return f"A replay of {self._old.id}: {different} of {len(rows)} calls came out differently."


def replay(bench: experiments.Experiments, old: inquiries.Inquiry) -> tuple[inquiries.Inquiry, list[Repeated]]:
    """Makes all calls of an inquiry again, in a new inquiry with the same examples, and compares.

    Raises:
        RequestError: It is about another model; says what differs.
    """
    bench.check(old.settings.held, what=old.id)
    fresh = inquiries.begin(old.book, replayed(old))
    conduct(desk.Desk(bench, fresh), Repeater(old))
    return fresh, compared(old, fresh)


def replayed(old: inquiries.Inquiry) -> inquiries.InquirySettings:
    """The settings of a replay: those of the inquiry, without anybody's yes."""
    more = {**old.settings.more, "replay_of": old.id}
    return inquiries.InquirySettings.read(old.settings.to_json() | {"approve": False, "more": more})


def compared(old: inquiries.Inquiry, fresh: inquiries.Inquiry) -> list[Repeated]:
    """The calls of an inquiry beside those of its replay."""
    rows = list[Repeated]()
    pairs = zip(old.entries("call"), fresh.entries("call", own=True), strict=False)
    for number, (before, after) in enumerate(pairs):
        gap = max(_gaps(before["result"], after["result"]), default=None)
        same = after["outcome"] == before["outcome"] and (gap is None or gap <= TOLERANCE)
        same = same and after["result"].get("status") == before["result"].get("status")
        rows.append(Repeated(number, before["tool"], tuple(before["made"]), tuple(after["made"]), gap, same))
    return rows


def _gaps(before: Any, after: Any) -> list[float]:
    """How far the numbers of two replies lie apart, in the rows of a survey too."""
    if isinstance(before, dict) and isinstance(after, dict):
        shared = {name: (before[name], after[name]) for name in before.keys() & after.keys()}
        apart = [abs(one - other) for name, (one, other) in shared.items()
                 if name in _NUMBERS and isinstance(one, int | float) and isinstance(other, int | float)]  # fmt: skip
        return [*apart, *(gap for pair in shared.values() for gap in _gaps(*pair))]
    if isinstance(before, list) and isinstance(after, list):
        return [gap for pair in zip(before, after, strict=False) for gap in _gaps(*pair)]
    return []


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """Arguments that cite the entries of the new inquiry instead of the old one's."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    return {name: _renamed(one, names) for name, one in value.items()} if isinstance(value, dict) else value
