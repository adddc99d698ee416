"""Hidden tests."""

import unittest

from money import to_cents, to_text
from split import split


class HiddenTest(unittest.TestCase):
    def test_cents(self):
        self.assertEqual([to_cents(text) for text in ("0.29", "1.15", "4.35", "19.99", "7")], [29, 115, 435, 1999, 700])

    def test_text(self):
        self.assertEqual([to_text(cents) for cents in (0, 5, 115, 100000)], ["0.00", "0.05", "1.15", "1000.00"])

    def test_shares(self):
        self.assertEqual(split("0.05", 3), ["0.02", "0.02", "0.01"])
        self.assertEqual(split("100.00", 7), ["14.29", "14.29", "14.29", "14.29", "14.28", "14.28", "14.28"])
        self.assertEqual(sum(to_cents(share) for share in split("33.35", 12)), 3335)
