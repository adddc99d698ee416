"""Roman numerals."""

VALUES = {"M": 1000, "D": 500, "C": 100, "L": 50, "X": 10, "V": 5, "I": 1}


def read(text):
    """The number that a numeral stands for."""
    return sum(VALUES[letter] for letter in text)


def write(number):
    """The numeral of a number."""
    text = ""
    for letter, value in VALUES.items():
        count, number = divmod(number, value)
        text += letter * count
    return text
