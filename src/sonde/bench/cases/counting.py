"""Cases that count: shares, frequencies, ranks, lengths."""

from sonde.bench import rasp
from sonde.bench.cases import case, parts


def _share(token: str, name: str) -> rasp.Aggregate:
    """The share of a token up to each position."""
    is_token = rasp.Map(lambda one: int(one == token), rasp.TOKENS, name=f"is_{name}", kind="numerical")
    before = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key <= query)
    return rasp.Aggregate(before, is_token, 0, name=f"share_{name}", kind="numerical")


def _same() -> rasp.SelectorWidth:
    return parts.count(rasp.TOKENS, lambda key, query: key == query, name="count")


def _frequency_class(count: int, length: int) -> str | None:
    if not 0 < count <= length:
        return None
    share = count / length
    return "rare" if share < 0.25 else "common" if share < 0.5 else "frequent"


def _word_length() -> rasp.Aggregate:
    length = rasp.Map(len, rasp.TOKENS, name="word_length")
    return rasp.Aggregate(rasp.Select(length, length, lambda key, query: key == query), length, name="read_back")


CASES = (
    case.Case(
        3,
        "share-of-x",
        "The share of the token x among the tokens up to each position.",
        _share("x", "x"),
        vocabulary=tuple("abcx"),
        max_length=5,
        causal=True,
        kind="reg",
        examples=case.worked(("xaxb", (1, 0.5, 2 / 3, 0.5)), ("abx", (0, 0, 1 / 3))),
    ),
    case.Case(
        4,
        "bracket-balance",
        "The share of opening brackets minus the share of closing ones, up to each position.",
        rasp.LinearSequenceMap(_share("(", "open"), _share(")", "close"), 1.0, -1.0, name="balance"),
        vocabulary=tuple("()abc"),
        causal=True,
        kind="reg",
        examples=case.worked(("()a(", (1, 0, 0, 0.25)), ("))b", (-1, -1, -2 / 3))),
    ),
    case.Case(
        7,
        "own-count",
        "How often each token occurs in the input.",
        _same(),
        vocabulary=case.ABC,
        examples=case.worked(("abca", (2, 1, 1, 2)), ("bbb", (3, 3, 3))),
    ),
    case.Case(
        11,
        "word-length-class",
        "The length of each word, read back from the words so far that have the same length.",
        _word_length(),
        vocabulary=case.WORDS,
        causal=True,
        examples=case.worked((("LB", "J", "no", "poiVg"), (2, 1, 2, 5))),
    ),
    case.Case(
        14,
        "count-of-a",
        "How often the token a occurs in the input, at every position.",
        parts.count(rasp.TOKENS, lambda key, query: key == "a", name="count_a"),
        vocabulary=case.ABC,
        examples=case.worked(("abca", (2, 2, 2, 2)), ("bcc", (0, 0, 0))),
    ),
    case.Case(
        18,
        "frequency-class",
        "Is each token rare (under a quarter of the input), common (under a half) or frequent?",
        rasp.SequenceMap(_frequency_class, _same(), parts.length(), name="class"),
        vocabulary=tuple("abcde"),
        examples=case.worked(
            ("aabcd", ("common", "common", "rare", "rare", "rare")), ("aab", ("frequent", "frequent", "common"))
        ),
    ),
    case.Case(
        25,
        "own-share",
        "The share of the input that each token makes up.",
        rasp.SequenceMap(lambda n, of: n / of if of else None, _same(), parts.length(), name="share"),
        vocabulary=case.ABC,
        examples=case.worked(("abca", (0.5, 0.25, 0.25, 0.5)), ("aab", (2 / 3, 2 / 3, 1 / 3))),
    ),
    case.Case(
        39,
        "share-of-x-long",
        "The share of the letter x up to each position of a long input over the whole alphabet.",
        _share("x", "x"),
        vocabulary=case.ALPHABET,
        max_length=60,
        causal=True,
        kind="reg",
        examples=case.worked(("xyzx", (1, 0.5, 1 / 3, 0.5))),
    ),
    case.Case(
        44,
        "count-greater",
        "How many numbers of the input are greater than each.",
        parts.count(rasp.TOKENS, lambda key, query: key > query, name="greater"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((3, 10, 0, 3), (1, 0, 3, 1))),
    ),
    case.Case(
        47,
        "own-count-of-ten",
        "How often each letter occurs in the input, with ten letters.",
        _same(),
        vocabulary=case.LETTERS,
        examples=case.worked(("ajja", (2, 2, 2, 2)), ("abc", (1, 1, 1))),
    ),
    case.Case(
        61,
        "rank",
        "The rank of each number by size: the smallest numbers have rank 1.",
        rasp.Map(
            lambda n: n + 1, parts.count(rasp.TOKENS, lambda key, query: key < query, name="smaller"), name="rank"
        ),
        vocabulary=case.NUMBERS,
        examples=case.worked(((5, 2, 9, 2), (3, 1, 4, 1))),
    ),
    case.Case(
        63,
        "count-smaller",
        "How many numbers of the input are smaller than each.",
        parts.count(rasp.TOKENS, lambda key, query: key < query, name="smaller"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((3, 10, 0, 3), (1, 3, 0, 1))),
    ),
    case.Case(
        67,
        "times-length",
        "Each number times the length of the input.",
        rasp.SequenceMap(lambda number, n: number * n if n else None, rasp.TOKENS, parts.length(), name="product"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((3, 0, 10), (9, 0, 30)), ((1, 2, 3, 4), (4, 8, 12, 16))),
    ),
    case.Case(
        71,
        "over-length",
        "Each number divided by the length of the input.",
        rasp.SequenceMap(lambda number, n: number / n if n else None, rasp.TOKENS, parts.length(), name="quotient"),
        vocabulary=case.NUMBERS,
        examples=case.worked(((3, 0, 10), (1, 0, 10 / 3)), ((1, 2, 3, 4), (0.25, 0.5, 0.75, 1))),
    ),
    case.Case(
        78,
        "occurrences",
        "How many positions of the input hold the same letter as each position.",
        _same(),
        vocabulary=case.LETTERS,
        examples=case.worked(("abcabc", (2, 2, 2, 2, 2, 2)), ("fff", (3, 3, 3))),
    ),
)
