"""Parts of a web address."""


def query_of(url):
    """What stands after the question mark."""
    return url.split("?")[-1]
