"""Hidden tests."""

import unittest

from duration import show


class HiddenTest(unittest.TestCase):
    def test_many(self):
        self.assertEqual([show(x) for x in (0, 5, 59, 60, 599)], ["0:00", "0:05", "0:59", "1:00", "9:59"])

    def test_hours(self):
        self.assertEqual([show(x) for x in (3599, 3605, 36000, 86399)], ["59:59", "1:00:05", "10:00:00", "23:59:59"])

    def test_rounding(self):
        self.assertEqual([show(x) for x in (0.2, 59.9, 3599.7, -0.2)], ["0:00", "1:00", "1:00:00", "0:00"])

    def test_negative(self):
        self.assertEqual([show(x) for x in (-1, -60, -3661)], ["-0:01", "-1:00", "-1:01:01"])
