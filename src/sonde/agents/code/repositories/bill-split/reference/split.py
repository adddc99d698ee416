"""Splitting a bill."""

from money import to_cents, to_text


def split(amount, people):
    """Each person's share of the amount, as texts."""
    share, extra = divmod(to_cents(amount), people)
    return [to_text(share + (person < extra)) for person in range(people)]
