"""Cases in which what happens to a token depends on where it stands."""

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _twice_less_index() -> rasp.Map:
    twice = rasp.Map(lambda number: 2 * number, rasp.TOKENS, name="twice")
    below = rasp.SequenceMap(lambda index, number: index - number, rasp.INDICES, twice, name="index_less_twice")
    return rasp.Map(lambda number: -number, below, name="twice_less_index")


def _first_half_doubled() -> rasp.SequenceMap:
    first = rasp.SequenceMap(
        lambda index, n: int(2 * index < n) if index < n else None, rasp.INDICES, parts.length(), name="first_half"
    )
    return rasp.SequenceMap(lambda number, is_first: number * (1 + is_first), rasp.TOKENS, first, name="doubled")


def _second_half_halved() -> rasp.SequenceMap:
    half = rasp.Map(lambda n: n // 2, parts.length(), name="half_length")
    second = rasp.SequenceMap(lambda index, middle: index >= middle, rasp.INDICES, half, name="second_half")
    return rasp.SequenceMap(lambda number, later: number / 2 if later else number, rasp.TOKENS, second, name="halved")


def _every(period: int, name: str) -> rasp.Map:
    return rasp.Map(lambda index: index % period, rasp.INDICES, name=name)


CASES = (
    case.Case(
        15,
        "twice-less-index",
        "Twice each number, less its index.",
        _twice_less_index(),
        vocabulary=tuple(range(5)),
        max_length=5,
        causal=True,
        examples=case.worked(((0, 1, 2, 4), (0, 1, 2, 5)), ((4, 0, 0), (8, -1, -2))),
    ),
    case.Case(
        26,
        "cascade",
        "Each token repeated once more than the one before: a, bb, ccc.",
        rasp.SequenceMap(lambda token, index: token * (index + 1), rasp.TOKENS, rasp.INDICES, name="repeated"),
        vocabulary=case.ABC,
        causal=True,
        examples=case.worked(("abca", ("a", "bb", "ccc", "aaaa"))),
    ),
    case.Case(
        45,
        "double-first-half",
        "The numbers of the first half doubled (the middle one belongs to it), the others as they are.",
        _first_half_doubled(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (2, 4, 3, 4)), ((5, 10, 5), (10, 20, 5))),
    ),
    case.Case(
        48,
        "plus-index",
        "Each number plus its index.",
        rasp.SequenceMap(lambda number, index: number + index, rasp.TOKENS, rasp.INDICES, name="sum"),
        vocabulary=case.NUMBERS,
        causal=True,
        examples=case.worked(((0, 0, 5, 10), (0, 1, 7, 13))),
    ),
    case.Case(
        53,
        "increment-odd-places",
        "One more than the number at odd indices, the number itself at even ones.",
        rasp.SequenceMap(lambda number, odd: number + odd, rasp.TOKENS, _every(2, "odd"), name="raised"),
        vocabulary=case.NUMBERS,
        causal=True,
        examples=case.worked(((5, 5, 10, 10), (5, 6, 10, 11))),
    ),
    case.Case(
        56,
        "zero-every-third",
        "Zero at every third position (indices 2, 5, 8), the number elsewhere.",
        rasp.SequenceMap(
            lambda number, place: 0 if place == 2 else number, rasp.TOKENS, _every(3, "place_of_three"), name="kept"
        ),
        vocabulary=case.NUMBERS,
        causal=True,
        examples=case.worked(((1, 2, 3, 4, 5, 6), (1, 2, 0, 4, 5, 0))),
    ),
    case.Case(
        76,
        "zero-even-places",
        "Zero at even indices, the number elsewhere.",
        rasp.SequenceMap(lambda number, odd: number * odd, rasp.TOKENS, _every(2, "odd"), name="kept"),
        vocabulary=case.NUMBERS,
        causal=True,
        examples=case.worked(((1, 2, 3, 4), (0, 2, 0, 4))),
    ),
    case.Case(
        82,
        "halve-second-half",
        "The numbers of the second half halved (the middle one belongs to it), the others as they are.",
        _second_half_halved(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((8, 6, 4, 3), (8, 6, 2, 1.5)), ((5, 5, 5), (5, 2.5, 2.5))),
    ),
    case.Case(
        106,
        "only-second",
        "The number at index 1, zero elsewhere.",
        rasp.SequenceMap(lambda number, index: number if index == 1 else 0, rasp.TOKENS, rasp.INDICES, name="kept"),
        vocabulary=case.NUMBERS,
        causal=True,
        examples=case.worked(((3, 4, 5), (0, 4, 0))),
    ),
)
