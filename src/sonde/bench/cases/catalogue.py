"""Which cases are there?

    catalogue.get(3).task
    catalogue.ids("core")

Costs nothing until a case is compiled.
"""

from sonde.bench.cases import (
    arithmetic,
    case,
    checks,
    counting,
    joining,
    moving,
    neighbours,
    positions,
    properties,
    sorting,
)
from sonde.core import errors

GROUPS: dict[str, str] = {
    "all": "every case",
    "released": "those of which InterpBench ships a trained model",
    "core": "the released ones with more than one component: methods are compared on them",
}
_THEMES = (arithmetic, checks, counting, joining, moving, neighbours, positions, properties, sorting)
_CASES = {one.id: one for one in sorted((one for theme in _THEMES for one in theme.CASES), key=lambda one: one.id)}


def get(number: int) -> case.Case:
    """The case of this number.

    Raises:
        RequestError: There is none.
    """
    if number not in _CASES:
        near = min(_CASES, key=lambda one: (abs(one - number), one))
        raise errors.RequestError(
            f"no case {number}: they go from {min(_CASES)} to {max(_CASES)}, without 16 and 27; the nearest is {near}"
        )
    return _CASES[number]


def ids(group: str = "all") -> tuple[int, ...]:
    """The numbers of the cases of a group, in order.

    Raises:
        RequestError: There is no such group.
    """
    if group not in GROUPS:
        raise errors.RequestError(f"no group {group!r}; there are {', '.join(GROUPS)}{errors.suggest(group, GROUPS)}")
    return tuple(one.id for one in _CASES.values() if group == "all" or getattr(one, group))
