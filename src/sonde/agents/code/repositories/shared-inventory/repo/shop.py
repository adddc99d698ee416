"""A shop and what it has on its shelves."""


class OutOfStock(ValueError):
    """There are not enough to sell."""


class Shop:
    """Counts what comes in and goes out."""

    shelves = {}

    def __init__(self, name):
        self.name = name

    def receive(self, item, count=1):
        self.shelves[item] = self.shelves.get(item, 0) + count

    def sell(self, item, count=1):
        self.shelves[item] = self.shelves.get(item, 0) - count
        if self.shelves[item] < 0:
            raise OutOfStock(f"{self.name} has not got {count} of {item}")

    def count(self, item):
        return self.shelves.get(item, 0)
