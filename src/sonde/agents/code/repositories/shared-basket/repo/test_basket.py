"""Tests of the baskets."""

import unittest

from basket import add, total


class BasketTest(unittest.TestCase):
    def test_a_given_basket_grows(self):
        mine = [("apple", 40)]
        add("pear", 50, mine)
        self.assertEqual(total(mine), 90)

    def test_two_customers_have_two_baskets(self):
        add("apple", 40)
        self.assertEqual(add("pear", 50), [("pear", 50)])


if __name__ == "__main__":
    unittest.main()
