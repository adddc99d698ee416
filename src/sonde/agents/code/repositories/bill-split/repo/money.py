"""Amounts of money."""


def to_cents(amount):
    """From a text such as "12.50" to cents."""
    return int(float(amount) * 100)


def to_text(cents):
    """From cents to a text such as "12.50"."""
    return f"{cents / 100:.2f}"
