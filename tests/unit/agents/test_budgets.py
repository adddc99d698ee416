"""A budget stops hard: what could overshoot is refused before it is sent, also with many senders at once."""

import asyncio
import concurrent.futures
import threading

import pytest

from sonde.agents import budgets
from sonde.core import errors


def test_what_is_booked_is_spent_and_the_rest_of_the_hold_is_free_again():
    budget = budgets.Budget(cost=1.0, tokens=1000, requests=5)
    with budget.hold(tokens=600, cost=0.5) as hold:
        assert budget.held == budgets.Amount(0.5, 600, 1)
        assert budget.spent == budgets.Amount()
        hold.book(tokens=100, cost=0.25)
    assert budget.held == budgets.Amount()
    assert budget.spent == budgets.Amount(0.25, 100, 1)


def test_a_request_given_back_counts_as_a_request_and_no_more():
    budget = budgets.Budget(tokens=10)
    with budget.hold(tokens=10) as hold:
        hold.give_back()
    assert budget.spent == budgets.Amount(0.0, 0, 1)


def test_a_request_of_unknown_outcome_is_booked_in_full():
    budget = budgets.Budget(tokens=10, cost=1.0)
    with pytest.raises(OSError, match="lost"), budget.hold(tokens=7, cost=0.5):
        raise OSError("lost")
    assert budget.spent == budgets.Amount(0.5, 7, 1)


def test_only_the_first_booking_counts():
    budget = budgets.Budget()
    with budget.hold(tokens=9) as hold:
        hold.book(tokens=3)
        hold.book(tokens=5)
    assert budget.spent.tokens == 3


@pytest.mark.parametrize(
    ("limits", "first", "second"),
    [
        ({"tokens": 10}, {"tokens": 8}, {"tokens": 3}),
        ({"cost": 1.0}, {"tokens": 1, "cost": 0.8}, {"tokens": 1, "cost": 0.3}),
        ({"requests": 1}, {"tokens": 1}, {"tokens": 1}),
    ],
)
def test_what_could_overshoot_while_others_are_under_way_is_refused(limits, first, second):
    budget = budgets.Budget(**limits)
    with budget.hold(**first):
        with pytest.raises(errors.BudgetError, match=r"could overshoot .* held by 1 requests under way.*fewer at once"):
            budget.hold(**second)
        assert budget.held.requests == 1


def test_a_request_that_fits_exactly_is_let_through_and_the_next_is_told_that_nothing_is_left():
    budget = budgets.Budget(tokens=10, cost=0.3)
    for _ in range(3):  # three times a tenth is a little more than 0.3 in floating point
        with budget.hold(tokens=3, cost=0.1) as hold:
            hold.book(tokens=3, cost=0.1)
    with pytest.raises(errors.BudgetError, match=r"used up: 0.3 of 0.3 cost spent; raise it"):
        budget.hold(tokens=1, cost=0.1)
    with pytest.raises(errors.BudgetError, match="could overshoot the budget: 9 of 10 tokens spent, it may take 2"):
        budget.hold(tokens=2)


def test_a_budget_of_nothing_lets_nothing_through():
    with pytest.raises(errors.BudgetError, match="used up"):
        budgets.Budget(requests=0).hold(tokens=1)


def test_no_limit_only_counts():
    budget = budgets.Budget()
    for _ in range(100):
        with budget.hold(tokens=10**9, cost=1e6):
            pass
    assert budget.spent == budgets.Amount(1e8, 10**11, 100)
    assert repr(budget) == "Budget(no limit)"


def test_threads_cannot_overshoot_together():
    budget = budgets.Budget(tokens=1000)
    start = threading.Barrier(8)
    most = []

    def spend(_):
        start.wait()
        refused = 0
        for _ in range(200):
            try:
                with budget.hold(tokens=10) as hold:
                    most.append(budget.held.tokens)
                    hold.book(tokens=7)
            except errors.BudgetError:
                refused += 1
        return refused

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        refused = sum(pool.map(spend, range(8)))
    assert budget.spent.tokens <= 1000
    assert budget.spent.tokens > 1000 - 10 * 8
    assert budget.spent.tokens == 7 * (8 * 200 - refused)
    assert budget.held == budgets.Amount()
    assert max(most) <= 80


@pytest.mark.parametrize("limits", [{"cost": -1.0}, {"tokens": -1}, {"requests": -2}, {"cost": float("nan")}])
def test_a_limit_that_is_none_is_refused(limits):
    with pytest.raises(ValueError, match="must be a number from 0"):
        budgets.Budget(**limits)


def test_a_budget_shows_what_is_spent_of_its_limits():
    budget = budgets.Budget(cost=2.0, requests=3)
    with budget.hold(tokens=1, cost=0.5):
        pass
    assert repr(budget) == "Budget(0.5 of 2 cost, 1 of 3 requests)"


async def test_a_request_waits_while_only_others_under_way_stand_in_its_way():
    budget = budgets.Budget(tokens=10)
    first = budget.hold(tokens=8)
    waiting = asyncio.create_task(budget.wait_and_hold(tokens=6))
    await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.to_thread(first.book, tokens=4)  # from another thread, too
    assert (await asyncio.wait_for(waiting, 10)).amount.tokens == 6
    assert budget.held.tokens == 6


async def test_a_request_stops_waiting_when_what_is_booked_leaves_no_room():
    budget = budgets.Budget(tokens=10)
    first = budget.hold(tokens=8)
    waiting = asyncio.create_task(budget.wait_and_hold(tokens=6))
    await asyncio.sleep(0)
    first.book(tokens=5)
    with pytest.raises(errors.BudgetError, match="5 of 10 tokens spent, it may take 6"):
        await asyncio.wait_for(waiting, 10)


async def test_a_request_too_large_for_the_whole_budget_does_not_wait():
    budget = budgets.Budget(tokens=10)
    budget.hold(tokens=8)
    with pytest.raises(errors.BudgetError, match="it may take 11"):
        await budget.wait_and_hold(tokens=11)


async def test_one_that_gave_up_waiting_does_no_harm():
    budget = budgets.Budget(tokens=10)
    first = budget.hold(tokens=8)
    waiting = asyncio.create_task(budget.wait_and_hold(tokens=6))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first.give_back()
    assert budget.held == budgets.Amount()
    assert (await budget.wait_and_hold(tokens=10)).amount.tokens == 10
