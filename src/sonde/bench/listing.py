"""How does a RASP program read?

    listing.lines(program)

    is_x = Map(lambda token: token == 'x', tokens)  # numerical, in m0
    share = Aggregate(Select(indices, indices, lambda key, query: key <= query), is_x, default=0)  # numerical, in a1.h0

Each operation stands after those that it reads, with the node that computes it. Functions are shown as they are written;
those that have a name, by it. Costs milliseconds: it reads the source files.
"""

import ast
import copy
import functools
import linecache
from collections.abc import Callable
from typing import Any

from sonde.bench import placing, rasp


def lines(program: rasp.Variable) -> list[str]:
    """A line for each operation of a program."""
    places = placing.place(program).of
    names = _names(program)
    found = []
    for variable, place in places.items():
        kind = "numerical, " if variable.kind == rasp.NUMERICAL else ""
        found.append(f"{names[variable]} = {_operation(variable, names)}  # {kind}in {', '.join(place.nodes)}")
    return found


def _names(program: rasp.Variable) -> dict[rasp.Variable, str]:
    """A name for each variable; the second of one name gets a number."""
    found: dict[rasp.Variable, str] = {}
    for variable in rasp.variables(program):
        name, number = str(variable), 2
        while name in found.values():
            name, number = f"{variable}_{number}", number + 1
        found[variable] = name
    return found


def _operation(variable: rasp.Variable, names: dict[rasp.Variable, str]) -> str:
    kind = type(variable).__name__
    match variable:
        case rasp.Map(function=function, of=of):
            return f"{kind}({_source(function)}, {names[of]})"
        case rasp.SequenceMap(function=function, first=first, second=second):
            return f"{kind}({_source(function)}, {names[first]}, {names[second]})"
        case rasp.LinearSequenceMap(first=first, second=second, first_weight=a, second_weight=b):
            return f"{kind}({names[first]}, {names[second]}, {a:g}, {b:g})"
        case rasp.Aggregate(select=select, values=values, default=default):
            more = "" if default is None else f", default={default!r}"
            return f"{kind}({_select(select, names)}, {names[values]}{more})"
        case rasp.SelectorWidth(select=select):
            return f"{kind}({_select(select, names)})"
        case _:
            return kind


def _select(select: rasp.Select, names: dict[rasp.Variable, str]) -> str:
    return f"Select({names[select.keys]}, {names[select.queries]}, {_source(select.predicate)})"


def _source(function: Callable[..., Any]) -> str:
    """A function as it is written, with the constants and functions that it was made with; or its name."""
    return ast.unparse(_tree(function))


def _tree(function: Callable[..., Any]) -> ast.expr:
    name, code = getattr(function, "__name__", "function"), getattr(function, "__code__", None)
    if name != "<lambda>" or code is None:
        return ast.Name(name.lstrip("_"))
    inside = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    written = [
        one
        for one in _lambdas(code.co_filename)
        if one.lineno == code.co_firstlineno and all(_holds(one.body, *place) for place in inside)
    ]
    if len(written) != 1:
        return ast.Name("function")
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    return _Filled({name: cell.cell_contents for name, cell in cells}).visit(copy.deepcopy(written[0]))


class _Filled(ast.NodeTransformer):
    """Puts what a function was made with in place of its names."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A constant or a function for its name."""
        if node.id not in self.known:
            return node
        value = self.known[node.id]
        return _tree(value) if callable(value) else ast.Constant(value)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """What a function says, where it is called with the names that it has for its arguments."""
        called = self.generic_visit(node)
        assert isinstance(called, ast.Call)
        if isinstance(called.func, ast.Lambda):
            given = [one.id if isinstance(one, ast.Name) else None for one in called.args]
            if given == [one.arg for one in called.func.args.args]:
                return called.func.body
        return called


def _holds(body: ast.expr, line: int, column: int) -> bool:
    start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    return start <= (line, column) < end


@functools.lru_cache(maxsize=32)
def _lambdas(path: str) -> tuple[ast.Lambda, ...]:
    """Every lambda of a source file; none if it cannot be read."""
    try:
        source = linecache.getlines(path)
        return tuple(node for node in ast.walk(ast.parse("".join(source))) if isinstance(node, ast.Lambda))
    except (OSError, SyntaxError):
        return ()
