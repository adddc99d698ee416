"""What the statistics promise, against scikit-learn, brute force and hand-made cases."""

import json
import math

import numpy as np
import pytest
from sklearn import metrics

from sonde.analysis import jackknife, stats
from sonde.core import errors


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    episodes = np.repeat(np.arange(12), rng.integers(2, 9, size=12))
    labels = rng.random(len(episodes)) < 0.4
    return labels, np.round(rng.normal(size=len(episodes)) + labels, 1), episodes


def without_each(statistic, clusters):
    return np.array([statistic(np.flatnonzero(clusters != one)) for one in np.unique(clusters)])


def test_auroc_equals_scikit_learn_with_ties_and_with_each_episode_left_out(rows):
    labels, scores, episodes = rows
    found = jackknife.of_auroc(labels, scores, episodes)
    assert found.value == pytest.approx(metrics.roc_auc_score(labels, scores))
    expected = without_each(lambda kept: metrics.roc_auc_score(labels[kept], scores[kept]), episodes)
    np.testing.assert_allclose(found.without, expected)


def test_stratified_auroc_compares_within_strata_only(rows):
    labels, scores, episodes = rows
    strata = episodes % 3
    moved = scores + 100 * strata
    plain, shifted = (jackknife.of_auroc(labels, one, episodes, strata) for one in (scores, moved))
    assert shifted.value == pytest.approx(plain.value)
    pairs = [(labels[strata == one].sum() * (~labels[strata == one]).sum()) for one in range(3)]
    parts = [metrics.roc_auc_score(labels[strata == one], scores[strata == one]) for one in range(3)]
    assert plain.value == pytest.approx(np.average(parts, weights=pairs))


def test_balanced_accuracy_equals_scikit_learn_with_each_episode_left_out(rows):
    labels, scores, episodes = rows
    found = jackknife.of_balanced_accuracy(labels, scores > 0.5, episodes)
    assert found.value == pytest.approx(metrics.balanced_accuracy_score(labels, scores > 0.5))
    expected = without_each(lambda kept: metrics.balanced_accuracy_score(labels[kept], scores[kept] > 0.5), episodes)
    np.testing.assert_allclose(found.without, expected)


def test_a_mean_of_independent_rows_has_students_interval():
    values = np.random.default_rng(1).normal(size=30)
    found = jackknife.of_mean(values, np.arange(30))
    assert found.error == pytest.approx(values.std(ddof=1) / math.sqrt(30))
    assert stats.mean_interval(values, np.arange(30)).value == pytest.approx(values.mean())


def test_repeating_every_row_of_an_episode_does_not_narrow_the_interval():
    rng = np.random.default_rng(2)
    values = rng.normal(size=20)
    once = stats.mean_interval(values, np.arange(20))
    often = stats.mean_interval(np.repeat(values, 7), np.repeat(np.arange(20), 7))
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert (once.n, often.n, often.clusters) == (20, 140, 20)


@pytest.mark.parametrize("value", [False, True])
def test_a_rate_never_or_always_seen_still_has_a_width(value):
    found = stats.mean_interval(np.full(40, value), np.repeat(np.arange(10), 4))
    assert found.value == float(value)
    assert found.high - found.low == pytest.approx(1 - 0.025 ** (1 / 10))


def exact(hits, draws):
    from scipy import stats as scipy_stats

    return scipy_stats.binomtest(hits, draws).proportion_ci(0.95)


@pytest.mark.parametrize("turned", [False, True])
def test_one_hit_in_a_thousand_rows_is_no_surer_than_one_draw_per_cluster_and_no_less(turned):
    values = np.arange(1000) == 3
    found = stats.mean_interval(values ^ turned, np.repeat(np.arange(200), 5))
    low, high = (1 - found.high, 1 - found.low) if turned else (found.low, found.high)
    assert low == pytest.approx(exact(1, 1000).low, rel=0.01)  # some cluster was hit, whatever its rows have in common
    assert exact(0, 200).high < high < exact(1, 200).high


@pytest.mark.parametrize("clusters", [20, 60, 200])
def test_no_hit_at_all_is_bounded_by_twice_one_draw_per_cluster_at_most(clusters):
    owners = np.repeat(np.arange(clusters), np.random.default_rng(clusters).integers(5, 51, clusters))
    found = stats.mean_interval(np.zeros(len(owners)), owners)
    assert found.low == 0 < found.high <= 2 * exact(0, clusters).high


def test_hits_of_one_large_cluster_are_as_unsure_as_clusters_of_unequal_size_are_few():
    owners = np.repeat(np.arange(20), [400] + [5] * 19)
    few = stats.mean_interval(owners == 1, owners)
    assert few.high > exact(1, 20).high / 2  # hardly more than one cluster's worth
    many = stats.mean_interval(owners == 0, owners)
    assert many.low < 0.05 < many.high


def test_an_interval_holds_its_value_and_leaves_zero_out_as_soon_as_something_was_hit():
    owners = np.repeat(np.arange(40), 10)
    for order in (np.arange(400), np.random.default_rng(0).permutation(400), np.arange(400).reshape(40, 10).T.ravel()):
        values, ends = np.zeros(400), []
        for row in order[:60]:
            values[row] = 1
            ends.append(stats.mean_interval(values, owners))
        assert all(one.low <= one.value <= one.high for one in ends)
        assert all(one.low > 0 for one in ends)


def test_a_rate_that_is_the_same_in_every_cluster_is_no_surer_than_its_rows():
    found = stats.mean_interval(np.tile([0.0, 0, 0, 0, 1], 30), np.repeat(np.arange(30), 5))
    assert found.low <= exact(30, 150).low + 0.05
    assert found.high == pytest.approx(exact(30, 150).high)


def test_the_p_value_of_a_rare_rate_is_below_five_percent_exactly_when_the_interval_leaves_the_null_out():
    rng = np.random.default_rng(7)
    owners = np.repeat(np.arange(30), 10)
    for rate in (0.003, 0.02, 0.1, 0.5, 0.98):
        values = rng.random(300) < rng.beta(rate, 1 - rate, size=30)[owners]
        one = jackknife.of_mean(values, owners)
        low, high = jackknife.bounds(one, 0.95)
        for null in (1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99, 0.9999):
            assert (jackknife.p_value(one, null) < 0.05) == (not low <= null <= high), (rate, null)


def test_who_calls_says_whether_zeros_and_ones_are_a_rate():
    values, each = np.tile([0.0, 1.0, 1.0, 1.0, 1.0], 4), np.arange(20)
    guessed, rate, mean = (stats.mean_interval(values, each, rate=one) for one in (None, True, False))
    assert guessed == rate
    half = 2.093 * values.std(ddof=1) / np.sqrt(20)  # Student's t with 19 degrees of freedom
    assert (mean.low, mean.high) == pytest.approx((0.8 - half, 0.8 + half), abs=1e-3)
    assert rate.high < 1 > mean.low
    with pytest.raises(errors.AnalysisError, match="a rate needs values that are 0 or 1"):
        stats.mean_interval(values / 2, each, rate=True)


def test_a_perfect_auroc_is_as_sure_as_its_rarer_class_has_episodes():
    labels = np.array([True] * 5 + [False] * 30)
    found = jackknife.of_auroc(labels, labels.astype(float), np.arange(35))
    assert stats.estimate(found).low == pytest.approx(0.025 ** (1 / 5))
    assert jackknife.p_value(found, 0.5) == pytest.approx(2 * 0.5**5)


def test_positives_of_a_single_episode_leave_everything_open():
    labels = np.array([True, True, False, False, False])
    found = stats.auroc_interval(labels, np.arange(5.0), np.array([0, 0, 1, 2, 3]))
    assert (found.low, found.high) == (0.0, 1.0)


def test_the_p_value_is_below_five_percent_exactly_when_the_interval_leaves_the_null_out(rows):
    labels, scores, episodes = rows
    for shift in np.linspace(-2, 2, 17):
        one = jackknife.of_auroc(labels, scores + shift * labels, episodes)
        low, high = jackknife.bounds(one, 0.95)
        assert (jackknife.p_value(one, 0.5) < 0.05) == (not low <= 0.5 <= high)


def test_the_difference_of_an_estimate_to_itself_is_surely_zero(rows):
    labels, scores, episodes = rows
    one = jackknife.of_auroc(labels, scores, episodes)
    nothing = jackknife.difference(one, one)
    assert (nothing.value, nothing.error, jackknife.p_value(nothing, 0.0)) == (0.0, 0.0, 1.0)


def test_paired_tests_of_few_pairs_are_exact():
    treated, control = np.array([1.0, 2.0, 3.0, 4.0]), np.zeros(4)
    found = stats.paired(treated, control)
    assert found.p == 2 / 16
    assert found.effect.value == 2.5
    assert found.smallest is None  # four pairs cannot reach 5 %


def test_pairs_that_never_differ_have_p_one_and_no_smallest_effect():
    found = stats.paired(np.ones(30), np.ones(30))
    assert (found.p, found.effect.value, found.effect.low, found.effect.high) == (1.0, 0.0, 0.0, 0.0)
    assert found.smallest is None


def test_pairs_of_one_cluster_are_flipped_together():
    treated, clusters = np.tile([1.0, 2.0, 3.0], 4), np.tile([0, 1, 2], 4)
    assert stats.paired(treated, np.zeros(12), clusters).p == 2 / 8
    assert stats.paired(treated, np.zeros(12)).p == 2 / 2**12


def test_many_pairs_are_flipped_by_seed_and_p_is_never_zero():
    rng = np.random.default_rng(3)
    treated, control = rng.normal(size=(2, 40))
    assert stats.paired(treated, control, seed=1) == stats.paired(treated, control, seed=1)
    assert stats.paired(treated + 10, control).p == 1 / (stats.FLIPS + 1)


def test_holm_and_benjamini_hochberg_keep_order_and_leave_nan_out():
    given = [0.04, float("nan"), 0.01, 0.03]
    np.testing.assert_allclose(stats.holm(given), [0.06, np.nan, 0.03, 0.06])
    np.testing.assert_allclose(stats.benjamini_hochberg(given), [0.04, np.nan, 0.03, 0.04])
    assert len(stats.holm([])) == 0


def test_benjamini_hochberg_equals_scipy():
    from scipy import stats as scipy_stats

    given = np.random.default_rng(4).random(25)
    np.testing.assert_allclose(stats.benjamini_hochberg(given), scipy_stats.false_discovery_control(given))


def test_the_bootstrap_of_a_mean_agrees_with_its_closed_form():
    rng = np.random.default_rng(5)
    owners = np.repeat(np.arange(40), 3)
    values = rng.normal(size=40)[owners] + rng.normal(size=120)
    drawn = stats.bootstrap_interval(lambda rows: float(values[rows].mean()), owners, draws=800)
    closed = stats.mean_interval(values, owners)
    assert drawn.value == pytest.approx(closed.value)
    assert (drawn.low, drawn.high) == pytest.approx((closed.low, closed.high), abs=0.08)


def test_estimates_are_json():
    found = stats.paired(np.arange(8.0), np.zeros(8))
    assert json.loads(json.dumps(found.to_json()))["effect"] == found.effect.to_json()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.mean_interval(np.array([1.0, np.nan]), np.arange(2)), "1 of 2 values are nan or infinite"),
        (lambda: stats.mean_interval(np.ones(4), np.zeros(4)), "at least two of them, got 1"),
        (lambda: stats.auroc_interval(np.ones(4, bool), np.ones(4), np.arange(4)), "no pair of a positive"),
        (lambda: stats.balanced_accuracy_interval(*np.ones((2, 4), bool), np.arange(4)), "needs both classes"),
        (lambda: stats.paired(np.array([np.inf, 1.0]), np.ones(2)), "treated are nan or infinite"),
        (lambda: stats.holm([0.5, 1.5]), "between 0 and 1, got 1.5"),
        (lambda: stats.bootstrap_interval(lambda rows: float("nan"), np.arange(9), draws=9), "9 of 9 resamples"),
    ],
)
def test_data_that_cannot_answer_is_refused(call, message):
    with pytest.raises(errors.AnalysisError, match=message):
        call()


def test_a_missing_package_says_what_to_install():
    with pytest.raises(errors.MissingExtraError, match=r'pip install "sonde\[study\]"'):
        jackknife.imported("no_such_package.stats", "intervals")
