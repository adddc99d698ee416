"""Tests of the tables."""

import unittest

from table import column_sums, transpose


class TableTest(unittest.TestCase):
    def test_square(self):
        self.assertEqual(transpose([[1, 2], [3, 4]]), [[1, 3], [2, 4]])

    def test_two_by_three(self):
        self.assertEqual(transpose([[1, 2, 3], [4, 5, 6]]), [[1, 4], [2, 5], [3, 6]])

    def test_sums(self):
        self.assertEqual(column_sums([[1, 2], [3, 4], [5, 6]]), [9, 12])


if __name__ == "__main__":
    unittest.main()
