"""The list of members."""

import unicodedata


class Members:
    """Names that can be looked up without regard to case."""

    def __init__(self, names=()):
        self._names = {}
        for name in names:
            self.add(name)

    def add(self, name):
        self._names[self._key(name)] = name

    def find(self, name):
        """The name as it was entered, or None."""
        return self._names.get(self._key(name))

    def __len__(self):
        return len(self._names)

    @staticmethod
    def _key(name):
        folded = unicodedata.normalize("NFD", name.strip()).casefold()
        return unicodedata.normalize("NFC", folded)
