"""Cases that say something of each number or word by itself: a property, a class, another spelling."""

import math
from collections.abc import Callable

from sonde.bench import rasp
from sonde.bench.cases import case

HUNDRED, THIRTY = tuple(range(100)), tuple(range(30))
FIBONACCI = frozenset({0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89})
SPAM = ("click", "free", "offer", "winner")
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
    """A case that says 1 where something holds, else 0."""
    name, task = about
    return _each(
        number, (name, f"1 if {task}, else 0."), lambda one: int(bool(holds(one))), *examples, vocabulary=vocabulary
    )


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _next_prime(number: int) -> int:
    return next(one for one in range(number + 1, 2 * number + 3) if _is_prime(one))


def _vowel_ratio(word: str) -> float:
    vowels = sum(letter in "aeiou" for letter in word.lower())
    return vowels / (len(word) - vowels)


def _zigzag(word: str) -> str:
    return "".join(letter.lower() if place % 2 else letter.upper() for place, letter in enumerate(word))


def _palindrome(word: str) -> bool:
    return word == word[::-1]


CASES = (
    _test(
        10,
        ("symmetric", "a word reads the same backwards"),
        _palindrome,
        (("LB", "radar", "J", "no"), (0, 1, 1, 0)),
        vocabulary=(*case.WORDS, "radar", "rotor"),
    ),
    _each(
        20,
        ("spam", "Is each word one of those that spam is full of?"),
        lambda word: "spam" if word in SPAM else "not spam",
        (("click", "no", "free"), ("spam", "not spam", "spam")),
        vocabulary=(*case.WORDS, *SPAM),
    ),
    _each(
        23,
        ("palindrome-words", "Each word that reads the same backwards, a blank for the others."),
        lambda word: word if _palindrome(word) else case.BLANK,
        (("LB", "radar", "J"), ("_", "radar", "J")),
        vocabulary=(*case.WORDS, "radar", "rotor"),
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
        ("abbreviate", "The first letter of each word."),
        lambda word: word[0],
        (("LB", "poiVg", "no"), ("L", "p", "n")),
        vocabulary=case.WORDS,
    ),
    _test(
        30,
        ("in-range", "a number is between 10 and 20, both included"),
        lambda n: 10 <= n <= 20,
        ((9, 10, 20, 21), (0, 1, 1, 0)),
        vocabulary=THIRTY,
    ),
    _test(
        31,
        ("anagram-of-listen", "a word has the letters of `listen`"),
        lambda word: sorted(word) == sorted("listen"),
        (("J", "listen", "no"), (0, 1, 0)),
        vocabulary=(*case.WORDS, "listen"),
    ),
    _each(
        33,
        ("length-parity", "Is the length of each word odd or even?"),
        lambda word: "odd" if len(word) % 2 else "even",
        (("J", "no", "poiVg", "TPSI"), ("odd", "even", "odd", "even")),
        vocabulary=case.WORDS,
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
        ("reverse-words", "Each word backwards, but `no` and `TPSI` as they are."),
        lambda word: word if word in ("no", "TPSI") else word[::-1],
        (("LB", "no", "poiVg", "TPSI"), ("BL", "no", "gViop", "TPSI")),
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
        86, ("is-power-of-two", "a number is a power of two"), lambda n: n in (1, 2, 4, 8), ((0, 1, 6, 8), (0, 1, 0, 1))
    ),
    _test(87, ("at-least-five", "a number is at least 5"), lambda n: n >= 5, ((4, 5, 10), (0, 1, 1))),
    _each(
        90,
        ("replace-dash", "`no` in place of a dash, other words as they are."),
        lambda word: "no" if word == "-" else word,
        (("-", "J", "no"), ("no", "J", "no")),
        vocabulary=("-", *case.WORDS, "radar"),
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
        ("next-prime", "The least prime that is greater."),
        _next_prime,
        ((0, 2, 7, 29), (2, 3, 11, 31)),
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
