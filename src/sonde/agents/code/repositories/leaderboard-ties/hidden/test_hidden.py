"""Hidden tests."""

import unittest

from ranking import ranking


class HiddenTest(unittest.TestCase):
    def test_all_tied(self):
        self.assertEqual(ranking([("z", 1), ("a", 1), ("m", 1)]), [(1, "z"), (1, "a"), (1, "m")])

    def test_several_groups(self):
        results = [("a", 2), ("b", 3), ("c", 2), ("d", 3), ("e", 1)]
        self.assertEqual(ranking(results), [(1, "b"), (1, "d"), (3, "a"), (3, "c"), (5, "e")])

    def test_zero_and_less(self):
        self.assertEqual(ranking([("a", -1), ("b", 0), ("c", 0)]), [(1, "b"), (1, "c"), (3, "a")])
        self.assertEqual(ranking([]), [])
