"""Hidden tests."""

import unittest

from shop import Shop


class HiddenTest(unittest.TestCase):
    def test_apart(self):
        a, b = Shop("a"), Shop("b")
        a.receive("x", 3)
        b.receive("x", 1)
        a.sell("x")
        self.assertEqual([a.count("x"), b.count("x"), Shop("c").count("x")], [2, 1, 0])

    def test_refused(self):
        shop = Shop("d")
        with self.assertRaises(ValueError):
            shop.sell("y")
        self.assertEqual(shop.count("y"), 0)
        shop.receive("y", 2)
        shop.sell("y", 2)
        self.assertEqual(shop.count("y"), 0)
