"""What did the model answer? From its text to a value, or None if it gave none.

A parser reads only what comes first, because a model that has answered goes on, with other programs and their answers:

1. If the first line is a value and nothing else, that is the answer.
2. Else, if a line says `Answer:`, the value right behind it; if it says so more than once, behind the last.
3. Else the value that the text begins with.

A parser never guesses: a number with a fraction, or inside a word, is no whole number. Costs nothing.
"""

import re
from collections.abc import Callable

Parser = Callable[[str], int | bool | None]
_DRESS = r"[\s*_`\"'(]*"
_MARK = re.compile(
    rf"\banswer(?:(?:\s+is)?\s*:|\s+is(?={_DRESS}(?:[-−\d]|true|false))){_DRESS}(?:[^\W\d]\w*\s*=\s*)?", re.IGNORECASE
)
_INTEGER = re.compile(r"\s*([-−]?\d+)(?!\w|[.,]\d)", re.ASCII)
_BOOLEAN = re.compile(r"\s*(true|false)\b", re.IGNORECASE)
_ALONE = re.compile(r"[ \t.,;!]*(?:\n|$)")
MAX_DIGITS = 200


def parse_integer(text: str) -> int | None:
    """Returns the whole number that the text answers with: any number of digits, negative too."""
    digits = _first(text, _INTEGER)
    return int(digits.replace("−", "-")) if digits and len(digits) <= MAX_DIGITS else None


def parse_boolean(text: str) -> bool | None:
    """Returns the truth value that the text answers with, in any case of letters."""
    word = _first(text, _BOOLEAN)
    return word.lower() == "true" if word else None


def parser_for(answer: int | bool) -> Parser:
    """Returns the parser for answers of this type."""
    return parse_boolean if isinstance(answer, bool) else parse_integer


def is_correct(predicted: int | bool | None, answer: int | bool | None) -> bool:
    """Whether there is a prediction and it is the answer, and of its type: 1 is not True."""
    return predicted is not None and type(predicted) is type(answer) and predicted == answer


def _first(text: str, value: re.Pattern[str]) -> str | None:
    """The value that the text answers with, as it stands there."""
    begins = value.match(text)
    if begins and _ALONE.match(text, begins.end()):
        return begins[1]
    for line in re.finditer(r".+", text):
        marks = list(_MARK.finditer(text, line.start(), line.end()))
        if marks:
            found = value.match(text, marks[-1].end())
            return found[1] if found else None
    return begins[1] if begins else None
