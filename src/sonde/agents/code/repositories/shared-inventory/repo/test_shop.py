"""Tests of the shop."""

import unittest

from shop import OutOfStock, Shop


class ShopTest(unittest.TestCase):
    def test_two_shops_are_apart(self):
        a, b = Shop("a"), Shop("b")
        a.receive("lamp", 10)
        self.assertEqual((a.count("lamp"), b.count("lamp")), (10, 0))

    def test_a_refused_sale_changes_nothing(self):
        shop = Shop("c")
        shop.receive("vase", 2)
        with self.assertRaises(OutOfStock):
            shop.sell("vase", 3)
        self.assertEqual(shop.count("vase"), 2)


if __name__ == "__main__":
    unittest.main()
