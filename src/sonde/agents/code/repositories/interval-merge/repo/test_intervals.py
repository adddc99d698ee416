"""Tests of the interval functions."""

import unittest

from intervals import free, merge


class MergeTest(unittest.TestCase):
    def test_overlapping_intervals_become_one(self):
        self.assertEqual(merge([(1, 4), (3, 6)]), [(1, 6)])

    def test_a_short_one_inside_a_long_one_changes_nothing(self):
        self.assertEqual(merge([(9, 17), (10, 11)]), [(9, 17)])

    def test_touching_intervals_become_one(self):
        self.assertEqual(merge([(8, 9), (9, 10)]), [(8, 10)])

    def test_free_time_lies_between(self):
        self.assertEqual(free([(9, 10), (12, 13)], 8, 18), [(8, 9), (10, 12), (13, 18)])


if __name__ == "__main__":
    unittest.main()
