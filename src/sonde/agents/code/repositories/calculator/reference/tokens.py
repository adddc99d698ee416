"""From the text of a sum to its tokens."""

import re


def tokens(text):
    """Numbers as floats, operators and brackets as text."""
    found = []
    for piece in re.findall(r"\d+\.?\d*|\.\d+|\S", text):
        if piece[0].isdigit() or len(piece) > 1:
            found.append(float(piece))
        elif piece in "+-*/()":
            found.append(piece)
        else:
            raise ValueError(f"cannot read {piece!r}")
    return found
