"""Query strings of web addresses."""

from address import query_of


def parameters(url):
    """The parameters of an address: name to the list of its values."""
    found = {}
    for part in query_of(url).split("&"):
        name, value = part.split("=")
        found[name] = [value]
    return found
