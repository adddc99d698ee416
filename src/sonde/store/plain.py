"""How is metadata that JSON cannot say written down without losing it or failing?

What JSON can say is kept (a tuple becomes a list), dataclasses as the mapping of their fields. Keys become strings. Of
two keys that would become the same one, a string keeps its name and the other is told apart by its type:
`{0: "a", "0": "b"}` is `{"0 (int)": "a", "0": "b"}`. Everything else becomes a marked object:

    {"__repr__": "...", "__type__": "module.Class"}    objects, sets, bytes, nan and inf, cycles
    ... plus "__value__": ...                            numpy values and tensors: all their numbers; enums: their value

Only standard JSON comes out. Costs one walk over the value; marking a marked value changes nothing.
"""

import contextlib
import dataclasses
import enum
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MAX_DEPTH = 64  # deeper than any metadata meant to be read, shallow enough for every JSON parser
MAX_INT_BITS = 2048  # Python refuses to print integers of more than 640 to 4300 digits


def jsonable(value: object) -> Any:
    """Returns the value as standard JSON can hold it; never raises, marks what JSON lacks."""
    return _plain(value, [])


def special_float(value: object) -> float | None:
    """Returns the nan or inf that a mark stands for; None for anything else."""
    if isinstance(value, dict) and value.get("__type__") == "float":
        text = value.get("__repr__")
        return float(text) if text in ("nan", "inf", "-inf") else None
    return None


def names_of(keys: Iterable[object]) -> list[str]:
    """The strings that a mapping's keys become, no two of them the same."""
    keys = list(keys)
    taken = {key for key in keys if type(key) is str}
    names: list[str] = []
    for key in keys:
        name = key if type(key) is str else _free(key, taken)
        taken.add(name)
        names.append(name)
    return names


def _free(key: object, taken: set[str]) -> str:
    """A key's text, told apart from names that are taken."""
    text, kind = _text(key), type(key).__name__
    others = (f"{text} ({kind}) {number}" for number in itertools.count(2))
    return next(name for name in itertools.chain((text, f"{text} ({kind})"), others) if name not in taken)


def _plain(value: Any, above: list[int]) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if value.bit_length() <= MAX_INT_BITS else {"__repr__": hex(value), "__type__": "int"}
    if kind is float:
        return value if math.isfinite(value) else _marked(value)
    if kind is list or kind is tuple or isinstance(value, Mapping) or _is_record(value):
        try:
            return _container(value, above)
        except Exception:  # an items() of somebody's class failed: its repr is still worth having
            return _marked(value)
    return _marked(value)


def _container(value: Any, above: list[int]) -> Any:
    """Walks into a list, tuple, mapping or dataclass; `above` holds the ids of the containers around it."""
    if id(value) in above:
        up = len(above) - above.index(id(value))
        return {"__repr__": f"<the same {type(value).__name__} {up} levels up>", "__type__": _type_name(value)}
    if len(above) >= MAX_DEPTH:
        return {"__repr__": _deep_repr(value), "__type__": _type_name(value)}
    above.append(id(value))
    try:
        if isinstance(value, Mapping):
            items = list(value.items())
            names = names_of(key for key, _ in items)
            return {name: _plain(item, above) for name, (_, item) in zip(names, items, strict=True)}
        if _is_record(value):
            return {field.name: _plain(getattr(value, field.name), above) for field in dataclasses.fields(value)}
        return [_plain(item, above) for item in value]
    finally:
        above.pop()


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _marked(value: Any) -> dict[str, Any]:
    """Returns the mark for a value that JSON lacks, with all its numbers if it is an array of some kind."""
    mark: dict[str, Any] = {"__repr__": _repr(value), "__type__": _type_name(value)}
    if isinstance(value, enum.Enum):
        return mark | {"__value__": _plain(value.value, [])}
    with contextlib.suppress(Exception):  # no numbers to be had (a meta tensor, a mock): the repr has to do
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            numbers = value.tolist()  # numpy and torch shorten the repr of long arrays
            if type(numbers) in (list, int, float, bool, str):
                mark["__value__"] = _plain(numbers, [])
    return mark


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"{object.__repr__(value)} (its repr raised {type(error).__name__})"


def _text(key: Any) -> str:
    try:
        return str.__str__(key) if isinstance(key, str) else str(key)
    except Exception:
        return _repr(key)


def _type_name(value: Any) -> str:
    kind = type(value)
    module = str(kind.__module__)
    return str(kind.__qualname__) if module == "builtins" else f"{module}.{kind.__qualname__}"


class _Text(NamedTuple):
    """A finished piece of a repr; `closes` is the id of the container that ends with it."""

    text: str
    closes: int = 0


def _deep_repr(value: Any) -> str:
    """Returns repr(value) of nested lists, tuples and dicts of any depth, without recursion."""
    out: list[str] = []
    inside: set[int] = set()
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if type(item) is _Text:
            out.append(item.text)
            inside.discard(item.closes)
        elif type(item) not in (list, tuple, dict):
            out.append(_repr(item))
        elif id(item) in inside:
            out.append("...")
        else:
            inside.add(id(item))
            todo.extend(reversed(_pieces(item)))
    return "".join(out)


def _pieces(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> list[Any]:
    """Returns what a container's repr is made of: texts, and the values whose repr goes between."""
    start, end = {list: "[]", tuple: "()", dict: "{}"}[type(value)]
    pieces: list[Any] = [_Text(start)]
    for number, item in enumerate(list(value)):
        if number:
            pieces.append(_Text(", "))
        pieces.append(item)
        if isinstance(value, dict):
            pieces += [_Text(": "), value[item]]
    if isinstance(value, tuple) and len(value) == 1:
        pieces.append(_Text(","))
    pieces.append(_Text(end, closes=id(value)))
    return pieces
