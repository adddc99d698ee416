"""Tests of the bill."""

import unittest

from money import to_cents
from split import split


class SplitTest(unittest.TestCase):
    def test_even(self):
        self.assertEqual(split("9.00", 3), ["3.00", "3.00", "3.00"])

    def test_a_cent_too_few(self):
        self.assertEqual(split("10.00", 3), ["3.34", "3.33", "3.33"])

    def test_a_cent_too_many(self):
        self.assertEqual(split("20.00", 3), ["6.67", "6.67", "6.66"])

    def test_cents(self):
        self.assertEqual(to_cents("1.15"), 115)


if __name__ == "__main__":
    unittest.main()
