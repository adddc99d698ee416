"""Waits between the attempts of something that may fail."""

from settings import setting


def waits(attempts=None, first=None, factor=3.0, limit=None):
    """The seconds to wait before each new attempt: one fewer than there are attempts."""
    attempts = setting("attempts", attempts)
    wait = setting("first", first)
    result = []
    for _ in range(attempts - 1):
        result.append(wait if limit is None else min(wait, limit))
        wait *= factor
    return result
