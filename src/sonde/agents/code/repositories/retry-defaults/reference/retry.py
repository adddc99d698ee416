"""Waits between the attempts of something that may fail."""

from settings import setting


def waits(attempts=None, first=None, factor=None, limit=None):
    """The seconds to wait before each new attempt: one fewer than there are attempts."""
    attempts = setting("attempts", attempts)
    wait = setting("first", first)
    factor = setting("factor", factor)
    limit = setting("limit", limit)
    result = []
    for _ in range(attempts - 1):
        result.append(min(wait, limit))
        wait *= factor
    return result
