"""Finding of bold passages in simple markup."""

import re

BOLD = re.compile(r"<b.*>(.*)</b>")


def bold(text):
    """The bold passages, in order."""
    return BOLD.findall(text)
