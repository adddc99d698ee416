"""Shopping baskets: lists of (name, price in cents)."""


def add(name, price, basket=None):
    """The basket with one more item; a new basket if none is given."""
    basket = [] if basket is None else basket
    basket.append((name, price))
    return basket


def total(basket):
    """What the basket costs, in cents."""
    return sum(price for _, price in basket)
