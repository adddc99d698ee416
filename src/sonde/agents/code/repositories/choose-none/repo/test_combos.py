"""Tests of the menu."""

import unittest

from combos import choose, menu


class ChooseTest(unittest.TestCase):
    def test_none(self):
        self.assertEqual(choose("ab", 0), [()])

    def test_two_of_three(self):
        self.assertEqual(choose("abc", 2), [("a", "b"), ("a", "c"), ("b", "c")])

    def test_menu(self):
        self.assertEqual(menu(["ham"]), [(), ("ham",)])


if __name__ == "__main__":
    unittest.main()
