"""Merging of nested settings."""


def merge(base, changes):
    """The base settings with the changes made."""
    base.update(changes)
    return base
