"""Accounts and the bookings between them."""

from bank.account import Account
from bank.errors import LedgerError


class Ledger:
    """Moves money and keeps the history."""

    def __init__(self):
        self.accounts = {}
        self.history = []

    def open(self, name, balance=0):
        self.accounts[name] = Account(balance)

    def balance(self, name):
        return self.accounts[name].balance

    def transfer(self, sender, receiver, amount):
        for name in (sender, receiver):
            if name not in self.accounts:
                raise LedgerError(f"there is no account {name}")
        self.accounts[sender].withdraw(amount)
        self.accounts[receiver].deposit(amount)
        self.history.append((sender, receiver, amount))
