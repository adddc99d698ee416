"""Tests of the cached prices."""

import unittest

from prices import price, stock


class PricesTest(unittest.TestCase):
    def test_discount(self):
        self.assertEqual(price("book"), 1000)
        self.assertEqual(price("book", discount=10), 900)

    def test_two_functions(self):
        self.assertEqual(price("pen"), 200)
        self.assertEqual(stock("pen"), 40)


if __name__ == "__main__":
    unittest.main()
