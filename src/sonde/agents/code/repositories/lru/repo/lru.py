"""A cache that forgets what was not used for longest."""


class Cache:
    """Holds at most `size` values."""

    def __init__(self, size):
        self.size = size
        self._values = {}

    def get(self, key, default=None):
        return self._values.get(key, default)

    def put(self, key, value):
        if len(self._values) >= self.size:
            oldest = next(iter(self._values))
            del self._values[oldest]
        self._values[key] = value

    def keys(self):
        """What is there, the next to be forgotten first."""
        return list(self._values)

    def __contains__(self, key):
        return key in self._values
