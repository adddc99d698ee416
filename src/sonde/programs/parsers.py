"""What did the model answer? From its text to a value, or None if it gave none.

If the text says `Answer:`, what follows its last mention counts; else the first value in the text. A parser never
guesses: a number with a fraction, or inside a word, is no whole number. Costs nothing.
"""

import re
from collections.abc import Callable

Parser = Callable[[str], int | bool | None]
_MARK = re.compile(r"\banswer\b(?:\s+is)?\s*:?", re.IGNORECASE)
_INTEGER = re.compile(r"(?<![\w.])[-−]?\d+(?!\w|[.,]\d)", re.ASCII)
_BOOLEAN = re.compile(r"\b(?:true|false)\b", re.IGNORECASE)
_BEGIN = re.compile(r"\s*([-−]?\d+)(?!\w|[.,]\d)", re.ASCII)
MAX_DIGITS = 200


def parse_integer(text: str) -> int | None:
    """Returns the whole number that the text answers with: any number of digits, negative too."""
    found = _INTEGER.search(_marked(text))
    return _whole(found[0]) if found else None


def parse_boolean(text: str) -> bool | None:
    """Returns the truth value that the text answers with, in any case of letters."""
    found = _BOOLEAN.search(_marked(text))
    return found[0].lower() == "true" if found else None


def parse_binding(text: str) -> int | None:
    """Returns the whole number with which the text begins: a continuation of `#x: `, with nothing in between."""
    found = _BEGIN.match(text)
    return _whole(found[1]) if found else None


def parser_for(answer: int | bool) -> Parser:
    """Returns the parser for answers of this type."""
    return parse_boolean if isinstance(answer, bool) else parse_integer


def is_correct(predicted: int | bool | None, answer: int | bool | None) -> bool:
    """Whether there is a prediction and it is the answer, and of its type: 1 is not True."""
    return predicted is not None and type(predicted) is type(answer) and predicted == answer


def _marked(text: str) -> str:
    marks = list(_MARK.finditer(text))
    return text[marks[-1].end() :] if marks else text


def _whole(digits: str) -> int | None:
    return int(digits.replace("−", "-")) if len(digits) <= MAX_DIGITS else None
