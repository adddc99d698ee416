"""A calculator for + - * / and brackets."""

from tokens import tokens


def calculate(text):
    """The value of the text."""
    rest = tokens(text)
    return _sum(rest)


def _sum(rest):
    value = _product(rest)
    if rest and rest[0] in ("+", "-"):
        if rest.pop(0) == "+":
            return value + _sum(rest)
        return value - _sum(rest)
    return value


def _product(rest):
    value = _atom(rest)
    if rest and rest[0] in ("*", "/"):
        if rest.pop(0) == "*":
            return value * _product(rest)
        return value / _product(rest)
    return value


def _atom(rest):
    token = rest.pop(0)
    if token == "(":
        value = _sum(rest)
        rest.pop(0)
        return value
    return token
