"""One account."""

from bank.errors import LedgerError


def _check(amount):
    """Refuses amounts that are not above zero."""
    if amount <= 0:
        raise LedgerError("an amount must be above zero")


class Account:
    """A balance in cents that never falls below zero."""

    def __init__(self, balance=0):
        self.balance = balance

    def deposit(self, amount):
        _check(amount)
        self.balance += amount

    def withdraw(self, amount):
        _check(amount)
        if amount > self.balance:
            raise LedgerError("there is not enough money")
        self.balance -= amount
