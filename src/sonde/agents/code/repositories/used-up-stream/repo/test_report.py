"""Tests of the report."""

import unittest

from report import report


class ReportTest(unittest.TestCase):
    def test_a_list(self):
        self.assertEqual(report([1, 2, 6]), {"count": 3, "mean": 3.0, "spread": 5})

    def test_a_stream(self):
        self.assertEqual(report(x for x in (1, 2, 6)), {"count": 3, "mean": 3.0, "spread": 5})


if __name__ == "__main__":
    unittest.main()
