"""Cases that compare or join each token with those beside it."""

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _previous() -> rasp.Aggregate:
    return parts.shifted(1, default=case.START, name="previous")


def _rotated(last: str, letter: str) -> int:
    """Whether a letter of a to e is the last one moved on by two, after e comes a."""
    return int(last != case.START and (ord(letter) - ord(last)) % 5 == 2)


def _trend(last: object, number: int) -> str:
    if not isinstance(last, int) or last == number:
        return "constant"
    return "increasing" if number > last else "decreasing"


def _sign(first: object, second: object) -> int:
    """1, 0 or -1 as it goes up, stays, or goes down; 0 at the ends."""
    if not isinstance(first, int) or not isinstance(second, int):
        return 0
    return (second > first) - (second < first)


def _turns() -> rasp.SequenceMap:
    into = rasp.SequenceMap(_sign, _previous(), rasp.TOKENS, name="step_in")
    out = rasp.SequenceMap(_sign, rasp.TOKENS, parts.shifted(-1, default="end", name="next"), name="step_out")
    return rasp.SequenceMap(lambda one, other: int(one * other < 0), into, out, name="turns")


def _pattern() -> rasp.SequenceMap:
    two = rasp.SequenceMap(
        lambda before, last: int(before == "a" and last == "b"),
        parts.shifted(2, default=case.START, name="before_previous"),
        _previous(),
        name="after_ab",
    )
    return rasp.SequenceMap(lambda ready, letter: int(ready and letter == "c"), two, rasp.TOKENS, name="ends_abc")


def _alternates() -> rasp.SequenceMap:
    two = parts.shifted(2, default=case.START, name="before_previous")
    returns = rasp.SequenceMap(
        lambda before, token: int(before in (token, case.START)), two, rasp.TOKENS, name="returns"
    )
    changes = rasp.SequenceMap(lambda last, token: int(last != token), _previous(), rasp.TOKENS, name="changes")
    return rasp.SequenceMap(lambda one, other: one * other, returns, changes, name="alternates")


def _boundary(last: str, word: str) -> int:
    return int(last != case.START and last[0].isupper() != word[0].isupper())


CASES = (
    case.Case(
        1,
        "rotated-by-two",
        "1 where a letter is the previous one moved on by two (after e comes a), else 0.",
        rasp.SequenceMap(_rotated, _previous(), rasp.TOKENS, name="rotated"),
        vocabulary=tuple("abcde"),
        causal=True,
        examples=case.worked(("aceb", (0, 1, 1, 1)), ("abd", (0, 0, 1))),
    ),
    case.Case(
        6,
        "turning-points",
        "1 where a digit is greater than both neighbours or smaller than both, else 0; 0 at the ends.",
        _turns(),
        vocabulary=tuple(range(10)),
        examples=case.worked(((1, 5, 2, 3), (0, 1, 1, 0)), ((1, 2, 2, 1), (0, 0, 0, 0))),
    ),
    case.Case(
        12,
        "pattern-abc",
        "1 where the last three tokens are a, b, c, else 0.",
        _pattern(),
        vocabulary=case.ABC,
        max_length=15,
        causal=True,
        examples=case.worked(("aabcabc", (0, 0, 0, 1, 0, 0, 1)), ("bca", (0, 0, 0))),
    ),
    case.Case(
        13,
        "trend",
        "Is each number increasing, decreasing or constant, compared with the one before? The first is constant.",
        rasp.SequenceMap(_trend, _previous(), rasp.TOKENS, name="trend"),
        vocabulary=(0, 1, 2),
        examples=case.worked(((0, 2, 2, 1), ("constant", "increasing", "constant", "decreasing"))),
    ),
    case.Case(
        19,
        "drop-repeats",
        "Each token, or a blank where it is the same as the one before.",
        rasp.SequenceMap(
            lambda last, token: case.BLANK if last == token else token, _previous(), rasp.TOKENS, name="kept"
        ),
        vocabulary=case.ABC,
        max_length=15,
        causal=True,
        examples=case.worked(("aabba", "a_b_a"), ("ccc", "c__")),
    ),
    case.Case(
        32,
        "boundaries",
        "1 where a word begins with a capital and the one before does not, or the other way round; else 0.",
        rasp.SequenceMap(_boundary, _previous(), rasp.TOKENS, name="boundary"),
        vocabulary=(
            "MbJmTPSI",
            "SBvrj",
            "UDIh",
            "Wvgfy",
            "bVrp",
            "fJsONxK",
            "fLBcbfno",
            "iVgRV",
            "oCLrZaW",
            "wwMq",
        ),
        causal=True,
        examples=case.worked((("UDIh", "SBvrj", "iVgRV", "wwMq", "UDIh"), (0, 0, 1, 0, 1))),
    ),
    case.Case(
        38,
        "alternating",
        "1 where a token differs from the one before and is the same as the one before that (where there are any), else 0.",
        _alternates(),
        vocabulary=case.ABC,
        examples=case.worked(("ababc", (1, 1, 1, 1, 0)), ("aab", (1, 0, 0))),
    ),
    case.Case(
        92,
        "zero-where-falling",
        "Zero where a number is less than the one before, else the number.",
        rasp.SequenceMap(
            lambda last, number: 0 if last != case.START and number < last else number,
            _previous(),
            rasp.TOKENS,
            name="kept",
        ),
        vocabulary=case.NUMBERS,
        causal=True,
        examples=case.worked(((5, 3, 3, 10), (5, 0, 3, 10))),
    ),
    case.Case(
        99,
        "plus-next",
        "Each number plus the next one; the last stays.",
        rasp.SequenceMap(
            lambda number, after: number + after, rasp.TOKENS, parts.shifted(-1, default=0, name="next"), name="sum"
        ),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 10), (3, 5, 13, 10))),
    ),
    case.Case(
        112,
        "less-next",
        "Each number less the next one; the last stays.",
        rasp.SequenceMap(
            lambda number, after: number - after,
            rasp.TOKENS,
            parts.shifted(-1, default=0, name="next"),
            name="difference",
        ),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 10), (-1, -1, -7, 10))),
    ),
    case.Case(
        115,
        "times-next",
        "Each number times the next one; the last stays.",
        rasp.SequenceMap(
            lambda number, after: number * after,
            rasp.TOKENS,
            parts.shifted(-1, default=1, name="next"),
            name="product",
        ),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 10), (2, 6, 30, 10))),
    ),
    case.Case(
        116,
        "multiples-of-first",
        "1 where a number is a multiple of the first one (of zero: only zero), else 0.",
        rasp.SequenceMap(
            lambda first, number: int(number == 0 if first == 0 else number % first == 0),
            parts.token_at(0, name="first"),
            rasp.TOKENS,
            name="is_multiple",
        ),
        vocabulary=case.NUMBERS,
        max_length=11,
        examples=case.worked(((3, 6, 4, 0), (1, 1, 0, 1)), ((0, 0, 5), (1, 1, 0))),
    ),
    case.Case(
        118,
        "plus-previous",
        "Each number plus the one before; the first stays.",
        rasp.SequenceMap(
            lambda last, number: last + number, parts.shifted(1, default=0, name="previous"), rasp.TOKENS, name="sum"
        ),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 10), (1, 3, 5, 13))),
    ),
    case.Case(
        131,
        "running-maximum-of-two",
        "The greater of each number and the one before; the first stays.",
        rasp.SequenceMap(
            max,
            parts.shifted(1, default=0, name="previous"),
            rasp.TOKENS,
            name="most",
        ),
        vocabulary=case.NUMBERS,
        causal=True,
        examples=case.worked(((5, 3, 8, 1), (5, 5, 8, 8))),
    ),
)
