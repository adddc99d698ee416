"""One account."""

from bank.errors import LedgerError


class Account:
    """A balance in cents that never falls below zero."""

    def __init__(self, balance=0):
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise LedgerError("there is not enough money")
        self.balance -= amount
