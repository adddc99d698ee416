"""Hidden tests."""

import unittest

from order import order


class HiddenTest(unittest.TestCase):
    def test_a_diamond(self):
        self.assertEqual(order({"a": ["b", "c"], "b": ["d"], "c": ["d"]}), ["d", "b", "c", "a"])

    def test_small(self):
        self.assertEqual(order({}), [])
        self.assertEqual(order({"a": []}), ["a"])

    def test_a_package_that_needs_itself(self):
        with self.assertRaises(ValueError):
            order({"a": ["a"]})

    def test_a_long_circle(self):
        with self.assertRaises(ValueError):
            order({"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b"]})
