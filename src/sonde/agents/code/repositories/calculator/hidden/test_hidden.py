"""Hidden tests."""

import unittest

from calculator import calculate


class HiddenTest(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual(calculate("120 + 3.25"), 123.25)
        self.assertEqual(calculate("007"), 7.0)

    def test_order(self):
        self.assertEqual(calculate("8 / 4 / 2"), 1.0)
        self.assertEqual(calculate("1 - 2 + 3 - 4"), -2.0)
        self.assertEqual(calculate("2 * 6 / 3 * 2"), 8.0)
        self.assertEqual(calculate("2 - (3 - 4) * 5"), 7.0)

    def test_negative(self):
        self.assertEqual(calculate("2 * -3"), -6.0)
        self.assertEqual(calculate("-(1 + 2) - -4"), 1.0)

    def test_nothing_to_compute(self):
        with self.assertRaises(ValueError):
            calculate("")

    def test_a_strange_letter(self):
        with self.assertRaises(ValueError):
            calculate("2 $ 3")

    def test_an_open_bracket(self):
        with self.assertRaises(ValueError):
            calculate("(2 + 3")

    def test_two_numbers_in_a_row(self):
        with self.assertRaises(ValueError):
            calculate("2 3")

    def test_an_operator_too_many(self):
        with self.assertRaises(ValueError):
            calculate("2 * / 3")
