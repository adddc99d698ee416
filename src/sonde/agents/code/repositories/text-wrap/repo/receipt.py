"""Receipts."""

from wrapping import wrap


def receipt(title, body, width=20):
    """A title, a rule, and the body."""
    return "\n".join([title.center(width).rstrip(), "-" * width, *wrap(body, width)])
