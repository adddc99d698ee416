"""Ways to choose some of several things."""


def choose(items, k):
    """All ways to choose k of the items, each a tuple in the order of the items."""
    items = list(items)
    if k == 0:
        return [()]
    if not items:
        return []
    first, rest = items[0], items[1:]
    with_first = [(first, *others) for others in choose(rest, k - 1)]
    return with_first + choose(rest, k)


def menu(toppings):
    """Every pizza there is, from the plainest to the fullest."""
    return [pizza for k in range(len(toppings) + 1) for pizza in choose(toppings, k)]
