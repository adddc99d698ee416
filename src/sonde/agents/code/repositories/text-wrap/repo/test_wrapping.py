"""Tests of the wrapping."""

import unittest

from wrapping import wrap


class WrapTest(unittest.TestCase):
    def test_one_line(self):
        self.assertEqual(wrap("two words", 20), ["two words"])

    def test_exactly_as_wide(self):
        self.assertEqual(wrap("aaa bbb ccc", 7), ["aaa bbb", "ccc"])

    def test_a_long_word(self):
        self.assertEqual(wrap("a bbbbbbbb", 3), ["a", "bbb", "bbb", "bb"])


if __name__ == "__main__":
    unittest.main()
