"""Cases that check something of the whole input, and say so at every position."""

from collections.abc import Callable

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _where(sign: str, name: str) -> rasp.SequenceMap:
    """The index of a position that holds a sign; no value elsewhere."""
    return rasp.SequenceMap(lambda token, index: index if token == sign else None, rasp.TOKENS, rasp.INDICES, name=name)


def _balanced(opening: str, closing: str, name: str) -> rasp.SequenceMap:
    """Whether brackets of one kind close each other, and none closes before it opens."""
    opens, closes = _where(opening, f"{name}_opens_at"), _where(closing, f"{name}_closes_at")
    n_open = parts.count(opens, lambda key, query: key <= query, queries=rasp.INDICES, name=f"{name}_opened")
    n_close = parts.count(closes, lambda key, query: key <= query, queries=rasp.INDICES, name=f"{name}_closed")
    depth = rasp.SequenceMap(lambda up, down: up - down, n_open, n_close, name=f"{name}_depth")
    below = parts.count(depth, lambda key, query: key < 0, name=f"{name}_below")
    ups = parts.count(rasp.TOKENS, lambda key, query: key == opening, name=f"{name}_all_opened")
    downs = parts.count(rasp.TOKENS, lambda key, query: key == closing, name=f"{name}_all_closed")
    even = rasp.SequenceMap(lambda up, down: up == down, ups, downs, name=f"{name}_even")
    return rasp.SequenceMap(lambda n, ok: n == 0 and ok, below, even, name=f"{name}_balanced")


def _steps_hold(holds: Callable[[int, int], bool], name: str) -> rasp.Map:
    """1 if something holds of every number and the next, else 0."""
    step = rasp.SequenceMap(
        lambda last, number: last == case.START or holds(last, number),
        parts.shifted(1, default=case.START, name="previous"),
        rasp.TOKENS,
        name="step_holds",
    )
    return parts.none_of(rasp.Map(lambda held: not held, step, name="breaks"), name=name)


def _parities_alternate() -> rasp.Map:
    own = rasp.Map(lambda number: number % 2, rasp.TOKENS, name="parity")
    last = parts.shifted(1, default=case.START, name="previous")
    before = rasp.Map(
        lambda number: case.START if number == case.START else number % 2, last, name="parity_of_previous"
    )
    repeats = rasp.SequenceMap(lambda one, other: one == other, before, own, name="repeats")
    return parts.none_of(repeats, name="alternating")


def _alone_kept() -> rasp.SequenceMap:
    same = parts.count(rasp.TOKENS, lambda key, query: key == query, name="same")
    others = rasp.Map(lambda n: n - 1, same, name="others_of_the_same")
    alone = rasp.Map(lambda n: n == 0, others, name="alone")
    return rasp.SequenceMap(lambda number, only: number if only else 0, rasp.TOKENS, alone, name="kept")


def _last_two_equal() -> rasp.SequenceMap:
    length = parts.length()
    return rasp.SequenceMap(
        lambda one, other: int(one == other),
        parts.from_end(1, length, name="last"),
        parts.from_end(2, length, name="last_but_one"),
        name="equal",
    )


def _some_equal() -> rasp.Map:
    same = parts.count(rasp.TOKENS, lambda key, query: key == query, name="same")
    more = parts.count(same, lambda key, query: key > 1, name="of_more_than_one")
    return rasp.Map(lambda n: int(n > 0), more, name="some_equal")


def _all_equal() -> rasp.Map:
    smaller = parts.count(rasp.TOKENS, lambda key, query: key < query, name="smaller")
    above = parts.count(smaller, lambda key, query: key > 0, name="above_another")
    return rasp.Map(lambda n: int(n == 0), above, name="all_equal")


CASES = (
    case.Case(
        5,
        "balanced",
        "Are the round brackets balanced, and the curly ones, each kind taken by itself?",
        rasp.SequenceMap(
            lambda one, other: one and other,
            _balanced("(", ")", "round"),
            _balanced("{", "}", "curly"),
            name="balanced",
        ),
        vocabulary=tuple("()x{}"),
        examples=case.worked(
            ("({x})", (True,) * 5), (")(x", (False,) * 3), ("(x{}", (False,) * 4), ("({)}", (True,) * 4)
        ),
    ),
    case.Case(
        17,
        "mirror-matches",
        "Is each letter the same as the one that stands as far from the other end?",
        rasp.SequenceMap(lambda one, other: one == other, rasp.TOKENS, parts.reversed_tokens(), name="matches"),
        vocabulary=case.LETTERS,
        examples=case.worked(
            ("abba", (True,) * 4), ("abca", (True, False, False, True)), ("abc", (False, True, False))
        ),
    ),
    case.Case(
        89,
        "increasing",
        "1 if every number is greater than the one before, else 0.",
        _steps_hold(lambda last, number: number > last, "increasing"),
        vocabulary=case.NUMBERS,
        max_length=11,
        examples=case.worked(((1, 2, 9, 10), (1, 1, 1, 1)), ((1, 1, 2), (0, 0, 0))),
    ),
    case.Case(
        94,
        "descending",
        "1 if every number is less than the one before, else 0.",
        _steps_hold(lambda last, number: number < last, "descending"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((9, 5, 1), (1, 1, 1)), ((9, 5, 5, 1), (0, 0, 0, 0))),
    ),
    case.Case(
        96,
        "zero-duplicates",
        "Each number that occurs only once, zero in place of the others.",
        _alone_kept(),
        vocabulary=tuple(range(1, 11)),
        examples=case.worked(((3, 4, 3, 7, 10), (0, 4, 0, 7, 10))),
    ),
    case.Case(
        108,
        "some-equal",
        "1 if some number occurs twice or more, else 0.",
        _some_equal(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 5, 1), (1, 1, 1)), ((1, 2, 3, 4), (0, 0, 0, 0))),
    ),
    case.Case(
        109,
        "last-two-equal",
        "1 if the last two numbers are equal, else 0.",
        _last_two_equal(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 5, 5), (1, 1, 1)), ((5, 5, 1, 2), (0, 0, 0, 0))),
    ),
    case.Case(
        124,
        "all-equal",
        "1 if all numbers are equal, else 0.",
        _all_equal(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((7, 7, 7), (1, 1, 1)), ((7, 7, 8, 7), (0, 0, 0, 0))),
    ),
    case.Case(
        125,
        "alternating-parity",
        "1 if even and odd numbers take turns, else 0.",
        _parities_alternate(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((2, 5, 0, 9), (1, 1, 1, 1)), ((2, 4, 5), (0, 0, 0))),
    ),
    case.Case(
        129,
        "all-even",
        "1 if every number is even, else 0.",
        parts.none_of(rasp.Map(lambda number: number % 2, rasp.TOKENS, name="odd"), name="all_even"),
        vocabulary=tuple(range(30)),
        examples=case.worked(((2, 28, 0), (1, 1, 1)), ((2, 28, 0, 7), (0, 0, 0, 0))),
    ),
)
