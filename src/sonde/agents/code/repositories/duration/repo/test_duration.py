"""Tests of the durations."""

import unittest

from duration import show


class ShowTest(unittest.TestCase):
    def test_minutes(self):
        self.assertEqual(show(75), "1:15")
        self.assertEqual(show(65), "1:05")

    def test_hours(self):
        self.assertEqual(show(3600), "1:00:00")

    def test_rounding(self):
        self.assertEqual(show(59.9), "1:00")

    def test_negative(self):
        self.assertEqual(show(-65), "-1:05")


if __name__ == "__main__":
    unittest.main()
