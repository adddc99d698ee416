"""Hidden tests."""

import unittest

from bank.errors import LedgerError
from bank.ledger import Ledger


def refused(ledger, *transfer):
    """Whether the ledger refuses a transfer in the agreed way."""
    try:
        ledger.transfer(*transfer)
    except LedgerError:
        return True
    return False


class HiddenTest(unittest.TestCase):
    def setUp(self):
        self.ledger = Ledger()
        self.ledger.open("ann", 100)
        self.ledger.open("bob", 5)

    def state(self):
        return [self.ledger.balance("ann"), self.ledger.balance("bob"), self.ledger.history]

    def test_unknown_accounts(self):
        self.assertEqual([refused(self.ledger, "ann", "eve", 1), refused(self.ledger, "eve", "ann", 1)], [True, True])
        self.assertEqual(self.state(), [100, 5, []])

    def test_amounts(self):
        self.assertEqual([refused(self.ledger, "ann", "bob", amount) for amount in (0, -50, 101)], [True, True, True])
        self.assertEqual(self.state(), [100, 5, []])

    def test_good_ones(self):
        self.ledger.transfer("ann", "bob", 100)
        self.ledger.transfer("bob", "ann", 1)
        self.assertEqual(self.state(), [1, 104, [("ann", "bob", 100), ("bob", "ann", 1)]])
