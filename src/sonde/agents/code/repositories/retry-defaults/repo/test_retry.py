"""Tests of the waits."""

import unittest

from retry import waits


class WaitsTest(unittest.TestCase):
    def test_everything_given(self):
        self.assertEqual(waits(attempts=4, first=2.0, factor=2.0, limit=5.0), [2.0, 4.0, 5.0])

    def test_nothing_given(self):
        self.assertEqual(waits(), [1.0, 2.0])

    def test_the_limit_holds_without_being_given(self):
        self.assertEqual(waits(attempts=6), [1.0, 2.0, 4.0, 8.0, 10.0])


if __name__ == "__main__":
    unittest.main()
