"""Tests of the build order."""

import unittest

from order import order


class OrderTest(unittest.TestCase):
    def test_a_chain(self):
        self.assertEqual(order({"c": [], "d": ["c"]}), ["c", "d"])

    def test_a_shared_need(self):
        self.assertEqual(order({"a": ["c"], "b": ["c"], "c": []}), ["c", "a", "b"])

    def test_a_need_that_is_only_mentioned(self):
        self.assertEqual(order({"a": ["z"]}), ["z", "a"])

    def test_a_circle(self):
        with self.assertRaises(ValueError):
            order({"a": ["b"], "b": ["a"]})


if __name__ == "__main__":
    unittest.main()
