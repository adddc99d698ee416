"""Tests of the date arithmetic."""

import datetime
import unittest

from months import add_months, due_dates


class MonthsTest(unittest.TestCase):
    def test_a_plain_month(self):
        self.assertEqual(add_months(datetime.date(2023, 3, 5), 2), datetime.date(2023, 5, 5))

    def test_the_end_of_january(self):
        self.assertEqual(add_months(datetime.date(2023, 1, 31), 1), datetime.date(2023, 2, 28))

    def test_over_the_new_year(self):
        self.assertEqual(add_months(datetime.date(2023, 11, 30), 3), datetime.date(2024, 2, 29))

    def test_due_dates_return_to_the_end_of_the_month(self):
        self.assertEqual(
            due_dates(datetime.date(2023, 1, 31), 2), [datetime.date(2023, 2, 28), datetime.date(2023, 3, 31)]
        )


if __name__ == "__main__":
    unittest.main()
