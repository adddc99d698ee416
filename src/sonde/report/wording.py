"""How are numbers and foreign texts put into words, the same in a table, a hover label, a PNG and a terminal?

Costs nothing.
"""

import dataclasses
import math
import re

NO_DATA = "no data"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float


Cell = str | bool | int | float | Interval | None


def shown(cell: Cell, decimals: int = 2) -> str:
    """Returns the text of a cell.

    Numbers get that many decimals, but a small one is never shown as zero (`0.0004`); an interval is shown as
    `0.71 [0.65, 0.77]`; None and what is not a number as `no data`.
    """
    match cell:
        case None:
            return NO_DATA
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}" if abs(cell) >= 10_000 else str(cell)
        case float():
            return _number(cell, decimals)
        case Interval():
            if math.isnan(cell.value):
                return NO_DATA
            ends = (_fixed(end, decimals) for end in (cell.low, cell.high))
            return f"{_fixed(cell.value, decimals)} [{', '.join(ends)}]"
        case _:
            return visible(cell)


def rank(cell: Cell) -> float | None:
    """Returns the number a cell is sorted by, or None if it is text or no data."""
    value = cell.value if isinstance(cell, Interval) else cell
    return float(value) if isinstance(value, int | float) and not math.isnan(value) else None


def visible(text: str) -> str:
    """Returns the text with control characters, and those that turn the direction of writing, made visible."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = 40) -> str:
    """Returns the text on one line, cut to a length."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _number(value: float, decimals: int) -> str:
    if 0 < abs(value) < 0.5 * 10**-decimals:
        return f"{value:.1g}"
    return NO_DATA if math.isnan(value) else _fixed(value, decimals)


def _fixed(value: float, decimals: int) -> str:
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "-∞"}.get(value, "?")
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text
