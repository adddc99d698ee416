"""Hidden tests."""

import unittest

from report import report


class HiddenTest(unittest.TestCase):
    def test_streams(self):
        self.assertEqual(report(iter([4, 4])), {"count": 2, "mean": 4.0, "spread": 0})
        self.assertEqual(report(map(float, "123")), {"count": 3, "mean": 2.0, "spread": 2.0})

    def test_nothing(self):
        self.assertEqual(report([]), {"count": 0, "mean": None, "spread": None})
        self.assertEqual(report(iter(())), {"count": 0, "mean": None, "spread": None})

    def test_a_list_is_left_alone(self):
        readings = [3, 1]
        report(readings)
        self.assertEqual(readings, [3, 1])
