"""What may a tool be called with? One dataclass per tool says it to programs, to models and to people.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Note:
        text: str = schemas.field("What was observed, one or two sentences.", most=2000)

    schemas.to_json(Note)                   # a JSON schema, for servers and clients
    schemas.read(Note, {"text": "…"})       # a Note, or an error that says what is wrong with the call

What a model writes is not to be trusted: unknown names, wrong types, over-long texts and numbers that are none are
refused here, before anything is done. Types are str, int, float, bool, a choice of texts (`Literal`), a list of texts or
of whole numbers, and each of these or None. Costs nothing.
"""

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from sonde.core import errors

MOST_CHARACTERS = 2000
MOST_ITEMS = 200
#: The whole of a call's arguments, as JSON.
MOST_ARGUMENTS = 20_000
ToolT = TypeVar("ToolT")
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def field(
    about: str, *, default: Any = dataclasses.MISSING, most: int | float | None = None, least: int | float | None = None
) -> Any:
    """A field of a tool: what it is for, and the limits of its length or value."""
    return dataclasses.field(default=default, metadata={"about": about, "most": most, "least": least})


def to_json(tool: type) -> dict[str, Any]:
    """The JSON schema of a tool's arguments."""
    hints = get_type_hints(tool)
    fields = dataclasses.fields(tool)
    properties = {}
    for one in fields:
        properties[one.name] = _described(hints[one.name], one) | {"description": one.metadata["about"]}
        if one.default is not dataclasses.MISSING and one.default is not None:
            default = one.default
            properties[one.name]["default"] = list(default) if isinstance(default, tuple) else default
    required = [one.name for one in fields if one.default is dataclasses.MISSING]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def read(tool: type[ToolT], given: Any) -> ToolT:
    """The arguments of a call, checked.

    Args:
        tool: The dataclass.
        given: A mapping, or the JSON of one.

    Raises:
        RequestError: They do not fit; says which, and what was expected.
    """
    data = _object(given)
    hints = get_type_hints(tool)
    fields = {one.name: one for one in dataclasses.fields(tool)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(fields))
    if unknown:
        near = errors.suggest(str(unknown[0]), fields)
        raise errors.RequestError(f"no argument {str(unknown[0])[:80]!r}{near}; there are: {', '.join(fields)}")
    values = {}
    for name, one in fields.items():
        if name in data:
            values[name] = _checked(data[name], hints[name], one)
        elif one.default is dataclasses.MISSING:
            raise errors.RequestError(f"the argument {name!r} is missing: {one.metadata['about']}")
    return tool(**values)


def write(call: Any) -> dict[str, Any]:
    """The arguments as JSON data, without those left at their defaults."""
    found = {}
    for one in dataclasses.fields(call):
        value = getattr(call, one.name)
        if one.default is dataclasses.MISSING or value != one.default:
            found[one.name] = list(value) if isinstance(value, tuple) else value
    return found


def _object(given: Any) -> Mapping[str, Any]:
    if isinstance(given, str):
        if len(given) > MOST_ARGUMENTS:
            raise errors.RequestError(
                f"the arguments are {len(given)} characters long, at most {MOST_ARGUMENTS} are read"
            )
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError):
            raise errors.RequestError(f"the arguments are not JSON: {given[:200]!r}") from None
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise errors.RequestError(f"the arguments must be a JSON object, got {str(given)[:200]!r}")
    return given


def _plain(hint: Any) -> tuple[Any, bool]:
    """A type without its None, and whether it had one."""
    if isinstance(hint, types.UnionType):
        rest = [one for one in get_args(hint) if one is not type(None)]
        return rest[0], len(rest) < len(get_args(hint))
    return hint, False


def _described(hint: Any, one: Any) -> dict[str, Any]:
    kind, optional = _plain(hint)
    if get_origin(kind) is Literal:
        found: dict[str, Any] = {"type": "string", "enum": list(get_args(kind))}
    elif get_origin(kind) is tuple:
        item = get_args(kind)[0]
        found = {"type": "array", "items": {"type": _NAMES[item]}, "maxItems": int(one.metadata["most"] or MOST_ITEMS)}
    else:
        found = {"type": _NAMES[kind]}
        lowest, highest = ("minLength", "maxLength") if kind is str else ("minimum", "maximum")
        most = MOST_CHARACTERS if kind is str and one.metadata["most"] is None else one.metadata["most"]
        found |= {
            name: value for name, value in ((lowest, one.metadata["least"]), (highest, most)) if value is not None
        }
    if optional:
        found["type"] = [found["type"], "null"]
        if "enum" in found:
            found["enum"] = [*found["enum"], None]
    return found


def _checked(value: Any, hint: Any, one: Any) -> Any:
    kind, optional = _plain(hint)
    if value is None and optional:
        return None
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            near = errors.suggest(value, choices) if isinstance(value, str) else ""
            raise _wrong(one, f"one of {', '.join(choices)}", value, near)
        return value
    if get_origin(kind) is tuple:
        item, most = get_args(kind)[0], int(one.metadata["most"] or MOST_ITEMS)
        if not isinstance(value, list | tuple) or len(value) > most:
            raise _wrong(one, f"a list of at most {most}", value)
        return tuple(_scalar(part, item, one, listed=True) for part in value)
    return _scalar(value, kind, one)


def _scalar(value: Any, kind: type, one: Any, *, listed: bool = False) -> Any:
    least, most = (None, None) if listed else (one.metadata["least"], one.metadata["most"])
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise _wrong(one, {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind], value)
    if kind is str:
        limit = int(most or MOST_CHARACTERS)
        if not (least or 0) <= len(value.strip()) or len(value) > limit:
            raise _wrong(one, f"a text of {int(least or 0)} to {limit} characters", value)
        return value.encode("utf-8", "replace").decode("utf-8").strip()
    if (
        kind is not bool
        and not listed
        and ((least is not None and value < least) or (most is not None and value > most))
    ):
        raise _wrong(one, f"a number from {least} to {most}", value)
    return value


def _wrong(one: Any, expected: str, got: Any, near: str = "") -> errors.RequestError:
    return errors.RequestError(
        f"{one.name}: expected {expected}, got {str(got)[:120]!r}{near} ({one.metadata['about']})"
    )
