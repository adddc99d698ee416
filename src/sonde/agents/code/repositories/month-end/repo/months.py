"""Adding months to dates."""

import datetime


def add_months(day, months):
    """The same day some months later."""
    return datetime.date(day.year, day.month + months, day.day)


def due_dates(start, count):
    """The first `count` monthly due dates after the start."""
    dates = []
    day = start
    for _ in range(count):
        day = add_months(day, 1)
        dates.append(day)
    return dates
