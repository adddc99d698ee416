"""Search in sorted lists."""


def first_index(items, wanted):
    """The index of the first item equal to the wanted one, or -1."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(items) and items[low] == wanted else -1


def count(items, wanted):
    """How often the wanted one is there."""
    index = first_index(items, wanted)
    if index < 0:
        return 0
    number = 0
    while index + number < len(items) and items[index + number] == wanted:
        number += 1
    return number
