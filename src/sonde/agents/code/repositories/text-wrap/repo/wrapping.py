"""Wrapping of text for the receipt printer."""


def wrap(text, width):
    """The lines of the text, none longer than the width."""
    lines = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) >= width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return lines
