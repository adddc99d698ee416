"""File names and their endings."""


def split_suffix(path):
    """The path without its ending, and the ending with its dot."""
    if "." not in path:
        return path, ""
    stem, ending = path.rsplit(".", 1)
    return stem, "." + ending


def with_suffix(path, suffix):
    """The path with another ending."""
    return split_suffix(path)[0] + suffix
