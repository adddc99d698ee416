"""Query strings of web addresses."""

import urllib.parse

from address import query_of


def parameters(url):
    """The parameters of an address: name to the list of its values."""
    found = {}
    for part in query_of(url).split("&"):
        if part:
            name, _, value = part.partition("=")
            found.setdefault(urllib.parse.unquote_plus(name), []).append(urllib.parse.unquote_plus(value))
    return found
