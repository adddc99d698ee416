"""From the text of a sum to its tokens."""


def tokens(text):
    """Numbers as floats, operators and brackets as text."""
    found = []
    for letter in text:
        if letter.isdigit():
            found.append(float(letter))
        elif letter in "+-*/()":
            found.append(letter)
    return found
