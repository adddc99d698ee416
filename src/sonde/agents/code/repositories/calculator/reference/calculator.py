"""A calculator for + - * / and brackets."""

from tokens import tokens


def calculate(text):
    """The value of the text."""
    rest = tokens(text)
    value = _sum(rest)
    if rest:
        raise ValueError(f"did not expect {rest[0]!r}")
    return value


def _sum(rest):
    value = _product(rest)
    while rest and rest[0] in ("+", "-"):
        if rest.pop(0) == "+":
            value += _product(rest)
        else:
            value -= _product(rest)
    return value


def _product(rest):
    value = _atom(rest)
    while rest and rest[0] in ("*", "/"):
        if rest.pop(0) == "*":
            value *= _atom(rest)
        else:
            value /= _atom(rest)
    return value


def _atom(rest):
    if not rest:
        raise ValueError("the text ends too early")
    token = rest.pop(0)
    if token == "-":
        return -_atom(rest)
    if token == "(":
        value = _sum(rest)
        if not rest or rest.pop(0) != ")":
            raise ValueError("a bracket is not closed")
        return value
    if isinstance(token, str):
        raise ValueError(f"did not expect {token!r}")
    return token
