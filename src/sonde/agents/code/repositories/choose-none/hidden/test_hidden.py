"""Hidden tests."""

import unittest

from combos import choose, menu


class HiddenTest(unittest.TestCase):
    def test_edges(self):
        self.assertEqual(choose([], 0), [()])
        self.assertEqual(choose([], 1), [])
        self.assertEqual(choose([1, 2], 3), [])
        self.assertEqual(choose([1, 2], 2), [(1, 2)])

    def test_how_many(self):
        self.assertEqual([len(choose(range(6), k)) for k in range(7)], [1, 6, 15, 20, 15, 6, 1])

    def test_menu(self):
        self.assertEqual(menu([]), [()])
        self.assertEqual(menu(["a", "b"]), [(), ("a",), ("b",), ("a", "b")])
