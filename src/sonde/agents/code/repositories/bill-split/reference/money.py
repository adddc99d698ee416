"""Amounts of money."""

import decimal


def to_cents(amount):
    """From a text such as "12.50" to cents."""
    return int(decimal.Decimal(amount) * 100)


def to_text(cents):
    """From cents to a text such as "12.50"."""
    return f"{cents / 100:.2f}"
