"""Cases that move tokens: reversing, swapping, mirroring, repeating one of them."""

from collections.abc import Callable

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _moved(move: Callable[[int, int], int], name: str) -> rasp.Aggregate:
    """Each position takes the token from the index that `move` names, given its own index and the length."""
    return parts.lookup(parts.source(move, name="source"), name=name)


def _spread() -> rasp.SequenceMap:
    halfway = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key == query // 2)
    token = rasp.Aggregate(halfway, rasp.TOKENS, name="token_at_half")
    return rasp.SequenceMap(lambda index, number: 0 if index % 2 else number, rasp.INDICES, token, name="spread")


def _last_then_zeros() -> rasp.SequenceMap:
    index = rasp.Map(lambda n: n - 1 if n else None, parts.length(), name="last_index")
    last = parts.lookup(index, name="last")
    return rasp.SequenceMap(lambda place, number: 0 if place else number, rasp.INDICES, last, name="padded")


def _reversed_if_sorted() -> rasp.Aggregate:
    before = parts.shifted(1, default=case.START, name="previous")
    falls = rasp.SequenceMap(
        lambda last, number: int(last != case.START and last > number), before, rasp.TOKENS, name="falls"
    )
    rises = rasp.Map(
        lambda n: int(n == 0), parts.count(falls, lambda key, query: key, name="falls_count"), name="is_sorted"
    )
    mirror = parts.source(lambda index, n: n - 1 - index, name="mirror_index")
    wanted = rasp.SequenceMap(lambda is_sorted, index: index if is_sorted else -1, rises, mirror, name="mirror_or_stay")
    index = rasp.SequenceMap(lambda index, own: own if index < 0 else index, wanted, rasp.INDICES, name="source")
    return parts.lookup(index, name="turned")


def _unique() -> rasp.Aggregate:
    places = parts.placed()
    earlier = parts.count(
        places, lambda key, query: key[0] == query[0] and key[1] < query[1], name="earlier_of_the_same"
    )
    slot = rasp.SequenceMap(lambda n, index: index if n == 0 else -1, earlier, rasp.INDICES, name="slot")
    own = rasp.Select(slot, rasp.INDICES, lambda key, query: key == query)
    return rasp.Aggregate(own, rasp.TOKENS, case.BLANK, name="kept")


def _halves_swapped() -> rasp.Aggregate:
    """By the indices at which the first half ends and the second begins: a middle token lies between."""
    ends = rasp.Map(lambda n: (n // 2, n - n // 2), parts.length(), name="ends_of_halves")
    index = rasp.SequenceMap(_in_other_half, rasp.INDICES, ends, name="source")
    return parts.lookup(index, name="turned")


def _in_other_half(index: int, ends: tuple[int, int]) -> int | None:
    first, second = ends
    if index >= first + second:
        return None
    return index + second if index < first else index - second if index >= second else index


def _partner(index: int, n: int, *, first: int) -> int:
    """The other index of a pair of neighbours, of which the first begins at `first`; itself if it has none."""
    if index < first:
        return index
    other = index + 1 if (index - first) % 2 == 0 else index - 1
    return other if other < n else index


def _ends_swapped(index: int, n: int) -> int:
    return n - 1 if index == 0 else 0 if index == n - 1 else index


CASES = (
    case.Case(
        2,
        "reverse",
        "The input from its end to its beginning.",
        parts.reversed_tokens(),
        vocabulary=case.ALPHABET,
        examples=case.worked(("abcd", "dcba"), ("zyx", "xyz")),
    ),
    case.Case(
        21,
        "unique",
        "Each token where it occurs for the first time, a blank where it occurs again.",
        _unique(),
        vocabulary=case.ABC,
        causal=True,
        examples=case.worked(("abacb", "ab_c_"), ("ccc", "c__")),
    ),
    case.Case(
        24,
        "own-token",
        "Each token as it is, read by a head that looks at its own position.",
        parts.shifted(0, name="own_token"),
        vocabulary=case.ABC,
        causal=True,
        examples=case.worked(("abacb", "abacb")),
    ),
    case.Case(
        42,
        "repeat-first",
        "The first letter of the input, at every position.",
        parts.token_at(0, name="first"),
        vocabulary=case.LETTERS,
        causal=True,
        examples=case.worked(("dabc", "dddd")),
    ),
    case.Case(
        57,
        "repeat-second",
        "The second letter of the input, at every position.",
        parts.token_at(1, name="second"),
        vocabulary=case.LETTERS,
        examples=case.worked(("dabc", "aaaa")),
    ),
    case.Case(
        58,
        "mirror-first-half",
        "The first half as it is, then the same backwards in place of the second half.",
        _moved(lambda index, n: index if 2 * index < n else n - 1 - index, "mirrored"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (1, 2, 2, 1)), ((1, 2, 3, 4, 5), (1, 2, 3, 2, 1))),
    ),
    case.Case(
        74,
        "weave-with-reverse",
        "At even indices the number itself, at odd ones the number that the reversed input has there.",
        _moved(lambda index, n: n - 1 - index if index % 2 else index, "woven"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (1, 3, 3, 1)), ((1, 2, 3, 4, 5), (1, 4, 3, 2, 5))),
    ),
    case.Case(
        93,
        "swap-from-second",
        "Every number at an odd index changes places with the next one, if there is one.",
        _moved(lambda index, n: _partner(index, n, first=1), "swapped"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (1, 3, 2, 4)), ((1, 2, 3), (1, 3, 2))),
    ),
    case.Case(
        100,
        "swap-first-two",
        "The first two numbers change places, the others stay.",
        parts.lookup(
            rasp.Map(lambda index: {0: 1, 1: 0}.get(index, index), rasp.INDICES, name="source"), name="swapped"
        ),
        vocabulary=case.NUMBERS,
        max_length=11,
        examples=case.worked(((7, 8, 9, 10), (8, 7, 9, 10))),
    ),
    case.Case(
        103,
        "swap-neighbours",
        "Every number at an even index changes places with the next one, if there is one.",
        _moved(lambda index, n: _partner(index, n, first=0), "swapped"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (2, 1, 4, 3)), ((1, 2, 3), (2, 1, 3))),
    ),
    case.Case(
        110,
        "spread-with-zeros",
        "A zero after each number; what no longer fits at the end is dropped.",
        _spread(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (1, 0, 2, 0)), ((5, 6, 7), (5, 0, 6))),
    ),
    case.Case(
        111,
        "last-then-zeros",
        "The last number of the input in first place, zeros after it.",
        _last_then_zeros(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (4, 0, 0, 0)), ((5, 6, 7), (7, 0, 0))),
    ),
    case.Case(
        113,
        "reverse-if-sorted",
        "The input backwards if no number is smaller than the one before, else the input as it is.",
        _reversed_if_sorted(),
        vocabulary=tuple(range(30)),
        examples=case.worked(((1, 5, 5, 20), (20, 5, 5, 1)), ((3, 2, 29), (3, 2, 29))),
    ),
    case.Case(
        120,
        "swap-halves",
        "The second half first, then the first half; of an odd number of tokens the middle one stays.",
        _halves_swapped(),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (3, 4, 1, 2)), ((1, 2, 3, 4, 5), (4, 5, 3, 1, 2))),
    ),
    case.Case(
        128,
        "swap-ends",
        "The first and the last number change places.",
        _moved(_ends_swapped, "swapped"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((1, 2, 3, 4), (4, 2, 3, 1))),
    ),
)
