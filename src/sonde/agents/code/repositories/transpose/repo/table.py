"""Tables: lists of rows of equal length."""


def transpose(rows):
    """The table with rows and columns exchanged."""
    height, width = len(rows), len(rows[0])
    result = [[None] * width] * width
    for i in range(height):
        for j in range(width):
            result[j][i] = rows[i][j]
    return result


def column_sums(rows):
    """The sum of each column."""
    return [sum(column) for column in transpose(rows)]
