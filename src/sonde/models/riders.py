"""Who rides along: captures and intervention managers in force, per task or thread, not per process.

Entering a capture or a manager puts it into a context variable, so that two asyncio tasks, or two threads, that drive
one model never see each other's. A request takes a snapshot of what is in force when it is made.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from sonde.core import interventions as specs
from sonde.models import requests

if TYPE_CHECKING:
    from sonde.models import model as models_model


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """What is about to happen: a step of a conversation, or a bare forward pass.

    Attributes:
        conversation: Identity of the episode; None outside of one.
        step: Step of the episode as the client counts; None for a bare forward pass.
    """

    conversation: int | None = None
    step: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class InForce:
    """What a rider contributes to a call.

    Attributes:
        interventions: What to change.
        recorders: Who records.
        step: The step to compare `steps` with, if the rider counts steps itself.
    """

    interventions: tuple[specs.Intervention, ...] = ()
    recorders: tuple[requests.Recorder, ...] = ()
    step: int | None = None


@runtime_checkable
class Rider(Protocol):
    """A capture or a manager."""

    @property
    def model(self) -> "models_model.Model":
        """The model it rides on."""
        ...

    def board(self, call: Call) -> InForce:
        """What it contributes to a call."""
        ...


@dataclasses.dataclass(slots=True, eq=False)
class _Seat:
    """A rider in force; `taken` ends with its block, also for tasks started in the block that outlive it."""

    rider: Rider
    taken: bool = True


_seats: contextvars.ContextVar[tuple[_Seat, ...]] = contextvars.ContextVar("sonde_seats", default=())


def of(model: "models_model.Model") -> tuple[Rider, ...]:
    """The riders of a model here and now, outermost first, each once."""
    present = {id(seat.rider): seat.rider for seat in _seats.get() if seat.taken and seat.rider.model is model}
    return tuple(present.values())


def mount(rider: Rider) -> None:
    """Puts a rider in force, here and in tasks started from here."""
    rider.model.gate.open()
    _seats.set((*_seats.get(), _Seat(rider)))


def unmount(rider: Rider) -> None:
    """Takes it out of force; if it was put in force twice, once."""
    seats = _seats.get()
    own = [seat for seat in seats if seat.rider is rider and seat.taken]
    if own:
        own[-1].taken = False
    _seats.set(tuple(seat for seat in seats if seat.taken))
    rider.model.gate.close()


@contextlib.contextmanager
def riding(rider: Rider) -> Iterator[None]:
    """Puts a rider in force for a block."""
    mount(rider)
    try:
        yield
    finally:
        unmount(rider)
