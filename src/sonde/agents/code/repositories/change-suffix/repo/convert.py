"""Which file a conversion writes."""

from suffix import split_suffix, with_suffix


def target(path, suffix=".txt"):
    """Where the conversion of a file goes; a file that has the ending already gets a second one."""
    if split_suffix(path)[1] == suffix:
        return path + suffix
    return with_suffix(path, suffix)
