"""Tests of the ranking."""

import unittest

from ranking import ranking


class RankingTest(unittest.TestCase):
    def test_best_first(self):
        self.assertEqual(ranking([("a", 1), ("b", 3), ("c", 2)]), [(1, "b"), (2, "c"), (3, "a")])

    def test_ties_keep_their_order_and_share_a_rank(self):
        self.assertEqual(ranking([("a", 5), ("b", 9), ("c", 5), ("d", 1)]), [(1, "b"), (2, "a"), (2, "c"), (4, "d")])


if __name__ == "__main__":
    unittest.main()
