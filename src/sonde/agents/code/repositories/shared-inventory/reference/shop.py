"""A shop and what it has on its shelves."""


class OutOfStock(ValueError):
    """There are not enough to sell."""


class Shop:
    """Counts what comes in and goes out."""

    def __init__(self, name):
        self.name = name
        self.shelves = {}

    def receive(self, item, count=1):
        self.shelves[item] = self.shelves.get(item, 0) + count

    def sell(self, item, count=1):
        if self.count(item) < count:
            raise OutOfStock(f"{self.name} has not got {count} of {item}")
        self.shelves[item] -= count

    def count(self, item):
        return self.shelves.get(item, 0)
