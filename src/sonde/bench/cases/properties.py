"""Cases that say something of each number or word by itself: a property, a class, another spelling."""

import math
from collections.abc import Callable

from sonde.bench import rasp
from sonde.bench.cases import case

HUNDRED, THIRTY = tuple(range(100)), tuple(range(30))
FIBONACCI = frozenset({0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89})
SPAM = ("click", "now", "offer")
MOODS = {"😊": "positive", "😢": "negative", "📘": "neutral"}
LONG_WORDS = (
    "ADUdRPP", "CHChpo", "DaUUq", "GFfWd", "GprQ", "JaRUhR", "JkqHMBn", "LoaeT", "MOkI", "MbJmTPSI",
    "MeyyMDH", "MuFb", "SBvrj", "TecQo", "UDIh", "WUSmTtzQ", "WlGgOtOG", "WrXPvhsB", "Wvgfy", "YEZAm",
    "bVrp", "dzUv", "eWIXiiQ", "fJsONxK", "fLBcbfno", "fogyrD", "gQBw", "iVgRV", "jOkY", "kDyrO",
    "kxwnQr", "mjxWkIXH", "nIiUKKE", "nPFzPD", "oCLrZaW", "oRuXXdoc", "oecv", "pKff", "pmmI", "qVLBLzxo",
    "qipVJ", "vbLJ", "wwMq", "xZtp", "zrenKT",
)  # fmt: skip


def _each(
    number: int,
    about: tuple[str, str],
    function: Callable[[rasp.Value], rasp.Value],
    *examples: tuple[tuple[rasp.Value, ...], tuple[rasp.Value, ...]],
    vocabulary: tuple[rasp.Value, ...],
) -> case.Case:
    """A case with one Map."""
    name, task = about
    program = rasp.Map(function, rasp.TOKENS, name=name.replace("-", "_"))
    return case.Case(number, name, task, program, vocabulary=vocabulary, causal=True, examples=examples)


def _test(
    number: int,
    about: tuple[str, str],
    holds: Callable[[rasp.Value], object],
    *examples: tuple[tuple[rasp.Value, ...], tuple[rasp.Value, ...]],
    vocabulary: tuple[rasp.Value, ...] = case.NUMBERS,
) -> case.Case:
    """A case that says 1 where something holds of a number, else 0."""
    name, task = about
    return _each(
        number, (name, f"1 if {task}, else 0."), lambda one: int(bool(holds(one))), *examples, vocabulary=vocabulary
    )


def _question(
    number: int,
    about: tuple[str, str],
    holds: Callable[[rasp.Value], bool],
    *examples: tuple[tuple[rasp.Value, ...], tuple[rasp.Value, ...]],
    vocabulary: tuple[rasp.Value, ...] = case.WORDS,
) -> case.Case:
    """A case that says of each word whether something holds."""
    return _each(number, about, holds, *examples, vocabulary=vocabulary)


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _next_prime(number: int) -> int:
    return next(one for one in range(number, 2 * number + 3) if _is_prime(one))


def _vowel_ratio(word: str) -> float:
    vowels = sum(letter in "aeiou" for letter in word.lower())
    return vowels / (len(word) - vowels)


def _zigzag(word: str) -> str:
    return "".join(letter.lower() if place % 2 else letter.upper() for place, letter in enumerate(word))


def _palindrome(word: str) -> bool:
    return word == word[::-1]


def _symmetric() -> rasp.SequenceMap:
    """By the length of the half that must be found again, from the other end."""
    length = rasp.Map(len, rasp.TOKENS, name="word_length")
    half = rasp.Map(lambda n: n // 2, length, name="half_length")
    return rasp.SequenceMap(
        lambda word, n: word if word[:n] == word[::-1][:n] else case.BLANK, rasp.TOKENS, half, name="symmetric"
    )


CASES = (
    case.Case(
        10,
        "symmetric",
        "Each word whose second half mirrors the first, a blank for the others.",
        _symmetric(),
        vocabulary=(*case.WORDS, "radar", "rotor"),
        causal=True,
        examples=case.worked((("LB", "radar", "J", "no"), ("_", "radar", "J", "_"))),
    ),
    _each(
        20,
        ("spam", "Is each word one of those that spam is full of? (The word spam itself is not.)"),
        lambda word: "spam" if word in SPAM else "not spam",
        (("click", "no", "now", "spam"), ("spam", "not spam", "spam", "not spam")),
        vocabulary=(*case.WORDS, *SPAM, "spam"),
    ),
    _each(
        23,
        ("palindrome-words", "Each word that reads the same backwards, a blank for the others."),
        lambda word: word if _palindrome(word) else case.BLANK,
        (("LB", "noon", "J"), ("_", "noon", "J")),
        vocabulary=(*case.WORDS, "noon", "racecar"),
    ),
    _each(
        28,
        ("mirror-words", "Each word backwards."),
        lambda word: word[::-1],
        (("GprQ", "DaUUq", "CHChpo"), ("QrpG", "qUUaD", "ophCHC")),
        vocabulary=LONG_WORDS,
    ),
    _each(
        29,
        ("abbreviate", "The first three letters of each word; short words as they are."),
        lambda word: word[:3],
        (("LB", "poiVg", "TPSI"), ("LB", "poi", "TPS")),
        vocabulary=case.WORDS,
    ),
    _question(
        30,
        ("in-range", "Is a number, which is written as a word, between 10 and 20, both included?"),
        lambda digits: 10 <= int(digits) <= 20,
        (("9", "10", "20", "21"), (False, True, True, False)),
        vocabulary=tuple(map(str, THIRTY)),
    ),
    _question(
        31,
        ("anagram-of-listen", "Has a word the letters of `listen`?"),
        lambda word: sorted(word) == sorted("listen"),
        (("J", "listen", "no"), (False, True, False)),
        vocabulary=(*case.WORDS, "listen"),
    ),
    _question(
        33,
        ("length-parity", "Is the length of each word even?"),
        lambda word: len(word) % 2 == 0,
        (("J", "no", "poiVg", "TPSI"), (False, True, False, True)),
    ),
    _each(
        34,
        ("vowel-ratio", "Vowels per consonant of each word."),
        _vowel_ratio,
        (("LB", "no", "oCLrZaW", "TPSI"), (0, 1, 0.4, 1 / 3)),
        vocabulary=case.WORDS,
    ),
    _each(
        35,
        ("zigzag-case", "Each word with letters large and small in turn, a large one first."),
        _zigzag,
        (("poiVg", "no", "b", "TPSI"), ("PoIvG", "No", "B", "TpSi")),
        vocabulary=case.WORDS,
    ),
    _each(
        36,
        ("mood", "Is each face positive, negative or neutral?"),
        MOODS.__getitem__,
        (("😊", "📘", "😢"), ("positive", "neutral", "negative")),
        vocabulary=tuple(MOODS),
    ),
    _each(
        37,
        ("reverse-words", "Each word backwards."),
        lambda word: word[::-1],
        (("LB", "no", "poiVg", "TPSI"), ("BL", "on", "gViop", "ISPT")),
        vocabulary=case.WORDS,
    ),
    _test(
        51,
        ("is-fibonacci", "a number is a Fibonacci number"),
        FIBONACCI.__contains__,
        ((0, 4, 89, 90), (1, 0, 1, 0)),
        vocabulary=HUNDRED,
    ),
    _test(79, ("is-prime", "a number is prime"), _is_prime, ((0, 1, 2, 9, 7), (0, 0, 1, 0, 1))),
    _test(
        86,
        ("is-power-of-two", "a number is two, four or eight (one does not count)"),
        lambda n: n in (2, 4, 8),
        ((0, 1, 2, 6, 8), (0, 0, 1, 0, 1)),
    ),
    _test(87, ("at-least-three", "a number is at least 3"), lambda n: n >= 3, ((2, 3, 10), (0, 1, 1))),
    _each(
        90,
        ("replace-word", "A dash in place of `findme`, other words as they are."),
        lambda word: "-" if word == "findme" else word,
        (("findme", "J", "-"), ("-", "J", "-")),
        vocabulary=("-", *case.WORDS, "findme"),
    ),
    _each(
        95,
        ("prime-factors", "How many different primes divide each number; none for 0."),
        lambda n: sum(n > 0 and _is_prime(p) and n % p == 0 for p in range(2, 30)),
        ((0, 1, 8, 12, 29), (0, 0, 1, 2, 1)),
        vocabulary=THIRTY,
    ),
    _test(
        101,
        ("is-square", "a number is the square of a whole number"),
        lambda n: math.isqrt(n) ** 2 == n,
        ((0, 3, 16, 29), (1, 0, 1, 0)),
        vocabulary=THIRTY,
    ),
    _each(
        105,
        ("next-prime", "The least prime that is not less."),
        _next_prime,
        ((0, 2, 8, 29), (2, 2, 11, 29)),
        vocabulary=THIRTY,
    ),
    _test(
        122,
        ("divisible-by-three", "a number is divisible by 3"),
        lambda n: n % 3 == 0,
        ((0, 1, 9, 29), (1, 0, 1, 0)),
        vocabulary=THIRTY,
    ),
)
