"""Which runs were about layer 11, which answers named Paris, and how do they compare?

    log_query.select(book, "run", where=["layers~11", "kept<0.5"], fields=["id", "corruption", "kept"])
    log_query.group(book, "run", by=["corruption"], of=["kept", "loss"])
    log_query.select(book, "example", where=["completion~Paris", "correct=0"])

A condition is a field, one of = != < <= > >= ~ and a value; ~ is "contains", in a text or in a list. What holds numbers is
compared with a number, or that is an error. Any field of an
entry can be asked for, nested ones with a dot (`control.low`); those of an example are its own, then those of its run.
Nothing that is typed becomes SQL: names are checked against the columns there are, or are parameters like the values.
Costs one scan: some ten milliseconds for ten thousand runs (benchmarks/bench_lab_log.py).
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from sonde.core import errors
from sonde.lab import log

COLUMNS = ("seq", "kind", "inquiry", "time")
_CONDITION = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|!=|=|<|>|~)(?![<>=~!])\s*(.*?)\s*", re.DOTALL)
_FIELD = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_NEWEST = 200
_ORDERED = ("<", "<=", ">", ">=")
#: Fields that hold text, and so may be compared with one.
_TEXTS = frozenset(
    {"id", "run", "kind", "inquiry", "time", "model", "task", "corruption", "corruption_kind", "split", "prediction"}
    | {"prompt", "answer", "completion", "intact_completion", "layers"}
)
_LARGEST = 2**63


def select(
    book: log.Log,
    kind: str = "run",
    *,
    where: Sequence[str] = (),
    fields: Sequence[str] = ("id",),
    newest: bool = False,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Rows that meet all conditions, with the fields asked for.

    Raises:
        SelectorError: A condition does not parse, or no entry of the kind has such a field.
    """
    query = _Query(book, kind)
    query.check([*fields, *(_parts(one)[0] for one in where)])
    asked = [query.field(name) for name in fields]
    conditions = [query.condition(one) for one in where]
    sql = f"SELECT {', '.join(asked)} FROM {query.table}{query.where(conditions)}"  # noqa: S608  # see field()
    sql += f" ORDER BY {query.seq} {'DESC' if newest else 'ASC'}" + (f" LIMIT {int(limit)}" if limit else "")
    rows = book.read(sql, query.values)
    return [{name: _read(cell) for name, cell in zip(fields, row, strict=True)} for row in rows]


def group(
    book: log.Log, kind: str = "run", *, by: Sequence[str], of: Sequence[str] = (), where: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One row per combination of fields: how many entries, and mean, least and most of the numbers asked for.

    Raises:
        SelectorError: A condition does not parse, or no entry of the kind has such a field.
    """
    query = _Query(book, kind)
    query.check([*by, *of, *(_parts(one)[0] for one in where)])
    keys = [query.field(name) for name in by]
    parts = [*keys, "COUNT(*)"]
    parts += [f"{way}({query.field(name)})" for name in of for way in ("AVG", "MIN", "MAX")]
    conditions = [query.condition(one) for one in where]
    places = ", ".join(str(place) for place in range(1, len(by) + 1))
    sql = f"SELECT {', '.join(parts)} FROM {query.table}{query.where(conditions)} GROUP BY {places} ORDER BY {places}"  # noqa: S608
    rows = book.read(sql, query.values)
    named = [*by, "n", *(f"{name}.{way}" for name in of for way in ("mean", "least", "most"))]
    return [{name: _read(cell) for name, cell in zip(named, row, strict=True)} for row in rows]


class _Query:
    """A statement in the making: the tables it needs, and the values of its parameters in the order they are named."""

    def __init__(self, book: log.Log, kind: str) -> None:
        known = (*log.LETTERS, "example")
        if kind not in known:
            raise errors.SelectorError(f"no kind {kind!r}{errors.suggest(kind, known)}; known: {', '.join(known)}")
        self.book, self.kind, self.values = book, kind, list[Any]()
        self.runs, self.bodies = kind == "run", kind not in ("run", "example")

    @property
    def seq(self) -> str:
        """The number of the entry, or of the run that an example belongs to."""
        return {"example": "examples.run", "run": "runs.seq"}.get(self.kind, "entries.seq")

    @property
    def table(self) -> str:
        """The tables: only those that hold what is asked for."""
        first, *rest = (
            (["examples"] if self.kind == "example" else []) + ["runs"] * self.runs + ["entries"] * self.bodies
        )
        return first + "".join(f" JOIN {other} ON {other}.seq = {self.seq}" for other in rest)

    def field(self, name: str) -> str:
        """The expression of a field; its name is checked, and a path in the body is a parameter."""
        if not _FIELD.fullmatch(name):
            raise errors.SelectorError(f"{name!r} is no field: write letters, digits and _, nested ones with a dot")
        column = self.column(name)
        if column:
            return column
        self.bodies = True
        self.values.append(_path(name))
        return "json_extract(entries.body, ?)"

    def column(self, name: str) -> str:
        """The column of a field; empty if it has none."""
        if name == "id" or (name == "run" and self.kind == "example"):
            kind = "run" if self.kind == "example" else self.kind
            return f"'{log.LETTERS[kind]}' || {self.seq}"
        if name == "seq":
            return self.seq
        if self.kind == "example" and name in log.EXAMPLE:
            return f"examples.{name}"
        if self.kind in ("run", "example") and name in (*log.RUN, "inquiry", "time"):
            self.runs = True
            return f"runs.{name}"
        if name in COLUMNS:
            self.bodies = True
            return f"entries.{name}"
        return ""

    def condition(self, text: str) -> str:
        """The expression of a condition."""
        name, sign, value = _parts(text)
        wanted = sign in _ORDERED or (sign != "~" and self.column(name))
        if wanted and name not in _TEXTS and not isinstance(value, int | float):
            raise errors.SelectorError(
                f"{text!r}: {name} is compared with a number, got {value!r}; write such as {name}<0.5"
            )
        field = self.field(name)
        if sign != "~":
            self.values.append(value)
            return f"{field} {'IS NOT' if sign == '!=' else sign} ?"
        if name == "layers" and self.column(name):
            self.values.append(value)
            return "EXISTS (SELECT 1 FROM json_each(runs.layers) WHERE json_each.value = ?)"
        if self.column(name):
            self.values.append(str(value))
            return f"instr(lower({field}), lower(?)) > 0"
        path = self.values.pop()
        self.values += [path, path, value, path, str(value)]
        listed = "EXISTS (SELECT 1 FROM json_each(entries.body, ?) WHERE json_each.value = ?)"
        texted = "instr(lower(json_extract(entries.body, ?)), lower(?)) > 0"
        return f"CASE json_type(entries.body, ?) WHEN 'array' THEN {listed} ELSE {texted} END"

    def where(self, conditions: Sequence[str]) -> str:
        """The where clause."""
        parts = list(conditions)
        if self.kind not in ("run", "example"):
            self.values.append(self.kind)  # the last parameter: the conditions have theirs already
            parts.append("entries.kind = ?")
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def check(self, fields: Sequence[str]) -> None:
        """Says which field does not exist: none of the columns, and in no body of the kind."""
        kind = "run" if self.kind == "example" else self.kind
        for name in fields:
            first = name.split(".")[0]
            if self.column(name) or not _FIELD.fullmatch(name):
                continue
            some = "SELECT 1 FROM entries WHERE kind = ? AND instr(body, ?) > 0 LIMIT 1"
            if self.book.read("SELECT 1 FROM entries WHERE kind = ? LIMIT 1", (kind,)) and not self.book.read(
                some, (kind, f'"{first}":')
            ):
                known = sorted(self._names(kind))
                raise errors.SelectorError(
                    f"no {self.kind} has a field {name!r}{errors.suggest(name, known)}; there are: {', '.join(known)}"
                )

    def _names(self, kind: str) -> set[str]:
        """Fields of the newest entries, and the columns."""
        newest = "SELECT body FROM entries WHERE kind = ? ORDER BY seq DESC LIMIT ?"
        names = {key for (body,) in self.book.read(newest, (kind, _NEWEST)) for key in log.body_of(body)}
        return names | {*COLUMNS, "id"} | ({"run", *log.EXAMPLE} if self.kind == "example" else set())


def _path(name: str) -> str:
    """A field as a path in the body."""
    return "$" + "".join(f'."{part}"' for part in name.split("."))


def _parts(text: str) -> tuple[str, str, Any]:
    """Field, sign and value of a condition."""
    match = _CONDITION.fullmatch(text)
    if not match:
        raise errors.SelectorError(f"{text!r} is no condition; write such as corruption=skip:11, kept<0.5 or layers~11")
    name, sign, value = match.groups()
    try:
        number = json.loads(value)
    except ValueError:
        return name, sign, value
    if not isinstance(number, int | float):
        return name, sign, value
    if not math.isfinite(number):
        raise errors.SelectorError(f"{text!r}: {value} is no number that anything could be compared with")
    return name, sign, number if -_LARGEST <= number < _LARGEST else float(number)


def _read(cell: Any) -> Any:
    """Lists and objects come out of the body as their JSON."""
    if isinstance(cell, str) and cell[:1] in ("[", "{"):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return cell
