"""Hidden tests."""

import unittest

from intervals import free, merge


class HiddenTest(unittest.TestCase):
    def test_inside(self):
        self.assertEqual(merge([(0, 100), (5, 6), (7, 8)]), [(0, 100)])

    def test_touching_in_any_order(self):
        self.assertEqual(merge([(5, 7), (3, 5), (1, 3)]), [(1, 7)])

    def test_apart(self):
        self.assertEqual(merge([(5, 6), (1, 2)]), [(1, 2), (5, 6)])

    def test_nothing(self):
        self.assertEqual(merge([]), [])

    def test_free(self):
        self.assertEqual(free([(9, 17), (10, 11)], 8, 18), [(8, 9), (17, 18)])
        self.assertEqual(free([], 1, 2), [(1, 2)])
