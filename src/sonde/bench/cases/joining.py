"""Cases that join numbers from fixed places of the input."""

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _polynomial() -> rasp.SequenceMap:
    x, constant, linear = (parts.token_at(index, name=name) for index, name in enumerate(("x", "constant", "linear")))
    square = parts.token_at(3, default=0, name="square")
    first = rasp.SequenceMap(lambda at, times: times * at, x, linear, name="linear_term")
    second = rasp.SequenceMap(lambda at, times: times * at**2, x, square, name="square_term")
    both = rasp.SequenceMap(lambda one, other: one + other, constant, first, name="constant_and_linear")
    return rasp.SequenceMap(lambda one, other: one + other, both, second, name="value")


def _divided() -> rasp.SequenceMap:
    ratio = rasp.SequenceMap(
        lambda first, second: first / second if second else 0,
        parts.token_at(0, name="first"),
        parts.token_at(1, name="second"),
        name="ratio",
    )
    return rasp.SequenceMap(lambda number, by: round(number / by, 6) if by else 0, rasp.TOKENS, ratio, name="divided")


CASES = (
    case.Case(
        88,
        "mean-of-ends",
        "The mean of the first and the last number, at every position.",
        rasp.SequenceMap(
            lambda one, other: (one + other) / 2,
            parts.token_at(0, name="first"),
            parts.from_end(1, name="last"),
            name="mean",
        ),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 10, 4), (2.5, 2.5, 2.5))),
    ),
    case.Case(
        117,
        "sum-of-last-two",
        "The sum of the last two numbers, at every position.",
        rasp.SequenceMap(
            lambda one, other: one + other,
            parts.from_end(1, name="last"),
            parts.from_end(2, name="last_but_one"),
            name="sum",
        ),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 10, 4), (14, 14, 14))),
    ),
    case.Case(
        119,
        "polynomial",
        "Of the input x a b c, or x a b: the value of a + b x + c x^2, at every position.",
        _polynomial(),
        vocabulary=tuple(range(6)),
        max_length=5,
        examples=case.worked(((2, 1, 3, 5), (27, 27, 27, 27)), ((5, 1, 2), (11, 11, 11))),
    ),
    case.Case(
        127,
        "divide-by-ratio",
        "Each number divided by the ratio of the first two; zero if one of these is zero. To six places.",
        _divided(),
        vocabulary=case.NUMBERS,
        examples=case.worked(
            ((4, 2, 10), (2, 1, 5)), ((3, 0, 9), (0, 0, 0)), ((3, 1, 1, 2), (1, 0.333333, 0.333333, 0.666667))
        ),
    ),
)
