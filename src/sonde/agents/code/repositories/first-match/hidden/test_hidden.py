"""Hidden tests."""

import unittest

from search import count, first_index


class HiddenTest(unittest.TestCase):
    def test_small(self):
        self.assertEqual(first_index([], 1), -1)
        self.assertEqual(first_index([1], 1), 0)
        self.assertEqual(first_index([1], 2), -1)
        self.assertEqual(first_index([1], 0), -1)

    def test_repeated(self):
        self.assertEqual(first_index([7] * 9, 7), 0)
        self.assertEqual([first_index([1, 1, 2, 2, 2, 5, 5], wanted) for wanted in (1, 2, 5, 3)], [0, 2, 5, -1])

    def test_count(self):
        self.assertEqual([count([1, 1, 2, 2, 2, 5], wanted) for wanted in (0, 1, 2, 5, 9)], [0, 2, 3, 1, 0])
