r"""Through which assignments does a value reach the query? The chain of a variable-binding program.

    chain = chains.VariableChain.of("a = 4\nb = 7\nc = a\n#c: ")
    chain.names, chain.depth, chain.root_line, chain.value     # ("c", "a"), 2, 1, 4

A binding program has only assignments of a whole number or of a variable. Lines count from 1. By-value semantics: a
later reassignment changes nothing that was assigned before. Costs microseconds a line.
"""

import dataclasses
import re
from typing import Any

from sonde.core import errors
from sonde.programs import interpreter

_ASSIGNMENT = re.compile(r"([^\W\d]\w*)[ \t]*=[ \t]*(-?\d+|[^\W\d]\w*)[ \t]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """One line of a binding program.

    Attributes:
        line: Its number, from 1.
        name: The variable that is assigned to.
        right: The right-hand side as written.
        start: Where the right-hand side begins in the program's text.
        end: Where it ends.
        parent: The line of the assignment it refers to; None for a constant.
    """

    line: int
    name: str
    right: str
    start: int
    end: int
    parent: int | None

    @property
    def is_constant(self) -> bool:
        """Whether the right-hand side is a number."""
        return self.parent is None


@dataclasses.dataclass(frozen=True, slots=True)
class VariableChain:
    """The assignments from the query's down to the constant, and those beside them.

    Attributes:
        program: The text.
        query: The queried variable.
        query_start: Where its name begins in the query line.
        links: The chain: the query's assignment first, the constant's last.
        distractors: All other assignments, in their order.
    """

    program: str
    query: str
    query_start: int
    links: tuple[Assignment, ...]
    distractors: tuple[Assignment, ...]

    @classmethod
    def of(cls, program: str) -> "VariableChain":
        """Reads a binding program.

        Raises:
            RequestError: A line is no assignment of a number or variable, or a variable is not defined.
        """
        code, query = interpreter.split(program)
        lines, latest = _assignments(code)
        if query not in latest:
            raise errors.RequestError(
                f"the query #{query}: asks for a variable that the program does not define"
                f"{errors.suggest(query, latest)} It defines: {', '.join(sorted(latest)) or 'none'}"
            )
        by_line = {one.line: one for one in lines}
        links = [by_line[latest[query]]]
        while (parent := links[-1].parent) is not None:
            links.append(by_line[parent])
        inside = {one.line for one in links}
        rest = tuple(one for one in lines if one.line not in inside)
        start = program.index(query, program.index("#", len(code)))
        return cls(program, query, start, tuple(links), rest)

    @property
    def names(self) -> tuple[str, ...]:
        """The variables of the chain, the queried one first."""
        return tuple(one.name for one in self.links)

    @property
    def depth(self) -> int:
        """Hops: the assignments of the chain, the constant's included."""
        return len(self.links)

    @property
    def root(self) -> Assignment:
        """The assignment of the constant."""
        return self.links[-1]

    @property
    def root_line(self) -> int:
        """The line of the constant, from 1."""
        return self.root.line

    @property
    def value(self) -> int:
        """The constant."""
        return int(self.root.right)

    @property
    def constants(self) -> frozenset[int]:
        """The values of all constants of the program, the root's and those of distractors."""
        return frozenset(int(one.right) for one in (*self.links, *self.distractors) if one.is_constant)

    @property
    def is_systematic(self) -> bool:
        """Whether the constant stands after line 2, out of reach of the line-1 and line-2 heuristics."""
        return self.root_line > 2

    def metadata(self) -> dict[str, Any]:
        """The chain as JSON data: chain, query, assignments, depth, root_line, and targets with their characters."""
        targets = [
            {"role": f"rhs_{self.depth - at}", "line": one.line, "start": one.start, "end": one.end}
            for at, one in enumerate(self.links)
        ]
        last = {"role": "query", "line": None, "start": self.query_start, "end": self.query_start + len(self.query)}
        everything = sorted((*self.links, *self.distractors), key=lambda one: one.line)
        return {
            "chain": list(self.names),
            "query": self.query,
            "assignments": [[one.name, one.right] for one in everything],
            "depth": self.depth,
            "root_line": self.root_line,
            "targets": [*targets, last],
        }


def _assignments(code: str) -> tuple[list[Assignment], dict[str, int]]:
    """All assignments, and for each variable the line of its last one."""
    lines: list[Assignment] = []
    latest: dict[str, int] = {}
    at = 0
    for number, text in enumerate(code.split("\n"), start=1):
        found = _ASSIGNMENT.fullmatch(text)
        if found is None:
            raise errors.RequestError(
                f"line {number} is {text[:60]!r}: a binding program has only assignments of a number or a variable, such "
                "as 'x = 3' or 'y = x'"
            )
        name, right = found.groups()
        constant = right.lstrip("-").isdigit()
        if not constant and right not in latest:
            raise errors.RequestError(f"line {number}: {right!r} is used before it has a value")
        parent = None if constant else latest[right]
        lines.append(Assignment(number, name, right, at + found.start(2), at + found.end(2), parent))
        latest[name] = number
        at += len(text) + 1
    return lines, latest
