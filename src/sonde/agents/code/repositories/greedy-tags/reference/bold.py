"""Finding of bold passages in simple markup."""

import re

BOLD = re.compile(r"<b(?:\s[^>]*)?>(.*?)</b>", re.DOTALL)


def bold(text):
    """The bold passages, in order."""
    return BOLD.findall(text)
