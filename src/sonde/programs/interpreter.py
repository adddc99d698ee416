r"""What does a small program really compute? Labels come from here, never from what a generator meant to write.

    interpreter.answer("x = 3\ny = x\n#y: ")    # 3

A program is some lines of Python and then a query line, `#y: `, that asks for a variable. The language is small and
closed: whole numbers and truth values, assignments, `if`, `for … in range(…)`, and `try` with ZeroDivisionError. It is
read with `ast` and walked node by node:

1. Split off the query line; parse the rest.
2. Run each statement; a node that is not on the list is refused by name and line, so nothing can reach the machine.
3. Count steps and the size of numbers, and stop a program that exceeds either.
4. Look the queried variable up.

Costs about 10 microseconds a line.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde.core import errors

Value = int | bool
MAX_STEPS = 20_000
MAX_BITS = 512
QUERY = re.compile(r"#\s*([^\W\d]\w*)\s*:\s*")
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Value]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_CAUGHT = ("ZeroDivisionError", "ArithmeticError", "Exception")


class OutsideError(errors.RequestError):
    """A text is no program of the language: it may be a good one of another."""


def answer(program: str, *, max_steps: int = MAX_STEPS) -> Value:
    """Runs a program and returns the value of the variable that its last line asks for.

    Raises:
        RequestError: There is no query line, the program does not run, or the variable is not defined.
    """
    code, query = split(program)
    values = run(code, max_steps=max_steps)
    if query not in values:
        known = ", ".join(sorted(values)) or "none"
        raise errors.RequestError(
            f"the query #{query}: asks for a variable that the program does not define{errors.suggest(query, values)} "
            f"It defines: {known}"
        )
    return values[query]


def split(program: str) -> tuple[str, str]:
    """Returns the code of a program and the variable that its query line asks for.

    Raises:
        OutsideError: The last line is no query.
    """
    code, _, last = program.rstrip().rpartition("\n")
    found = QUERY.fullmatch(last)
    if found is None:
        raise OutsideError(f"the last line of a program must be a query such as '#x: ', got {last[:60]!r}")
    return code, found[1]


def run(code: str, *, max_steps: int = MAX_STEPS) -> dict[str, Value]:
    """Runs code without a query line and returns the variables at its end.

    Raises:
        RequestError: It does not parse, uses what is not in the language, fails, or takes more steps than allowed.
    """
    machine = _Machine(max_steps)
    try:
        machine.block(ast.parse(code).body)
    except SyntaxError as error:
        raise errors.RequestError(f"the program does not parse: line {error.lineno}: {error.msg}") from error
    except ZeroDivisionError as error:
        raise errors.RequestError(f"the program does not run: line {machine.line}: {error}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, errors.SondeError):
            raise
        raise errors.RequestError(f"the program is nested too deep or cannot be read: {error}") from error
    return machine.values


class _Machine:
    """A run under way: its variables, its steps, and the line it is on."""

    def __init__(self, max_steps: int) -> None:
        self.values: dict[str, Value] = {}
        self.line = 1
        self._left = self._max = max_steps

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._step(statement)
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.values[name] = self._value(value)
                case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                    self.values[name] = self._binary(op, self._lookup(name), self._value(value), statement)
                case ast.If(test=test, body=body, orelse=orelse):
                    self.block(body if self._value(test) else orelse)
                case ast.For(target=ast.Name(id=name), iter=iterated, body=body, orelse=[]):
                    for number in self._range(iterated):
                        self._step(statement)
                        self.values[name] = number
                        self.block(body)
                case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=[]):
                    self._try(body, handlers, orelse)
                case ast.Pass():
                    pass
                case _:
                    raise self._refusal(statement)

    def _try(self, body: list[ast.stmt], handlers: list[ast.ExceptHandler], orelse: list[ast.stmt]) -> None:
        for handler in handlers:
            named = isinstance(handler.type, ast.Name) and handler.type.id in _CAUGHT
            if handler.name is not None or not (handler.type is None or named):
                raise self._refusal(handler)
        try:
            self.block(body)
        except ZeroDivisionError:
            self.block(handlers[0].body)
        else:
            self.block(orelse)

    def _range(self, node: ast.expr) -> range:
        match node:
            case ast.Call(func=ast.Name(id="range"), args=args, keywords=[]) if 1 <= len(args) <= 3:
                numbers = [int(self._value(argument)) for argument in args]
                if len(numbers) == 3 and numbers[2] == 0:
                    raise errors.RequestError(f"the program does not run: line {node.lineno}: range() with a step of 0")
                return range(*numbers)
        raise self._refusal(node)

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool() | int() as value):
                return value
            case ast.Name(id=name):
                return self._lookup(name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._value(left), self._value(right), node)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return _UNARY[type(op)](self._value(operand))
            case ast.BoolOp(op=op, values=values):
                return self._boolean(isinstance(op, ast.And), values)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return _COMPARE[type(op)](self._value(left), self._value(right))
        raise self._refusal(node)

    def _boolean(self, all_of: bool, values: Sequence[ast.expr]) -> Value:
        found: Value = all_of
        for one in values:
            found = self._value(one)
            if bool(found) != all_of:
                break
        return found

    def _binary(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        if type(op) not in _BINARY:
            raise self._refusal(op if hasattr(op, "lineno") else node, type(op).__name__)
        found = _BINARY[type(op)](left, right)
        if found.bit_length() > MAX_BITS:
            raise errors.RequestError(
                f"the program does not run: line {self.line}: a number of {found.bit_length()} bits, at most {MAX_BITS} "
                "are allowed"
            )
        return found

    def _lookup(self, name: str) -> Value:
        if name not in self.values:
            raise errors.RequestError(
                f"the program does not run: line {self.line}: {name!r} is used before it has a value"
                f"{errors.suggest(name, self.values)}"
            )
        return self.values[name]

    def _step(self, node: ast.stmt) -> None:
        self.line = node.lineno
        self._left -= 1
        if self._left < 0:
            raise errors.RequestError(
                f"the program does not end within {self._max} steps (it is on line {self.line}): make it shorter, or "
                "allow more with max_steps"
            )

    def _refusal(self, node: Any, what: str | None = None) -> OutsideError:
        return OutsideError(
            f"line {getattr(node, 'lineno', self.line)}: {what or type(node).__name__} is not in the language of programs: "
            "whole numbers and truth values, assignments, + - * // %, comparisons, and/or/not, if, for over range, try "
            "with ZeroDivisionError"
        )
