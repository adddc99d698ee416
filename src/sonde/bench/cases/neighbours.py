"""Cases that compare or join each token with those beside it."""

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _previous() -> rasp.Aggregate:
    return parts.shifted(1, default=case.START, name="previous")


def _next() -> rasp.Aggregate:
    return parts.shifted(-1, default=case.END, name="next")


def _trend(number: int, after: object) -> str:
    if not isinstance(after, int) or after == number:
        return "constant"
    return "increasing" if after > number else "decreasing"


def _rises(first: object, second: object) -> bool | str:
    """Whether the second number is greater; which end it is, if one of them is none."""
    if isinstance(first, int) and isinstance(second, int):
        return second > first
    return case.START if first == case.START else case.END


def _turns() -> rasp.SequenceMap:
    into = rasp.SequenceMap(_rises, _previous(), rasp.TOKENS, name="rises_into")
    out = rasp.SequenceMap(_rises, rasp.TOKENS, _next(), name="rises_after")
    return rasp.SequenceMap(
        lambda one, other: one != other if one != case.START and other != case.END else False, into, out, name="turns"
    )


def _pattern() -> rasp.SequenceMap:
    is_a, is_b, is_c = (
        rasp.Map(lambda token, letter=letter: token == letter, rasp.TOKENS, name=f"is_{letter}") for letter in "abc"
    )
    two = rasp.SequenceMap(
        lambda one, other: one and other,
        parts.shifted(2, of=is_a, default=False, name="a_two_before"),
        parts.shifted(1, of=is_b, default=False, name="b_before"),
        name="after_ab",
    )
    return rasp.SequenceMap(lambda one, other: one and other, two, is_c, name="ends_abc")


def _differs_from_both() -> rasp.SequenceMap:
    before = rasp.SequenceMap(
        lambda last, token: last not in (token, case.START), _previous(), rasp.TOKENS, name="differs_from_previous"
    )
    after = rasp.SequenceMap(
        lambda token, following: following not in (token, case.END), rasp.TOKENS, _next(), name="differs_from_next"
    )
    return rasp.SequenceMap(lambda one, other: one and other, before, after, name="differs_from_both")


def _plus_previous() -> rasp.SequenceMap:
    before = rasp.Map(lambda last: 0 if last == case.START else last, _previous(), name="previous_or_zero")
    return rasp.SequenceMap(lambda last, number: last + number, before, rasp.TOKENS, name="sum")


CASES = (
    case.Case(
        1,
        "same-as-two-before",
        "Is a letter the same as the one two places before? No where there is none.",
        rasp.SequenceMap(
            lambda before, letter: before == letter,
            parts.shifted(2, default=case.START, name="before_previous"),
            rasp.TOKENS,
            name="same",
        ),
        vocabulary=tuple("abcde"),
        causal=True,
        examples=case.worked(("abae", (False, False, True, False)), ("ddd", (False, False, True))),
    ),
    case.Case(
        6,
        "turning-points",
        "Does a rise begin or end at a digit? Equal neighbours are no rise; no at the ends.",
        _turns(),
        vocabulary=tuple(range(10)),
        examples=case.worked(
            ((1, 5, 2, 3), (False, True, True, False)), ((1, 2, 2, 1, 0), (False, True, False, False, False))
        ),
    ),
    case.Case(
        12,
        "pattern-abc",
        "Are the last three tokens a, b, c?",
        _pattern(),
        vocabulary=case.ABC,
        max_length=15,
        causal=True,
        examples=case.worked(("aabca", (False, False, False, True, False)), ("bca", (False, False, False))),
    ),
    case.Case(
        13,
        "trend",
        "Is the number after each one greater (increasing), smaller (decreasing) or the same (constant)? Constant at the end.",
        rasp.SequenceMap(_trend, rasp.TOKENS, _next(), name="trend"),
        vocabulary=(0, 1, 2),
        examples=case.worked(((0, 2, 2, 1), ("increasing", "constant", "decreasing", "constant"))),
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
        "Is a word another one than the word before? No for the first.",
        rasp.SequenceMap(lambda last, word: last not in (word, case.START), _previous(), rasp.TOKENS, name="boundary"),
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
        examples=case.worked((("UDIh", "SBvrj", "SBvrj", "wwMq"), (False, True, False, True))),
    ),
    case.Case(
        38,
        "alternating",
        "Does a token differ from both its neighbours? No at the ends.",
        _differs_from_both(),
        vocabulary=case.ABC,
        examples=case.worked(("abcca", (False, True, False, False, False)), ("aba", (False, True, False))),
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
        "Each number plus the next one; the last plus itself.",
        rasp.SequenceMap(lambda number, after: number + after, rasp.TOKENS, parts.following(), name="sum"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 10), (3, 5, 13, 20))),
    ),
    case.Case(
        112,
        "step-to-next",
        "How much greater the next number is than each; 0 for the last.",
        rasp.SequenceMap(lambda number, after: after - number, rasp.TOKENS, parts.following(), name="step"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 10, 3), (1, 8, -7, 0))),
    ),
    case.Case(
        115,
        "times-next",
        "Each number times the next one; the last times itself.",
        rasp.SequenceMap(lambda number, after: number * after, rasp.TOKENS, parts.following(), name="product"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 10), (2, 6, 30, 100))),
    ),
    case.Case(
        116,
        "multiples-of-first",
        "1 where a number is a multiple of the first one, else 0; 0 everywhere if the first is zero.",
        rasp.SequenceMap(
            lambda first, number: int(first != 0 and number % first == 0),
            parts.token_at(0, name="first"),
            rasp.TOKENS,
            name="is_multiple",
        ),
        vocabulary=case.NUMBERS,
        max_length=11,
        examples=case.worked(((3, 6, 4, 0), (1, 1, 0, 1)), ((0, 0, 5), (0, 0, 0))),
    ),
    case.Case(
        118,
        "plus-previous",
        "Each number plus the one before; the first stays.",
        _plus_previous(),
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
