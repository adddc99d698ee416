"""Tests of the calculator."""

import unittest

from calculator import calculate


class CalculatorTest(unittest.TestCase):
    def test_brackets_and_precedence(self):
        self.assertEqual(calculate("2 * (3 + 4)"), 14.0)
        self.assertEqual(calculate("2 + 3 * 4"), 14.0)

    def test_long_numbers(self):
        self.assertEqual(calculate("12 + 1.5"), 13.5)

    def test_from_left_to_right(self):
        self.assertEqual(calculate("10 - 2 - 3"), 5.0)

    def test_negative_numbers(self):
        self.assertEqual(calculate("-3 + 5"), 2.0)

    def test_nonsense(self):
        with self.assertRaises(ValueError):
            calculate("2 +")


if __name__ == "__main__":
    unittest.main()
