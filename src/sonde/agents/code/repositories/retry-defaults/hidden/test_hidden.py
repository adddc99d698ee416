"""Hidden tests."""

import unittest

from retry import waits


class HiddenTest(unittest.TestCase):
    def test_defaults(self):
        self.assertEqual(waits(), [1.0, 2.0])
        self.assertEqual(waits(attempts=7), [1.0, 2.0, 4.0, 8.0, 10.0, 10.0])

    def test_zero_is_a_setting(self):
        self.assertEqual(waits(attempts=3, limit=0), [0, 0])
        self.assertEqual(waits(attempts=3, first=0), [0, 0])

    def test_given(self):
        self.assertEqual(waits(attempts=3, first=1.0, factor=5.0, limit=100.0), [1.0, 5.0])
        self.assertEqual(waits(attempts=1), [])
