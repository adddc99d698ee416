"""How far does a rule come that understands nothing? The constant of line 1, or of line 2, as the answer.

A model in training first learns these; at 16 lines of unbalanced programs the first is right four times in five. Their
scores belong beside every score of a model. Costs nothing.
"""

import re
from collections.abc import Iterable, Mapping

from sonde.programs import parsers

_CONSTANT = re.compile(r"[^\W\d]\w*\s*=\s*(-?\d+|True|False)\s*")
NAMES = ("line-1 heuristic", "line-2 heuristic")


def line_1(program: str) -> int | bool | None:
    """Returns the constant that line 1 assigns; None if it assigns none."""
    return line_constant(program, 1)


def line_2(program: str) -> int | bool | None:
    """Returns the constant that line 2 assigns; None if it assigns none."""
    return line_constant(program, 2)


def line_constant(program: str, line: int) -> int | bool | None:
    """Returns the constant that a line, counted from 1, assigns; None if it assigns none."""
    lines = program.split("\n")
    found = _CONSTANT.fullmatch(lines[line - 1]) if line <= len(lines) else None
    if found is None:
        return None
    return found[1] == "True" if found[1] in ("True", "False") else int(found[1])


def scores(labelled: Iterable[tuple[str, int | bool]]) -> Mapping[str, float]:
    """Returns, for each heuristic, the share of programs whose answer it gives; no programs score nan."""
    pairs = list(labelled)
    hits = [[parsers.is_correct(rule(program), answer) for program, answer in pairs] for rule in (line_1, line_2)]
    return {name: sum(row) / len(row) if row else float("nan") for name, row in zip(NAMES, hits, strict=True)}
