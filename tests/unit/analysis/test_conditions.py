"""Conditions over the same games: paired where both have a value, corrected over conditions within an outcome."""

import numpy as np
import pytest

from sonde.analysis import conditions, stats

GAMES = 10


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    base = rng.random(GAMES)
    return {
        "base": {"rate": base.tolist(), "rare": [1.0] + [None] * (GAMES - 1)},
        "better": {"rate": (base - 0.3 - 0.01 * rng.random(GAMES)).tolist(), "rare": [1.0] * GAMES},
        "same": {"rate": (base + 0.1 * rng.standard_normal(GAMES)).tolist(), "rare": [None] * GAMES},
    }


def test_means_are_over_the_games_that_have_a_value(table):
    found = conditions.means(table)
    assert found["base"]["rate"]["value"] == pytest.approx(np.mean(table["base"]["rate"]))
    assert found["base"]["rate"]["clusters"] == GAMES
    assert found["base"]["rare"] is None, "one game has no interval"
    assert found["better"]["rare"]["value"] == 1.0


def test_a_difference_is_paired_and_corrected_over_the_conditions_of_its_outcome(table):
    found = conditions.versus(table, "base")
    assert set(found) == {"better", "same"}
    better, same = found["better"]["rate"], found["same"]["rate"]
    assert better["effect"]["value"] == pytest.approx(-0.305, abs=0.005)
    assert better["effect"]["high"] - better["effect"]["low"] < 0.02, "games differ much more than that"
    assert better["p"] == pytest.approx(2 / 2**GAMES)
    adjusted = stats.holm([better["p"], same["p"]])
    assert [better["adjusted"], same["adjusted"]] == adjusted.tolist()
    assert better["adjusted"] <= 0.05 < same["adjusted"]


def test_an_outcome_without_two_pairs_says_nothing_and_does_not_weigh_on_the_others(table):
    found = conditions.versus(table, "base")
    assert found["better"]["rare"] is None
    assert found["same"]["rare"] is None
    alone = conditions.versus({name: table[name] for name in ("base", "better")}, "base")
    assert alone["better"]["rate"]["adjusted"] == alone["better"]["rate"]["p"]


def test_pairs_are_those_where_both_have_a_value():
    found = conditions.paired([1.0, None, 0.0, 0.5], [0.0, 1.0, None, 0.0])
    assert found["pairs"] == 2
    assert found["effect"]["value"] == pytest.approx(0.75)
    assert conditions.paired([1.0, None], [None, 1.0]) is None
    assert conditions.mean([None, None]) is None


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        conditions.paired([1.0, 0.0, 0.0], [1.0, 0.0])
