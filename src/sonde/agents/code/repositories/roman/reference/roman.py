"""Roman numerals."""

VALUES = {"M": 1000, "D": 500, "C": 100, "L": 50, "X": 10, "V": 5, "I": 1}


def read(text):
    """The number that a numeral stands for."""
    values = [VALUES[letter] for letter in text.upper()]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following))


def write(number):
    """The numeral of a number."""
    text = ""
    pairs = {"CM": 900, "CD": 400, "XC": 90, "XL": 40, "IX": 9, "IV": 4}
    for letter, value in sorted((VALUES | pairs).items(), key=lambda item: -item[1]):
        count, number = divmod(number, value)
        text += letter * count
    return text
