"""A user's own pairs: one JSON object per line.

    {"clean": "The keys", "corrupt": "The key", "answer": " are", "wrong": " is"}
    {"clean": [12, 7], "corrupt": [12, 8], "answer": [3, 4], "wrong": [5], "name": "third", "cluster": "a"}

`clean` and `corrupt` are texts or lists of token ids; `answer` and `wrong` a text, a token id, or a list of these (`wrong`
may be left out); a text stands for its first token, as written after the clean text, so begin it with a space where one
belongs. `name` and `cluster` are optional. A line that cannot be read is an error; a pair that does not fit is dropped and
reported.
"""

import json
import random
from pathlib import Path
from typing import Any

from sonde.circuits import pairs
from sonde.circuits.tasks import building
from sonde.core import errors

NEEDED, ALLOWED = ("clean", "corrupt", "answer"), ("clean", "corrupt", "answer", "wrong", "name", "cluster")
SHOWN = 5


def make(model: Any, path: str | Path, *, n: int | None = None, seed: int = 0) -> tuple[pairs.Pairs, building.Report]:
    """Pairs from a file, one JSON object per line.

    Args:
        model: Whose tokenizer is used.
        path: The file.
        n: How many pairs to take at most: drawn from the file, in its order; all if None.
        seed: Of that drawing.

    Raises:
        RequestError: The file cannot be read, a line is bad, or no pair fits.
    """
    drafts = read(path)
    builder = building.Builder(model, str(path))
    if n is not None and n < len(drafts):
        chosen = set(random.Random(seed).sample(range(len(drafts)), n))
        others = [draft for place, draft in enumerate(drafts) if place not in chosen]
        drafts = [draft for place, draft in enumerate(drafts) if place in chosen]
        builder.leave_out(others, f"not among the {n} that were drawn")
    builder.fill(drafts, n=None)
    return builder.finish()


def read(path: str | Path) -> list[building.Draft]:
    """The drafts in a file.

    Raises:
        RequestError: It cannot be read, or has bad lines; names them and what is wrong with each.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.RequestError(f"cannot read pairs from {path}: {error}") from error
    drafts, bad = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            drafts.append(_draft(line, f"line {number}"))
        except ValueError as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise errors.RequestError(f"{len(bad)} bad lines in {path}: {'; '.join(bad[:SHOWN])}{more}")
    if not drafts:
        raise errors.RequestError(f"{path} holds no pairs: give one JSON object per line, with {', '.join(NEEDED)}")
    return drafts


def _draft(line: str, where: str) -> building.Draft:
    """One line; a ValueError says what is wrong with it."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(fields, dict):
        raise ValueError(f"a JSON {type(fields).__name__}, expected an object with {', '.join(NEEDED)}")
    missing, unknown = [name for name in NEEDED if name not in fields], [name for name in fields if name not in ALLOWED]
    if missing:
        raise ValueError(f"no {missing[0]!r}")
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}{errors.suggest(unknown[0], ALLOWED)}")
    for name in ("name", "cluster"):
        if not isinstance(fields.get(name, ""), str):
            raise ValueError(f"{name!r} is no text")
    return building.Draft(
        clean=_input(fields["clean"], "clean"),
        corrupt=_input(fields["corrupt"], "corrupt"),
        answers=_options(fields["answer"], "answer"),
        wrongs=_options(fields.get("wrong", []), "wrong"),
        label=fields.get("name", where),
        cluster=fields.get("cluster", ""),
    )


def _input(value: Any, name: str) -> str | list[int]:
    if (isinstance(value, str) and value) or (isinstance(value, list) and value and all(map(_is_id, value))):
        return value
    raise ValueError(f"{name!r} is {_shown(value)}, expected a text or a list of token ids, not empty")


def _options(value: Any, name: str) -> list[str | int]:
    options = value if isinstance(value, list) else [value]
    if all((isinstance(option, str) and option) or _is_id(option) for option in options) and (
        options or name == "wrong"
    ):
        return options
    raise ValueError(f"{name!r} is {_shown(value)}, expected a text, a token id, or a list of them")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"
