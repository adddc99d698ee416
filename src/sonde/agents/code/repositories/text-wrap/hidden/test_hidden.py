"""Hidden tests."""

import unittest

from receipt import receipt
from wrapping import wrap


class HiddenTest(unittest.TestCase):
    def test_lines(self):
        self.assertEqual(wrap("the quick brown fox", 10), ["the quick", "brown fox"])
        self.assertEqual(wrap("the quick brown fox", 9), ["the quick", "brown fox"])
        self.assertEqual(wrap("the quick brown fox", 8), ["the", "quick", "brown", "fox"])

    def test_empty(self):
        self.assertEqual(wrap("", 5), [])
        self.assertEqual(wrap("  \n ", 5), [])

    def test_long_words(self):
        self.assertEqual(wrap("abcdefghij", 5), ["abcde", "fghij"])
        self.assertEqual(wrap("abcdefg hi", 5), ["abcde", "fg hi"])

    def test_receipt(self):
        self.assertEqual(receipt("Shop", "thank you and goodbye", 10), "   Shop\n----------\nthank you\nand\ngoodbye")
