"""What is a planner? Something that says what to do next, is told what came of it, and says why it stops.

    class Mine:
        name = "mine"
        replays = True

        def steps(self, inquiry):
            reply = yield planning.Call("run_experiment", {"corruption": "skip:0"})
            return "I have seen enough."

A planner is a generator: calls out, replies in, a sentence at the end. One that depends on nothing but the replies can
be taken up after a crash by being told again what it was told before (`replays`). Any other looks into the log of the
inquiry when it begins. Costs nothing.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sonde.lab import desk, inquiries


@dataclass(frozen=True, slots=True)
class Call:
    """A tool to call.

    Attributes:
        tool: Its name.
        arguments: Its arguments: a mapping, or what a language model wrote.
    """

    tool: str
    arguments: Any = field(default_factory=dict)


Steps = Generator[Call, desk.Reply, str]


@runtime_checkable
class Planner(Protocol):
    """Anything that plans."""

    @property
    def name(self) -> str:
        """What it is called in the log."""
        ...

    @property
    def replays(self) -> bool:
        """Whether the same replies always lead to the same calls."""
        ...

    def steps(self, inquiry: inquiries.Inquiry) -> Steps:
        """The calls of an inquiry; returns why it stops."""
        ...
