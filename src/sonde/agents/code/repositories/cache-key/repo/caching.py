"""A decorator that remembers results."""

import functools

_results = {}


def cached(function):
    """The function, called only once for the same arguments."""

    @functools.wraps(function)
    def remembered(*args, **kwargs):
        if args not in _results:
            _results[args] = function(*args, **kwargs)
        return _results[args]

    return remembered
