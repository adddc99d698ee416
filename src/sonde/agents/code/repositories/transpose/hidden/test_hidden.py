"""Hidden tests."""

import unittest

from table import column_sums, transpose


class HiddenTest(unittest.TestCase):
    def test_shapes(self):
        self.assertEqual(transpose([[1, 2, 3]]), [[1], [2], [3]])
        self.assertEqual(transpose([[1], [2], [3]]), [[1, 2, 3]])
        self.assertEqual(transpose([]), [])

    def test_twice(self):
        self.assertEqual(transpose(transpose([[1, 2], [3, 4], [5, 6]])), [[1, 2], [3, 4], [5, 6]])

    def test_sums(self):
        self.assertEqual(column_sums([[1, 2, 3], [10, 20, 30]]), [11, 22, 33])
