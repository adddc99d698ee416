"""What may a step of a trajectory on disk say?

Ranges are short to write and long to read: `[0, 1000000000000]` would be a terabyte of numbers. So they are held to the
records that there are and to the longest context that anybody has. Costs a look at each range.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pydantic

from sonde.store import damage, schemas

#: Slots of one context.
LONGEST = 1 << 26
_Range = tuple[Annotated[pydantic.StrictInt, pydantic.Field(ge=-1, lt=2**62)], schemas.Count]
_Ranges = Annotated[list[_Range], pydantic.Field(fail_fast=True)]


class _Call(pydantic.BaseModel):
    records: _Ranges
    positions: _Ranges | None = None
    prompt_length: schemas.Count
    generated: Annotated[list[schemas.Count], pydantic.Field(fail_fast=True)]
    episode_step: schemas.Count
    row: schemas.Count


class _Step(pydantic.BaseModel):
    calls: Annotated[list[_Call], pydantic.Field(fail_fast=True)]
    metadata: schemas.Data


class _Amendment(pydantic.BaseModel):
    amends: schemas.Count
    metadata: schemas.Data


STEP = schemas.register("step of a trajectory", _Step)
AMENDMENT = schemas.register("amendment to a step", _Amendment)


def check(line: Mapping[str, Any], *, steps: int, records: int) -> None:
    """Checks a step as it was read.

    Args:
        line: The step.
        steps: How many came before it.
        records: How many records the episode has.

    Raises:
        UnreadableError: It is no step of a trajectory, or speaks of steps or records that are not there.
    """
    if "amends" in line:
        schemas.check(line, AMENDMENT)
        if line["amends"] >= steps:
            raise damage.UnreadableError(f"amends step {line['amends']} of {steps}")
        return
    schemas.check(line, STEP)
    for call in line["calls"]:
        slots = _length(call["records"])
        if any(stop > records for first, stop in call["records"] if first >= 0):
            raise damage.UnreadableError(f"has records that are not among the {records} of the episode")
        if call.get("positions") is not None and _length(call["positions"]) != slots:
            raise damage.UnreadableError("has other positions than records")
        if call["prompt_length"] > slots:
            raise damage.UnreadableError(f"has a prompt of {call['prompt_length']} in a context of {slots}")


def _length(ranges: Sequence[Sequence[int]]) -> int:
    """Returns how many numbers ranges stand for."""
    slots = 0
    for first, stop in ranges:
        if first >= stop and first >= 0:
            raise damage.UnreadableError(f"has the range {first} to {stop}")
        slots += stop - first if first >= 0 else stop
    if slots > LONGEST:
        raise damage.UnreadableError(f"has a context of {slots} slots")
    return slots
