"""Figures of a grid follow their formulas; averages go by role, over the pairs that count."""

import json

import numpy as np
import pytest

from sonde.analysis.tracing import grids, metrics, pairs
from sonde.core import errors

Y, OTHER = 3, 9


def make_grid(answer, other, top, *, clean=(2.0, 0.0, Y), counterfactual=(0.0, 2.0, OTHER), positions=None):
    answer = np.array(answer, dtype=np.float64)
    return grids.Grid(
        positions=tuple(positions or range(answer.shape[1])),
        answer_logit=answer,
        counterfactual_logit=np.array(other, dtype=np.float64),
        top=np.array(top),
        clean=grids.Baseline(*clean),
        counterfactual=grids.Baseline(*counterfactual),
        counterfactual_answer=OTHER,
    )


def make_sweep(made, layers=(0, 1)):
    named = tuple(pairs.TracePair((1, 2, 3), (1, 5, 3), Y, OTHER, name=str(index)) for index in range(len(made)))
    return grids.Sweep("residual_stream", named, layers, list(made))


def test_the_figures_are_the_formulas():
    grid = make_grid([[2.0, 0.0], [1.0, 3.0]], [[0.0, 2.0], [1.0, -1.0]], [[Y, OTHER], [7, Y]])
    np.testing.assert_allclose(grid.recovery, [[0, 1], [0.5, -0.5]])
    np.testing.assert_allclose(grid.normalised_logit_difference, [[0, 1], [0.5, -0.5]])
    np.testing.assert_array_equal(grid.success, [[False, True], [False, False]])
    np.testing.assert_array_equal(grid.changed, [[False, True], [True, False]])


def test_a_changed_top_token_is_no_success_unless_it_is_the_counterfactual_answer():
    grid = make_grid([[0.0]], [[0.0]], [[7]])
    assert grid.changed.all()
    assert not grid.success.any()


def test_figures_without_a_scale_are_nan():
    grid = make_grid([[2.0]], [[-1.0]], [[Y]], counterfactual=(2.0, 0.0, Y))
    assert np.isnan(grid.recovery).all()
    assert np.isnan(grid.normalised_logit_difference).all()


def test_pairs_that_are_not_answered_right_both_ways_are_dropped_with_the_reason():
    cell = ([[0.0]], [[0.0]], [[Y]])
    made = [make_grid(*cell), make_grid(*cell, clean=(0.0, 0.0, 7)), make_grid(*cell, counterfactual=(0.0, 0.0, Y))]
    found = metrics.kept(make_sweep(made, layers=(0,)))
    assert found.indices == (0,)
    assert [pair.name for pair in found.sweep.pairs] == ["0"]
    assert found.dropped == {metrics.WRONG_CLEAN: 1, metrics.WRONG_COUNTERFACTUAL: 1}


def test_a_control_keeps_pairs_whose_answer_stays():
    cell = ([[0.0]], [[0.0]], [[Y]])
    made = [make_grid(*cell), make_grid(*cell, counterfactual=(2.0, 0.0, Y))]
    assert metrics.kept(make_sweep(made, layers=(0,)), control=True).indices == (1,)


def test_a_role_is_read_at_its_last_token_over_the_pairs_that_have_it():
    tops = [[[Y, OTHER, Y], [Y, Y, OTHER]]] * 3 + [[[OTHER, Y, Y], [Y, Y, Y]]]
    made = [make_grid(np.zeros((2, 3)), np.zeros((2, 3)), top) for top in tops]
    roles = [{"root": (0, 1), "final": (2,)}, {"root": (1,), "final": (2,)}, {"final": (2,)}, {"root": (1,)}]
    table = metrics.by_role(make_sweep(made), roles)
    assert table.roles == ("root", "final")
    np.testing.assert_allclose(table.estimate, [[2 / 3, 0], [0, 1]])
    np.testing.assert_array_equal(table.n, [[3, 3], [3, 3]])
    assert (table.low <= table.estimate).all()
    assert (table.high >= table.estimate).all()


def test_a_figure_without_pairs_or_with_one_has_no_interval():
    made = [make_grid(np.zeros((2, 2)), np.zeros((2, 2)), [[Y, OTHER]] * 2, positions=(0, 2))]
    table = metrics.by_role(make_sweep(made), [{"root": (1,), "final": (2,)}])
    np.testing.assert_array_equal(table.n, [[0, 0], [1, 1]])
    assert np.isnan(table.estimate[0]).all()
    assert (table.estimate[1] == 1).all()
    assert np.isnan(table.low).all()
    assert json.loads(json.dumps(table.to_json(), allow_nan=False))["estimate"][0] == [None, None]


def test_heads_have_an_axis_of_their_own():
    top = np.full((2, 3, 4), Y)
    top[1, 2, 3] = OTHER
    made = [make_grid(np.zeros(top.shape), np.zeros(top.shape), top) for _ in range(2)]
    sweep = grids.Sweep("attention_heads", make_sweep(made).pairs, (0, 1), made, (0, 1, 2, 3))
    table = metrics.by_role(sweep, [{"final": (2,)}] * 2)
    assert table.estimate.shape == (1, 2, 4)
    assert table.estimate.sum() == table.estimate[0, 1, 3] == 1
    told = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert (told["heads"], told["n"]) == ([0, 1, 2, 3], [[[2] * 4] * 2])
    assert told["estimate"] == table.estimate.tolist()


def test_a_recovery_that_is_0_or_1_in_every_pair_is_no_rate():
    made = [make_grid([[2.0, 0.0]] * 2, [[0.0, 2.0]] * 2, [[Y, OTHER]] * 2) for _ in range(10)]
    roles = [{"root": (0,), "final": (1,)}] * 10
    rate, mean = (metrics.by_role(make_sweep(made), roles, name) for name in ("success", "recovery"))
    np.testing.assert_array_equal(rate.estimate, mean.estimate)
    assert (rate.high[0] > 0.2).all()
    assert (rate.low[1] < 0.8).all()
    np.testing.assert_array_equal(mean.low, mean.estimate)
    np.testing.assert_array_equal(mean.high, mean.estimate)


def test_pairs_of_one_cluster_make_the_interval_wider():
    rng = np.random.default_rng(0)
    values = np.repeat(rng.normal(size=6), 4)
    made = [make_grid([[2.0 - 4 * value]], [[0.0]], [[Y]]) for value in values]
    sweep, roles = make_sweep(made, layers=(0,)), [{"final": (0,)}] * 24
    alone = metrics.by_role(sweep, roles, "recovery")
    together = metrics.by_role(sweep, roles, "recovery", clusters=[index // 4 for index in range(24)])
    assert together.estimate == pytest.approx(alone.estimate)
    assert (together.high - together.low) > 1.5 * (alone.high - alone.low)


def test_roles_that_do_not_fit_the_pairs_are_refused():
    sweep = make_sweep([make_grid([[0.0]], [[0.0]], [[Y]])], layers=(0,))
    with pytest.raises(errors.RequestError, match="roles of 2 pairs were given, and the sweep has 1"):
        metrics.by_role(sweep, [{}, {}])
    with pytest.raises(errors.RequestError, match="did you mean 'recovery'"):
        metrics.by_role(sweep, [{}], "recovry")
