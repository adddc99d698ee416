"""Intervals cover the truth as often as they say, where rows of an episode resemble each other; naive ones do not."""

import numpy as np
import pytest

from sonde.analysis import stats

BAR = 0.93  # of 95 % intervals; 465 of 500
RHO = 0.5
CASES = [("rate", 0.1), ("rate", 0.5), ("auroc", 0.5), ("auroc", 0.7), ("auroc", 0.9), ("auroc", 0.97)]


def rows_of(rng, rate):
    """Labels of 20 to 60 episodes of 3 to 20 steps each; the rate differs widely from episode to episode."""
    episodes = int(rng.integers(20, 61))
    owners = np.repeat(np.arange(episodes), rng.integers(3, 21, size=episodes))
    own_rate = rng.beta(rate * 1.5, (1 - rate) * 1.5, size=episodes)  # correlation 0.4 within an episode
    return rng.random(len(owners)) < own_rate[owners], owners


def scores_of(rng, labels, owners, auroc):
    """Scores with an episode's own offset; two rows of different episodes are ordered right with chance `auroc`."""
    from scipy import stats as scipy_stats

    offset = rng.normal(size=owners.max() + 1)[owners]
    noise = np.sqrt(RHO) * offset + np.sqrt(1 - RHO) * rng.normal(size=len(owners))
    return labels * np.sqrt(2) * scipy_stats.norm.ppf(auroc) + noise


def study(kind, truth, seed, *, naive=False):
    """The interval of one simulated study; with `naive`, one that takes rows for independent."""
    rng = np.random.default_rng([seed, int(100 * truth), kind == "auroc"])
    labels, owners = rows_of(rng, truth if kind == "rate" else 0.35)
    clusters = np.arange(len(owners)) if naive else owners
    if kind == "rate":
        return stats.mean_interval(labels, clusters)
    return stats.auroc_interval(labels, scores_of(rng, labels, owners, truth), clusters)


def coverage(kind, truth, seeds, *, naive=False):
    studies = (study(kind, truth, seed, naive=naive) for seed in seeds)
    return np.mean([one.low <= truth <= one.high for one in studies])


@pytest.mark.parametrize(("kind", "truth"), CASES)
def test_most_of_60_intervals_cover_the_truth(kind, truth):
    assert coverage(kind, truth, range(60)) >= 0.88  # two and a half standard errors of 60 studies below 0.95


RARE = [
    (rate, clusters, correlation)
    for rate in (0.001, 0.005, 0.02)
    for clusters in (20, 60, 200)
    for correlation in (0.0, 0.2, 0.5)
]


def rare(rate, clusters, correlation, studies):
    """Coverage and mean width of intervals of a rare rate, with clusters of 5 to 50 rows, beside the plain bootstrap's coverage."""
    rng = np.random.default_rng([int(1e4 * rate), clusters, int(10 * correlation)])
    covered, widths, plain = [], [], []
    for _ in range(studies):
        owners = np.repeat(np.arange(clusters), rng.integers(5, 51, size=clusters))
        spread = (1 - correlation) / correlation if correlation else 1e9
        hits = rng.random(len(owners)) < rng.beta(rate * spread, (1 - rate) * spread, size=clusters)[owners]
        one = stats.mean_interval(hits, owners)
        covered.append(one.low <= rate <= one.high)
        widths.append(one.high - one.low)
        drawn = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=200).astype(float)
        low, high = np.quantile(drawn @ np.bincount(owners, hits) / (drawn @ np.bincount(owners)), (0.025, 0.975))
        plain.append(low <= rate <= high)
    return np.mean(covered), np.mean(widths), np.mean(plain)


@pytest.mark.parametrize(("rate", "clusters", "correlation"), [(0.001, 60, 0.5), (0.005, 200, 0.2), (0.02, 20, 0.5)])
def test_intervals_of_rare_clustered_hits_cover_the_rate_and_the_plain_bootstrap_does_not(rate, clusters, correlation):
    covers, width, plain = rare(rate, clusters, correlation, 120)
    assert covers >= BAR
    assert width <= 1.3 * (1 - 0.025 ** (1 / clusters)) + 0.02  # about as sure as one draw per cluster that never hits
    assert plain < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "clusters", "correlation"), RARE)
def test_at_least_930_of_1000_intervals_of_rare_clustered_hits_cover_the_rate(rate, clusters, correlation):
    assert rare(rate, clusters, correlation, 1000)[0] >= BAR


def test_intervals_that_take_rows_for_independent_do_not_cover_the_truth():
    assert coverage("rate", 0.5, range(60), naive=True) < 0.8
    assert coverage("auroc", 0.5, range(20), naive=True) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "truth"), CASES)
def test_at_least_465_of_500_intervals_cover_the_truth(kind, truth):
    assert coverage(kind, truth, range(1000, 1500)) >= BAR


def balanced(seed):
    rng = np.random.default_rng([seed, 5])
    labels, owners = rows_of(rng, 0.4)
    return stats.balanced_accuracy_interval(labels, scores_of(rng, labels, owners, 0.7) > 0.4, owners)


def test_intervals_of_balanced_accuracy_cover_the_truth():
    from scipy import stats as scipy_stats

    shift = np.sqrt(2) * scipy_stats.norm.ppf(0.7)
    truth = (scipy_stats.norm.sf(0.4 - shift) + scipy_stats.norm.cdf(0.4)) / 2
    assert np.mean([one.low <= truth <= one.high for one in map(balanced, range(150))]) >= BAR


@pytest.mark.slow
def test_bootstrap_intervals_of_a_median_cover_the_truth():
    covered = []
    for seed in range(60):
        rng = np.random.default_rng([seed, 6])
        owners = np.repeat(np.arange(30), 5)
        values = rng.normal(size=30)[owners] + rng.normal(size=150)
        one = stats.bootstrap_interval(
            lambda rows, values=values: float(np.median(values[rows])), owners, draws=400, seed=seed
        )
        covered.append(one.low <= 0 <= one.high)
    assert np.mean(covered) >= 0.88


def pairs_of(seed, effect, count=11):
    rng = np.random.default_rng([seed, 8])
    control = rng.normal(size=count)
    return control + effect + rng.normal(size=count), control


def test_paired_tests_reject_a_true_null_about_one_time_in_twenty():
    rejected = [stats.paired(*pairs_of(seed, 0.0)).p <= 0.05 for seed in range(300)]
    assert 0.02 <= np.mean(rejected) <= 0.085


def test_an_effect_as_large_as_the_smallest_visible_one_is_seen_four_times_in_five():
    smallest = np.mean([stats.paired(*pairs_of(seed, 0.0)).smallest for seed in range(50)])
    seen = [stats.paired(*pairs_of(seed, smallest)).p <= 0.05 for seed in range(1000, 1150)]
    assert 0.72 <= np.mean(seen) <= 0.88


def test_paired_intervals_cover_the_effect():
    covered = [one.low <= 0.4 <= one.high for one in (stats.paired(*pairs_of(seed, 0.4)).effect for seed in range(300))]
    assert np.mean(covered) >= BAR


def test_holm_bounds_the_chance_of_any_false_discovery_and_no_correction_does_not():
    rng = np.random.default_rng(9)
    tests = rng.random((1000, 20))
    assert np.mean([stats.holm(one).min() <= 0.05 for one in tests]) < 0.07
    assert np.mean(tests.min(axis=1) <= 0.05) > 0.5


def test_benjamini_hochberg_bounds_the_share_of_false_discoveries():
    rng = np.random.default_rng(10)
    shares = []
    for _ in range(500):
        p = np.concatenate([rng.random(15), rng.random(5) * 1e-3])
        found = stats.benjamini_hochberg(p) <= 0.1
        shares.append(found[:15].sum() / max(1, found.sum()))
    assert np.mean(shares) <= 0.1


def test_an_interval_of_an_auroc_near_one_is_never_as_wide_as_ignorance():
    """Few episodes decide such a value; intervals by Student's quantiles on the logit scale reached below one half."""
    widths = [one.high - one.low for one in (study("auroc", 0.97, seed) for seed in range(200))]
    assert max(widths) < 0.5
    assert np.median(widths) < 0.1
