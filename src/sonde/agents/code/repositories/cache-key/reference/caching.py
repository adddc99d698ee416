"""A decorator that remembers results."""

import functools


def cached(function):
    """The function, called only once for the same arguments."""
    results = {}

    @functools.wraps(function)
    def remembered(*args, **kwargs):
        key = (args, tuple(sorted(kwargs.items())))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return remembered
