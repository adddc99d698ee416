"""Cases that sort, and that take the largest, the smallest or the middle."""

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _sorted(key: rasp.Variable = rasp.TOKENS) -> rasp.Aggregate:
    return parts.ranked(parts.rank(parts.placed(key)), rasp.INDICES, name="sorted")


def _largest() -> rasp.Aggregate:
    return parts.ranked(parts.rank(parts.placed()), parts.length(), back=1, name="largest")


def _median() -> rasp.SequenceMap:
    ranks, length = parts.rank(parts.placed()), parts.length()
    low, high = (
        rasp.Aggregate(rasp.Select(ranks, length, where), rasp.TOKENS, name=name)
        for name, where in (
            ("lower_middle", lambda key, query: key == (query - 1) // 2),
            ("upper_middle", lambda key, query: key == query // 2),
        )
    )
    return rasp.SequenceMap(lambda one, other: (one + other) / 2, low, high, name="median")


CASES = (
    case.Case(
        9,
        "sort-digits",
        "The digits in ascending order.",
        _sorted(),
        vocabulary=tuple(range(10)),
        examples=case.worked(((3, 1, 9, 1), (1, 1, 3, 9))),
    ),
    case.Case(
        22,
        "sort-words-by-length",
        "The words from the shortest to the longest; those of equal length stay in order.",
        _sorted(rasp.Map(len, rasp.TOKENS, name="word_length")),
        vocabulary=case.WORDS,
        examples=case.worked((("poiVg", "no", "J", "LB"), ("J", "no", "LB", "poiVg"))),
    ),
    case.Case(
        59,
        "sort-numbers",
        "The numbers in ascending order.",
        _sorted(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((10, 0, 5, 0), (0, 0, 5, 10))),
    ),
    case.Case(
        81,
        "middle-number",
        "The number in the middle of the sorted input, or the mean of the two there, at every position.",
        _median(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((3, 10, 5), (5, 5, 5)), ((4, 9, 0, 5), (4.5, 4.5, 4.5, 4.5))),
    ),
    case.Case(
        97,
        "scale-by-largest",
        "Each number divided by the largest of the input; zero if all are zero.",
        rasp.SequenceMap(
            lambda number, most: number / most if most else 0,
            rasp.TOKENS,
            _largest(),
            name="scaled",
        ),
        vocabulary=case.NUMBERS,
        examples=case.worked(((5, 10, 0), (0.5, 1, 0)), ((0, 0, 0), (0, 0, 0)), ((1, 2, 3, 3), (1 / 3, 2 / 3, 1, 1))),
    ),
    case.Case(
        98,
        "repeat-largest",
        "The largest number of the input, at every position.",
        _largest(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((5, 10, 0), (10, 10, 10))),
    ),
    case.Case(
        126,
        "median",
        "The median of the numbers, at every position.",
        _median(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((5, 10, 0), (5, 5, 5)), ((1, 2, 3, 10), (2.5, 2.5, 2.5, 2.5))),
    ),
)
