"""How does one write down what a transformer should compute, so that its circuit is known?

    is_x = rasp.numerical(rasp.Map(lambda token: token == "x", rasp.TOKENS, name="is_x"))
    before = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key <= query)
    share = rasp.Aggregate(before, is_x, default=0, name="share", kind="numerical")
    rasp.evaluate(share, "xaxb")                              # [1.0, 0.5, 0.667, 0.5]

RASP (arXiv:2106.06981) has one operation for each thing that a layer does. A *variable* has a value at every position; a
*selector* says which positions each position looks at.

    TOKENS, INDICES               what is read at a position, and its number from 0
    Map(f, x)                     f of a value                                           (MLP)
    SequenceMap(f, x, y)          f of two values at the same position                   (MLP)
    LinearSequenceMap(x, y, …)    a x + b y of numbers                                   (MLP)
    Select(keys, queries, p)      position q looks at position k where p(key, query)
    Aggregate(select, x)          the mean of x, or its one value, where q looks         (head)
    SelectorWidth(select)         at how many positions q looks                          (head and MLP)

A variable is `categorical` (one of some values, which may be words, numbers or tuples) or `numerical` (a number on a line).
A value may be missing: `None` comes from a function, or from an Aggregate without default that looks nowhere; whatever is
computed from it is missing too, and a selector never selects it. `evaluate` runs a program directly in Python: what it
says is what a compiled model must say. It costs microseconds per position and, for selectors, per pair of positions.
"""

import dataclasses
import itertools
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sonde.core import errors

Value = Any
Kind = Literal["categorical", "numerical"]
CATEGORICAL: Kind = "categorical"
NUMERICAL: Kind = "numerical"
LARGEST = 20_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """Something with a value at every position; itself and nothing else is equal to it.

    Attributes:
        name: What to call it.
        kind: How it is written into a stream of numbers.
    """

    name: str = dataclasses.field(default="", kw_only=True)
    kind: Kind = dataclasses.field(default=CATEGORICAL, kw_only=True)

    def __str__(self) -> str:
        """Its name, or the operation that makes it."""
        return self.name or type(self).__name__.lower()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Tokens(Variable):
    """What is read at a position."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Indices(Variable):
    """The number of a position, from 0."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Map(Variable):
    """A function of the value at each position."""

    function: Callable[[Value], Value]
    of: Variable


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SequenceMap(Variable):
    """A function of two values at the same position."""

    function: Callable[[Value, Value], Value]
    first: Variable
    second: Variable


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LinearSequenceMap(Variable):
    """A weighted sum of two numbers at the same position; numerical."""

    first: Variable
    second: Variable
    first_weight: float = 1.0
    second_weight: float = 1.0
    kind: Kind = dataclasses.field(default=NUMERICAL, kw_only=True)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Select:
    """Which positions (keys) each position (query) looks at.

    Attributes:
        keys: What is compared at the position looked at.
        queries: What is compared at the position that looks.
        predicate: Whether it looks, given key and query.
    """

    keys: Variable
    queries: Variable
    predicate: Callable[[Value, Value], Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Aggregate(Variable):
    """The values where a position looks: their mean if numerical, else the one value that all of them have.

    Attributes:
        select: Where each position looks.
        values: What is read there.
        default: What stands where a position looks nowhere; a number if numerical.
    """

    select: Select
    values: Variable
    default: Value = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SelectorWidth(Variable):
    """At how many positions each position looks."""

    select: Select


TOKENS = Tokens(name="tokens")
INDICES = Indices(name="indices")


def numerical(variable: Variable) -> Variable:
    """The same variable, written as a number on a line."""
    return dataclasses.replace(variable, kind=NUMERICAL)


def categorical(variable: Variable) -> Variable:
    """The same variable, written as one of some values."""
    return dataclasses.replace(variable, kind=CATEGORICAL)


def inputs(variable: Variable) -> tuple[Variable, ...]:
    """The variables that a variable is computed from."""
    match variable:
        case Map(of=of):
            return (of,)
        case SequenceMap(first=first, second=second) | LinearSequenceMap(first=first, second=second):
            return (first, second)
        case Aggregate(select=select, values=values):
            return (select.keys, select.queries, values)
        case SelectorWidth(select=select):
            return (select.keys, select.queries)
        case _:
            return ()


def variables(program: Variable) -> tuple[Variable, ...]:
    """Every variable of a program, each after those that it is computed from."""
    found: dict[Variable, None] = {}

    def visit(variable: Variable) -> None:
        if variable not in found:
            for one in inputs(variable):
                visit(one)
            found[variable] = None

    visit(program)
    return tuple(found)


def may_be_missing(variable: Variable, known: Mapping[Variable, tuple[Value, ...] | None]) -> bool:
    """Whether a variable has no value at some positions, given the values that variables may take."""
    match variable:
        case Map(function=function, of=of):
            return any(function(value) is None for value in known[of] or ()) or may_be_missing(of, known)
        case SequenceMap(function=function, first=first, second=second):
            xs, ys = known[first] or (), known[second] or ()
            if len(xs) * len(ys) > LARGEST:
                raise errors.CompileError(
                    f"cannot compile SequenceMap {str(variable)!r}: it reads {len(xs)} × {len(ys)} values, {len(xs) * len(ys):,} pairs, "
                    f"each of which takes a hidden unit; at most {LARGEST:,} can be had: Map what it reads to fewer values first"
                )
            pairs = itertools.product(xs, ys)
            lost = any(function(*pair) is None for pair in pairs)
            return lost or may_be_missing(first, known) or may_be_missing(second, known)
        case Aggregate(values=values, default=default):
            return default is None or may_be_missing(values, known)
        case LinearSequenceMap(first=first, second=second):
            return may_be_missing(first, known) or may_be_missing(second, known)
        case _:
            return False


def evaluate(program: Variable, sequence: Sequence[Value], *, causal: bool = False) -> list[Value]:
    """The value of a program at every position of a sequence.

    Args:
        program: The variable asked for.
        sequence: The tokens, without BOS.
        causal: No position looks at later ones.

    Raises:
        RequestError: Categorical values that differ are aggregated into one.
    """
    return evaluate_all(program, sequence, causal=causal)[program]


def evaluate_all(
    program: Variable,
    sequence: Sequence[Value],
    *,
    causal: bool = False,
    change: Callable[[Variable, list[Value]], list[Value]] = lambda variable, values: values,
) -> dict[Variable, list[Value]]:
    """The values of all variables of a program at every position of a sequence, as `evaluate`.

    `change` may replace the values of a variable as soon as they are known; what reads them gets those.
    """
    done: dict[Variable, list[Value]] = {}
    for variable in variables(program):
        done[variable] = change(variable, _compute(variable, sequence, done, causal=causal))
    return done


def _compute(
    variable: Variable, sequence: Sequence[Value], done: Mapping[Variable, list[Value]], *, causal: bool
) -> list[Value]:
    match variable:
        case Tokens():
            return list(sequence)
        case Indices():
            return list(range(len(sequence)))
        case Map(function=function, of=of):
            return [None if value is None else function(value) for value in done[of]]
        case SequenceMap(function=function, first=first, second=second):
            pairs = zip(done[first], done[second], strict=True)
            return [None if x is None or y is None else function(x, y) for x, y in pairs]
        case LinearSequenceMap(first=first, second=second, first_weight=a, second_weight=b):
            pairs = zip(done[first], done[second], strict=True)
            return [None if x is None or y is None else a * x + b * y for x, y in pairs]
        case Aggregate(select=select, values=values):
            rows = _look(select, done, causal=causal)
            return [_gather([done[values][key] for key in row], variable) for row in rows]
        case SelectorWidth(select=select):
            return [len(row) for row in _look(select, done, causal=causal)]
        case _:
            raise errors.RequestError(f"{variable} is no operation of the language, but a {type(variable).__name__}")


def _look(select: Select, done: Mapping[Variable, list[Value]], *, causal: bool) -> Iterator[list[int]]:
    """For each position, the positions it looks at."""
    keys, predicate = list(enumerate(done[select.keys])), select.predicate
    for place, query in enumerate(done[select.queries]):
        seen = keys[: place + 1] if causal else keys
        yield ([] if query is None else [index for index, key in seen if key is not None and predicate(key, query)])


def _gather(found: Sequence[Value], variable: Aggregate) -> Value:
    if not found:
        return variable.default
    if variable.kind == NUMERICAL:
        return sum(found) / len(found)
    if any(value != found[0] for value in found):
        raise errors.RequestError(
            f"Aggregate {str(variable)!r} is categorical but selects values that differ, {found[:5]}: select one of "
            "them, or make it numerical to get their mean"
        )
    return found[0]


def ordered(values: Iterable[Value]) -> tuple[Value, ...]:
    """Different values in a fixed order: numbers, then words, then the rest; `None` is no value."""

    def place(value: Value) -> tuple[int, float, str]:
        if isinstance(value, numbers.Real):
            return 0, float(value), ""
        return (1, 0.0, value) if isinstance(value, str) else (2, 0.0, repr(value))

    return tuple(sorted({value for value in values if value is not None}, key=place))


def values_of(program: Variable, vocabulary: Iterable[Value], length: int) -> dict[Variable, tuple[Value, ...] | None]:
    """Every value that each variable may take, for sequences of up to `length` tokens.

    An upper bound: both arguments of a SequenceMap are taken to be independent. None where there are too many to list
    (means of many numbers).
    """
    found: dict[Variable, tuple[Value, ...] | None] = {}
    words = ordered(vocabulary)
    for variable in variables(program):
        found[variable] = _values(variable, words, length, found)
    return found


def _values(
    variable: Variable, words: tuple[Value, ...], length: int, known: Mapping[Variable, tuple[Value, ...] | None]
) -> tuple[Value, ...] | None:
    match variable:
        case Tokens():
            return words
        case Indices():
            return tuple(range(length))
        case SelectorWidth():
            return tuple(range(length + 1))
        case Map(function=function, of=of):
            return _all(variable, map(function, known[of] or ()), known[of])
        case SequenceMap(function=function, first=first, second=second):
            xs, ys = known[first] or (), known[second] or ()
            if len(xs) * len(ys) > LARGEST:
                raise errors.CompileError(
                    f"cannot compile SequenceMap {str(variable)!r}: it reads {len(xs)} × {len(ys)} values, {len(xs) * len(ys):,} pairs, "
                    f"each of which takes a hidden unit; at most {LARGEST:,} can be had: Map what it reads to fewer values first"
                )
            pairs = itertools.product(xs, ys)
            return _all(variable, itertools.starmap(function, pairs), known[first], known[second])
        case Aggregate(values=values, default=default):
            if variable.kind == CATEGORICAL:
                return _all(variable, (*(known[values] or ()), default), known[values])
            return _means(variable, known[values], default, length)
        case LinearSequenceMap(first=first, second=second, first_weight=a, second_weight=b):
            xs, ys = known[first], known[second]
            if xs is None or ys is None or len(xs) * len(ys) > LARGEST:
                return None
            return ordered(a * x + b * y for x in xs for y in ys)
        case _:
            return ()


def _all(variable: Variable, made: Iterable[Value], *sources: tuple[Value, ...] | None) -> tuple[Value, ...] | None:
    """The different values that a function makes; a function that fails is named."""
    if any(source is None for source in sources):
        raise errors.CompileError(
            f"cannot compile {type(variable).__name__} {str(variable)!r}: what it reads may take more than {LARGEST:,} "
            "values, so nothing can look them up"
        )
    try:
        return ordered(made)
    except Exception as error:
        raise errors.CompileError(
            f"cannot compile {type(variable).__name__} {str(variable)!r}: its function fails on a value that it may be given "
            f"({type(error).__name__}: {error}); return None where there is no answer"
        ) from error


def _means(
    variable: Variable, values: tuple[Value, ...] | None, default: Value, length: int
) -> tuple[Value, ...] | None:
    """Means of up to `length` of the values, as long as there are not too many."""
    if values is None:
        return None
    words = [value for value in values if not isinstance(value, numbers.Real)]
    if words:
        raise errors.CompileError(
            f"cannot compile Aggregate {str(variable)!r}: it is numerical, so a number is needed, but it may read {words[0]!r}"
        )
    sums: dict[int, set[Value]] = {0: {0}}
    for count in range(1, length + 1):
        sums[count] = {total + value for total in sums[count - 1] for value in values}
        if len(sums[count]) * len(values) > LARGEST:
            return None
    means = {total / count for count in range(1, length + 1) for total in sums[count]}
    return ordered({*means, default})
