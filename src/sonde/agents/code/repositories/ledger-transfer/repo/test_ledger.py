"""Tests of the ledger."""

import unittest

from bank.errors import LedgerError
from bank.ledger import Ledger


class LedgerTest(unittest.TestCase):
    def setUp(self):
        self.ledger = Ledger()
        self.ledger.open("ann", 100)
        self.ledger.open("bob")

    def test_a_transfer(self):
        self.ledger.transfer("ann", "bob", 30)
        self.assertEqual((self.ledger.balance("ann"), self.ledger.balance("bob")), (70, 30))

    def test_an_unknown_receiver(self):
        with self.assertRaises(LedgerError):
            self.ledger.transfer("ann", "eve", 30)
        self.assertEqual(self.ledger.balance("ann"), 100)

    def test_a_refused_transfer_is_not_in_the_history(self):
        with self.assertRaises(LedgerError):
            self.ledger.transfer("ann", "bob", 300)
        self.assertEqual(self.ledger.history, [])


if __name__ == "__main__":
    unittest.main()
