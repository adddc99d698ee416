"""What does a line of steps.jsonl say, and which lines of a file can be trusted?

    {"index": 3,                             the step's number, counted from 0
     "record": [4096, 8300],                 first byte and end of its record in the journal
     "arrays": {"name": [40, 48, "crc32"]},  rows of each array that this step added, and their CRC-32
     "step": {...},                          what the caller recorded
     "crc32": "89abcdef"}                    of all bytes of the line before the comma in front of this key

A line that lacks its newline was being written when the process stopped: it was never promised to anybody and
is passed over. Anything else that does not check out is damage. Costs one pass over the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonde.store import damage, documents

NAME = "steps.jsonl"
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
    """All trustworthy lines of a file, where the last of them ends, and what is damaged."""

    lines: list[Line]
    end: int
    unterminated: bool
    problems: list[damage.Damage]


def encode(line: Line) -> bytes:
    """Returns the line as bytes, newline included."""
    rows = {name: [start, stop, f"{crc:08x}"] for name, (start, stop, crc) in line.arrays.items()}
    content = {"index": line.index, "record": line.record, "arrays": rows, "step": line.step}
    return documents.seal_line(content)


def parse(path: Path, data: bytes) -> Log:
    """Reads all lines, noting damaged ones instead of stopping at them."""
    lines: list[Line] = []
    problems: list[damage.Damage] = []
    *whole, tail = data.split(b"\n")
    for number, text in enumerate(whole):
        content = documents.unseal_line(text)
        if content is None:
            problems.append(damage.Damage(path, "the checksum of the line does not match", step=number))
        elif content["index"] != number:
            problem = f"found step {content['index']} on line {number + 1}: lines are missing or doubled"
            problems.append(damage.Damage(path, problem, step=number))
        else:
            lines.append(_line(content))
    end = len(data) - len(tail)
    content, size = _unterminated(tail)
    if content is None or content["index"] != len(whole):
        return Log(lines, end, False, problems)
    lines.append(_line(content))
    return Log(lines, end + size, True, problems)


def _unterminated(tail: bytes) -> tuple[dict[str, Any] | None, int]:
    """Returns the content of a last line that is complete but for its newline, and its length."""
    for size in (len(tail), len(tail) - 1):
        content = documents.unseal_line(tail[:size]) if size > 0 else None
        if content is not None:
            return content, size
    return None, 0


def _line(content: Mapping[str, Any]) -> Line:
    rows = {name: (start, stop, int(crc, 16)) for name, (start, stop, crc) in content["arrays"].items()}
    first, end = content["record"]
    return Line(content["index"], (first, end), rows, content["step"])
