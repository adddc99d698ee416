"""What can be the secret of a game, and what is true of it.

`objects.json` says for each object which attributes are true and which depend; whatever is neither is false. A category
gives its objects defaults, which an object may overrule; what an attribute implies is added. The table is read once and
checked as it is read, in some 10 ms: a contradiction is an error, never an answer.

    thing("sofa").truth("furniture")   # True
    thing("shirt").truth("red")        # None: it depends
"""

import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sonde.core import errors

Table = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Thing:
    """One object to guess.

    Attributes:
        name: What it is called.
        category: The group it belongs to.
        synonyms: Other names that win.
        related: Kinds of it and near names: no win, and no clear answer.
        yes: Attributes that are true.
        unknown: Attributes that depend.
        size: Its usual longest side, in metres; None if not known.
        weight: Its usual weight in kilograms; None if not known.
    """

    name: str
    category: str = "other"
    synonyms: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    yes: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    size: float | None = None
    weight: float | None = None

    @property
    def id(self) -> str:
        """The name as a task id."""
        return "-".join(self.name.lower().split())

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that wins."""
        return (self.name, *self.synonyms)

    def truth(self, attribute: str) -> bool | None:
        """Whether the attribute is true; None if that depends."""
        return None if attribute in self.unknown else attribute in self.yes


def things() -> tuple[Thing, ...]:
    """All objects of the table, in its order."""
    return tuple(_known().values())


def thing(name: str) -> Thing:
    """The object of that name, synonym or id.

    Raises:
        ValueError: The table has no such object; names the nearest.
    """
    wanted = " ".join(name.lower().replace("-", " ").split())
    found = _known().get(wanted) or next((one for one in things() if wanted in one.names), None)
    if found is None:
        raise ValueError(f"no object {name!r} in the table of {len(_known())}{errors.suggest(wanted, _known())}")
    return found


def attributes() -> Mapping[str, str]:
    """Every attribute of the table, with what it means."""
    return _table()["attributes"]


def build(table: Table) -> dict[str, Thing]:
    """The objects of a table.

    Raises:
        ValueError: The table contradicts itself; the message lists how.
    """
    problems = contradictions(table)
    if problems:
        raise ValueError("the table of objects contradicts itself: " + "; ".join(problems[:5]))
    return {row["name"]: _thing(row, table) for row in table["objects"]}


def contradictions(table: Table) -> list[str]:
    """Everything in a table that cannot be: unknown words, a name twice, true and false at once."""
    problems = _strange_words(table)
    owners: dict[str, str] = {}
    for row in table["objects"]:
        for name in (row["name"], *row["synonyms"]):
            if name in owners:
                problems.append(f"{name!r} names both {owners[name]} and {row['name']}")
            owners[name] = row["name"]
        problems += _contradictions_of(row, table)
    return problems


def _contradictions_of(row: Mapping[str, Any], table: Table) -> list[str]:
    name, problems = row["name"], []
    stated = [(word, kind) for kind in ("yes", "unknown", "no") for word in row[kind]]
    said = dict(stated)
    if len(said) < len(stated):
        twice = sorted({word for word, kind in stated if said[word] != kind})
        problems.append(f"{name}: said in two ways: {twice}")
    true = _true(row, table)
    problems += [
        f"{name}: {word} is implied but {said[word]}" for word in sorted(true) if said.get(word, "yes") != "yes"
    ]
    for group in table["exclusions"]:
        both = [word for word in group if word in true]
        if len(both) > 1:
            problems.append(f"{name}: cannot be all of {both}")
    return problems


def _strange_words(table: Table) -> list[str]:
    known = set(table["attributes"])
    used = [("implications", [word, *implied]) for word, implied in table["implications"].items()]
    used += [("exclusions", group) for group in table["exclusions"]]
    used += [(name, category["yes"] + category["unknown"]) for name, category in table["categories"].items()]
    used += [(row["name"], row["yes"] + row["unknown"] + row["no"]) for row in table["objects"]]
    strange = [f"{where}: no attribute {word!r}" for where, words in used for word in words if word not in known]
    homeless = [row["name"] for row in table["objects"] if row["category"] not in table["categories"]]
    return strange + [f"{name}: unknown category" for name in homeless]


def _true(row: Mapping[str, Any], table: Table) -> set[str]:
    """What is true of an object: its category's defaults unless overruled, its own, and all that follows."""
    category = table["categories"].get(row["category"], {"yes": [], "unknown": []})
    overruled = {*row["unknown"], *row["no"]}
    return _closure([word for word in category["yes"] if word not in overruled] + row["yes"], table["implications"])


def _thing(row: Mapping[str, Any], table: Table) -> Thing:
    true = _true(row, table)
    category = table["categories"][row["category"]]
    unknown = {word for word in category["unknown"] if word not in row["no"]} | set(row["unknown"])
    return Thing(
        row["name"],
        row["category"],
        tuple(row["synonyms"]),
        tuple(row["related"]),
        yes=frozenset(true),
        unknown=frozenset(unknown - true),
        size=row["size"],
        weight=row["weight"],
    )


def _closure(words: Iterable[str], implications: Mapping[str, Sequence[str]]) -> set[str]:
    true, waiting = set(), list(words)
    while waiting:
        word = waiting.pop()
        if word not in true:
            true.add(word)
            waiting += implications.get(word, ())
    return true


@functools.cache
def _known() -> dict[str, Thing]:
    return build(_table())


@functools.cache
def _table() -> dict[str, Any]:
    file = importlib.resources.files("sonde.agents.twenty_questions") / "objects.json"
    return json.loads(file.read_text(encoding="utf-8"))
