"""Cases that join numbers from fixed places of the input."""

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _polynomial() -> rasp.SequenceMap:
    """By Horner's rule: times x, plus the next coefficient, until there is none."""
    x, first, second = (parts.token_at(index, name=name) for index, name in enumerate(("x", "first", "second")))
    third = parts.token_at(3, default=case.END, name="third")
    factor = rasp.SequenceMap(lambda at, last: 1 if last == case.END else at, x, third, name="factor")
    found = rasp.SequenceMap(lambda at, times: times * at, x, first, name="first_times_x")
    found = rasp.SequenceMap(lambda value, more: value + more, found, second, name="linear_value")
    found = rasp.SequenceMap(lambda value, by: value * by, found, factor, name="value_times_x")
    return rasp.SequenceMap(lambda value, more: value + (0 if more == case.END else more), found, third, name="value")


def _mean_of_ends() -> rasp.SequenceMap:
    first = parts.token_at(0, name="first")
    last = parts.from_end(1, parts.length(), name="last")
    return rasp.SequenceMap(lambda one, other: (one + other) / 2, first, last, name="mean")


def _sum_of_last_two() -> rasp.SequenceMap:
    length = parts.length()
    return rasp.SequenceMap(
        lambda one, other: one + other,
        parts.from_end(1, length, name="last"),
        parts.from_end(2, length, name="last_but_one"),
        name="sum",
    )


def _divided() -> rasp.SequenceMap:
    ratio = rasp.SequenceMap(
        lambda first, second: second / first if first and second else 1,
        parts.token_at(0, name="first"),
        parts.token_at(1, name="second"),
        name="ratio",
    )
    return rasp.SequenceMap(lambda number, by: number / by, rasp.TOKENS, ratio, name="divided")


CASES = (
    case.Case(
        88,
        "mean-of-ends",
        "The mean of the first and the last number, at every position.",
        _mean_of_ends(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 10, 4), (2.5, 2.5, 2.5))),
    ),
    case.Case(
        117,
        "sum-of-last-two",
        "The sum of the last two numbers, at every position.",
        _sum_of_last_two(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 10, 4), (14, 14, 14))),
    ),
    case.Case(
        119,
        "polynomial",
        "The polynomial at x of the input x a b c: the value of a x^2 + b x + c, at every position; of x a b, a x + b.",
        _polynomial(),
        vocabulary=tuple(range(6)),
        max_length=5,
        examples=case.worked(((2, 1, 3, 5), (15, 15, 15, 15)), ((5, 1, 2), (7, 7, 7))),
    ),
    case.Case(
        127,
        "divide-by-ratio",
        "Each number divided by the quotient of the second and the first; as it is, if one of these is zero.",
        _divided(),
        vocabulary=case.NUMBERS,
        examples=case.worked(
            ((4, 2, 10), (8, 4, 20)), ((3, 0, 9), (3, 0, 9)), ((0, 3, 9), (0, 3, 9)), ((1, 2, 7, 5), (0.5, 1, 3.5, 2.5))
        ),
    ),
)
