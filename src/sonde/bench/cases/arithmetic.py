"""Cases that do the same sum or function on each number, whatever stands beside it."""

import math
from collections.abc import Callable

from sonde.bench import rasp
from sonde.bench.cases import case

SMALL, LARGE, SIGNED = tuple(range(20)), tuple(range(30)), tuple(range(-10, 10))
TENTHS = tuple(tenth / 10 - 1 for tenth in range(20))
QUARTERS = tuple(quarter / 4 for quarter in range(20))


def _each(
    number: int,
    about: tuple[str, str],
    function: Callable[[rasp.Value], rasp.Value],
    *examples: tuple[tuple[rasp.Value, ...], tuple[rasp.Value, ...]],
    vocabulary: tuple[rasp.Value, ...] = case.NUMBERS,
) -> case.Case:
    """A case with one Map."""
    name, task = about
    program = rasp.Map(function, rasp.TOKENS, name=name.replace("-", "_"))
    return case.Case(number, name, task, program, vocabulary=vocabulary, causal=True, examples=examples)


def _function(
    number: int, name: str, function: Callable[[float], float], *, vocabulary: tuple[rasp.Value, ...] = case.NUMBERS
) -> case.Case:
    """A case with one function of the mathematics library."""
    given = vocabulary[1:4]
    said = tuple(function(one) for one in given)
    return _each(
        number, (name, f"The {name.replace('-', ' ')} of each number."), function, (given, said), vocabulary=vocabulary
    )


def _fibonacci(index: int) -> int:
    """The number at an index of the Fibonacci numbers, which begin 0, 1, 1, 2, 3, 5."""
    low, high = 0, 1
    for _ in range(index):
        low, high = high, low + high
    return low


def _reflected(number: int) -> int:
    """A number folded into 2 to 7, as between two mirrors."""
    place = (number - 2) % 10
    return 2 + min(place, 10 - place)


def _digits_summed() -> rasp.SequenceMap:
    ones = rasp.Map(lambda number: number % 10, rasp.TOKENS, name="ones")
    tens = rasp.Map(lambda number: number // 10 % 10, rasp.TOKENS, name="tens")
    return rasp.SequenceMap(lambda one, other: one + other, tens, ones, name="sum_of_digits")


def _clipped() -> rasp.Map:
    moved = rasp.Map(lambda number: number - 2, rasp.TOKENS, name="less_two")
    clipped = rasp.Map(lambda number: min(max(number, 0), 5), moved, name="between_zero_and_five")
    return rasp.Map(lambda number: number + 2, clipped, name="clipped")


CASES = (
    _each(8, ("identity", "Each number as it is."), lambda n: n, ((3, 0, 10), (3, 0, 10))),
    case.Case(
        40,
        "digit-sum",
        "The sum of the last two digits of each number.",
        _digits_summed(),
        vocabulary=tuple(range(29)),
        causal=True,
        examples=case.worked(((7, 10, 28, 19), (7, 1, 10, 10))),
    ),
    _each(41, ("absolute", "The absolute value."), abs, ((-3, 0, 9), (3, 0, 9)), vocabulary=SIGNED),
    _each(
        43,
        ("fibonacci", "The Fibonacci number at this index (0, 1, 1, 2, 3, 5)."),
        _fibonacci,
        ((0, 2, 10, 19), (0, 1, 55, 4181)),
        vocabulary=SMALL,
    ),
    _each(46, ("decrement", "One less."), lambda n: n - 1, ((0, 5, 10), (-1, 4, 9))),
    _each(
        49,
        ("down-to-three", "The greatest multiple of 3 that is not greater."),
        lambda n: n - n % 3,
        ((0, 5, 10), (0, 3, 9)),
    ),
    _function(50, "hyperbolic-cosine", math.cosh),
    _function(52, "square-root", math.sqrt),
    _function(54, "hyperbolic-tangent", math.tanh),
    _function(55, "hyperbolic-sine", math.sinh),
    _each(60, ("increment", "One more."), lambda n: n + 1, ((0, 5, 10), (1, 6, 11))),
    _each(62, ("factorial", "The factorial."), math.factorial, ((0, 1, 4, 10), (1, 1, 24, 3628800))),
    _each(64, ("cube", "The third power."), lambda n: n**3, ((0, 2, 10), (0, 8, 1000))),
    _function(65, "cube-root", math.cbrt),
    _each(
        66,
        ("round", "The nearest whole number; halves go up."),
        lambda number: math.floor(number + 0.5),
        ((0.25, 0.5, 1.5, 4.75), (0, 1, 2, 5)),
        vocabulary=QUARTERS,
    ),
    _each(
        68, ("up-to-three", "The least multiple of 3 that is not less."), lambda n: n + -n % 3, ((0, 1, 10), (0, 3, 12))
    ),
    _each(69, ("sign", "-1, 0 or 1: the sign."), lambda n: (n > 0) - (n < 0), ((0, 1, 10), (0, 1, 1))),
    _function(70, "cosine", math.cos),
    _each(
        72, ("negate", "The number with the other sign."), lambda n: -n, ((-10, 0, 9), (10, 0, -9)), vocabulary=SIGNED
    ),
    _function(73, "sine", math.sin),
    _each(75, ("double", "Twice the number."), lambda n: 2 * n, ((0, 5, 10), (0, 10, 20))),
    _function(77, "tangent", math.tan),
    _each(80, ("less-two", "Two less."), lambda n: n - 2, ((0, 5, 10), (-2, 3, 8))),
    _each(83, ("triple", "Three times the number."), lambda n: 3 * n, ((0, 5, 10), (0, 15, 30))),
    _function(84, "arctangent", math.atan),
    _each(85, ("square", "The second power."), lambda n: n * n, ((0, 5, 10), (0, 25, 100))),
    _each(
        91,
        ("floor-at-three", "Zero for numbers below 3, else the number."),
        lambda n: n if n >= 3 else 0,
        ((0, 2, 3, 10), (0, 0, 3, 10)),
    ),
    _each(
        102,
        ("reflect", "Each number folded into 2 to 7, as between two mirrors."),
        _reflected,
        ((1, 2, 7, 8, -4), (3, 2, 7, 6, 6)),
        vocabulary=tuple(range(-20, 20)),
    ),
    _function(104, "exponential", math.exp),
    _each(
        107,
        ("wrap", "Each number brought into 2 to 6 by adding or subtracting fives."),
        lambda n: 2 + (n - 2) % 5,
        ((2, 6, 7, 1), (2, 6, 2, 6)),
        vocabulary=tuple(range(-15, 15)),
    ),
    _function(114, "common-logarithm", math.log10, vocabulary=tuple(range(1, 11))),
    _function(121, "arcsine", math.asin, vocabulary=TENTHS),
    _function(123, "arccosine", math.acos, vocabulary=TENTHS),
    case.Case(
        130,
        "clip",
        "Each number, but at least 2 and at most 7.",
        _clipped(),
        vocabulary=tuple(range(-15, 15)),
        causal=True,
        examples=case.worked(((-15, 2, 5, 14), (2, 2, 5, 7))),
    ),
)
