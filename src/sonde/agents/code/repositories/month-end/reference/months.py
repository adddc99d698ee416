"""Adding months to dates."""

import calendar
import datetime


def add_months(day, months):
    """The same day some months later."""
    years, month = divmod(day.month - 1 + months, 12)
    year, month = day.year + years, month + 1
    return datetime.date(year, month, min(day.day, calendar.monthrange(year, month)[1]))


def due_dates(start, count):
    """The first `count` monthly due dates after the start."""
    return [add_months(start, month) for month in range(1, count + 1)]
