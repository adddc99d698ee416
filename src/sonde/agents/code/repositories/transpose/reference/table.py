"""Tables: lists of rows of equal length."""


def transpose(rows):
    """The table with rows and columns exchanged."""
    return [list(column) for column in zip(*rows)]


def column_sums(rows):
    """The sum of each column."""
    return [sum(column) for column in transpose(rows)]
