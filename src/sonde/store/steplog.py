"""What does a line of steps.jsonl say, and which lines of a file can be trusted?

    {"index": 3,                             the step's number, counted from 0
     "record": [4096, 8300],                 first byte and end of its record in the journal
     "arrays": {"name": [40, 48, "crc32"]},  rows of each array that this step added, and their CRC-32
     "step": {...},                          what the caller recorded
     "crc32": "89abcdef"}                    of all bytes of the line before the comma in front of this key

A line that lacks its newline was being written when the process stopped: it was never promised to anybody and
is passed over. Anything else that does not check out is damage. Costs one pass over the file, line by line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sonde.core import errors
from sonde.store import damage, documents, files

NAME = "steps.jsonl"
#: The most bytes of a line, and of all of them.
LINE_LIMIT, LIMIT = 64 << 20, 4 << 30
CHUNK = 1 << 20
#: How the line of a step begins that only adds to an earlier one: `{"amends": 3, …}`.
AMENDS = b'"step":{"amends":'


@dataclass(frozen=True, slots=True)
class Line:
    """One step as its line tells it."""

    index: int
    record: tuple[int, int]
    arrays: Mapping[str, tuple[int, int, int]]
    step: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """All trustworthy lines of a file, where the last of them ends, how much was read, and what is damaged."""

    lines: list[Line]
    end: int
    size: int
    unterminated: bool
    problems: list[damage.Damage]


def encode(line: Line) -> bytes:
    """Returns the line as bytes, newline included.

    Raises:
        StoreError: It is longer than a line may be.
    """
    rows = {name: [start, stop, f"{crc:08x}"] for name, (start, stop, crc) in line.arrays.items()}
    content = {"index": line.index, "record": line.record, "arrays": rows, "step": line.step}
    text = documents.seal_line(content)
    if len(text) > LINE_LIMIT:
        raise errors.StoreError(
            f"step {line.index} takes {len(text)} bytes as JSON, more than the {LINE_LIMIT} of a line: give its numbers as "
            "arrays, or leave some out"
        )
    return text


def load(path: Path) -> Log:
    """Reads all lines, noting damaged ones instead of stopping at them.

    Raises:
        FileNotFoundError: There is no such file.
    """
    try:
        with files.opened(path) as file:
            files.size_of(file, LIMIT)
            return _load(path, file)
    except damage.UnreadableError as error:
        return Log([], 0, 0, False, [damage.Damage(path, str(error))])


def _load(path: Path, file: BinaryIO) -> Log:
    lines: list[Line] = []
    problems: list[damage.Damage] = []
    number = end = 0
    while (text := file.readline(LINE_LIMIT + 1)).endswith(b"\n"):
        try:
            lines.append(_line(text[:-1], number))
        except damage.UnreadableError as error:
            problems.append(damage.Damage(path, str(error), step=number))
        number, end = number + 1, end + len(text)
    if len(text) > LINE_LIMIT:
        problems.append(damage.Damage(path, f"the line is longer than {LINE_LIMIT} bytes", step=number))
        return Log(lines, end, end + len(text), False, problems)
    last, length = _unterminated(text, number)
    if last is not None:
        lines.append(last)
    return Log(lines, end + length, end + len(text), last is not None, problems)


def _unterminated(tail: bytes, number: int) -> tuple[Line | None, int]:
    """Returns a last line that is complete but for its newline, and its length."""
    for size in (len(tail), len(tail) - 1):
        try:
            return _line(tail[:size], number), size
        except damage.UnreadableError:
            continue
    return None, 0


def _line(text: bytes, number: int) -> Line:
    """Returns what a line says.

    Raises:
        UnreadableError: It is damaged, or stands in the wrong place.
    """
    content = documents.unseal_line(text, "step")
    if content["index"] != number:
        raise damage.UnreadableError(
            f"found step {content['index']} on line {number + 1}: lines are missing or doubled"
        )
    rows = {name: (start, stop, int(crc, 16)) for name, (start, stop, crc) in content["arrays"].items()}
    for name, (start, stop, _) in rows.items():
        if start > stop:
            raise damage.UnreadableError(f"array {name!r} has rows {start} to {stop}")
    first, end = content["record"]
    return Line(content["index"], (first, end), rows, content["step"])
