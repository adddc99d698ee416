"""Hidden tests."""

import unittest

from basket import add, total


class HiddenTest(unittest.TestCase):
    def test_new_baskets(self):
        self.assertEqual(total(add("a", 1)), 1)
        self.assertEqual(total(add("b", 2)), 2)
        self.assertEqual(add("c", 3), [("c", 3)])

    def test_an_empty_basket_that_is_given_is_used(self):
        mine = []
        add("a", 1, mine)
        add("b", 2, mine)
        self.assertEqual(mine, [("a", 1), ("b", 2)])
