"""File names and their endings."""

import os


def split_suffix(path):
    """The path without its ending, and the ending with its dot."""
    return os.path.splitext(path)


def with_suffix(path, suffix):
    """The path with another ending."""
    return split_suffix(path)[0] + suffix
