"""Hidden tests."""

import datetime
import unittest

from months import add_months, due_dates


class HiddenTest(unittest.TestCase):
    def test_forward(self):
        self.assertEqual(add_months(datetime.date(2024, 1, 31), 1).isoformat(), "2024-02-29")
        self.assertEqual(add_months(datetime.date(2023, 12, 31), 6).isoformat(), "2024-06-30")
        self.assertEqual(add_months(datetime.date(2023, 6, 15), 30).isoformat(), "2025-12-15")

    def test_backward(self):
        self.assertEqual(add_months(datetime.date(2023, 1, 15), -1).isoformat(), "2022-12-15")
        self.assertEqual(add_months(datetime.date(2023, 3, 31), -13).isoformat(), "2022-02-28")

    def test_nothing(self):
        self.assertEqual(add_months(datetime.date(2023, 3, 31), 0).isoformat(), "2023-03-31")

    def test_due_dates(self):
        dates = due_dates(datetime.date(2023, 10, 31), 5)
        self.assertEqual([day.day for day in dates], [30, 31, 31, 29, 31])
        self.assertEqual(due_dates(datetime.date(2023, 10, 31), 0), [])
