"""How large is it, how sure is that, and is it more than chance? Intervals, paired tests, corrections.

Everything published goes through here: a value with its n, its interval, and the number of episodes behind it. Rows of
one episode are never taken for independent. Intervals are those of `jackknife` (it says why); `bootstrap_interval`
serves statistics without a closed form. Costs milliseconds, except the bootstrap, which calls its statistic 2000 times.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sonde.analysis import jackknife
from sonde.core import errors

EXACT_CLUSTERS = 12
FLIPS = 9999
Statistic = Callable[[Int[np.ndarray, "drawn"]], float]


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A measured number.

    Attributes:
        value: The number.
        low: Lower end of its interval.
        high: Upper end.
        n: How many rows it rests on.
        clusters: How many episodes (or other clusters) the rows come from.
        level: How often such intervals cover the truth.
    """

    value: float
    low: float
    high: float
    n: int
    clusters: int
    level: float = 0.95

    def to_json(self) -> dict[str, Any]:
        """The estimate as JSON data."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Paired:
    """A comparison of pairs.

    Attributes:
        effect: Mean of treated minus control.
        p: Two-sided p-value by flipping signs.
        pairs: How many pairs.
        smallest: The effect that such a design would detect four times in five at the 5 % level, judged by the spread
            of these differences. None if the pairs never differ in their difference, so that there is no spread to
            judge by, or if there are too few pairs for any effect to reach 5 %.
    """

    effect: Estimate
    p: float
    pairs: int
    smallest: float | None

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON data."""
        return dataclasses.asdict(self)


def mean_interval(
    values: Shaped[np.ndarray, "row"],
    clusters: Shaped[np.ndarray, "row"],
    *,
    level: float = 0.95,
    rate: bool | None = None,
) -> Estimate:
    """Estimates a mean, or a rate, from rows that come in clusters.

    A rate of rows that are a cluster each has the exact interval of a binomial share (Clopper and Pearson). Where rows share
    clusters, that of as many independent draws as tell as much, at least one per cluster: rare hits have wide intervals, and
    none at all has that of one draw per cluster.

    Args:
        values: Numbers or truth values.
        clusters: The episode of each row, of any type that sorts.
        level: Coverage of the interval.
        rate: Whether the values are hits and misses. If None they are where all are 0 or 1: say False for a measured
            quantity that may happen to be.

    Raises:
        AnalysisError: A value is not finite, there are fewer than two clusters, or the values of a rate are not all 0 or 1.
    """
    _check({"values": values}, clusters)
    binary = bool(np.isin(values, (0, 1)).all())
    if rate and not binary:
        raise errors.AnalysisError("a rate needs values that are 0 or 1: leave rate out, or say False")
    rate = binary if rate is None else rate
    if rate and len(np.unique(clusters)) == len(values):
        share = jackknife.imported("scipy.stats", "intervals and tests").binomtest(int(values.sum()), len(values))
        ends = share.proportion_ci(level)
        return Estimate(float(values.mean()), float(ends.low), float(ends.high), len(values), len(values), level)
    return estimate(jackknife.of_mean(values, clusters, rate=rate), level)


def auroc_interval(
    labels: Bool[np.ndarray, "row"],
    scores: Shaped[np.ndarray, "row"],
    clusters: Shaped[np.ndarray, "row"],
    *,
    strata: Shaped[np.ndarray, "row"] | None = None,
    level: float = 0.95,
) -> Estimate:
    """Estimates the chance that a positive row scores above a negative one.

    Args:
        labels: True for positive rows.
        scores: Higher means more likely positive.
        clusters: The episode of each row.
        strata: Compare only rows of the same stratum, as for scores that come from different folds.
        level: Coverage of the interval.

    Raises:
        AnalysisError: A class is missing, a score is not finite, or there are fewer than two clusters.
    """
    _check({"scores": scores}, clusters)
    return estimate(jackknife.of_auroc(labels, scores.astype(np.float64), clusters, strata), level)


def balanced_accuracy_interval(
    labels: Bool[np.ndarray, "row"],
    predicted: Bool[np.ndarray, "row"],
    clusters: Shaped[np.ndarray, "row"],
    *,
    level: float = 0.95,
) -> Estimate:
    """Estimates the mean of the hit rates on positives and on negatives."""
    _check({"predicted": predicted}, clusters)
    return estimate(jackknife.of_balanced_accuracy(labels, predicted, clusters), level)


def estimate(one: jackknife.Jackknife, level: float = 0.95) -> Estimate:
    """Gives a jackknifed value its interval."""
    low, high = jackknife.bounds(one, level)
    return Estimate(one.value, low, high, one.rows, len(one.without), level)


def bootstrap_interval(
    statistic: Statistic,
    clusters: Shaped[np.ndarray, "row"],
    *,
    draws: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Estimate:
    """Estimates any statistic of the rows, resampling whole clusters.

    Bias-corrected and accelerated, with tails widened as Student's t asks for few clusters. Where the statistic is a
    mean, a rate or an AUROC take the other functions: they cover better with few or skewed clusters.

    Args:
        statistic: Gets row indices, with repeats, and returns the number.
        clusters: The episode of each row.
        draws: How often to resample.
        seed: Fixes the draws.
        level: Coverage of the interval.
    """
    _check({}, clusters)
    normal, student = (
        getattr(jackknife.imported("scipy.stats", "intervals and tests"), name) for name in ("norm", "t")
    )
    members = [np.flatnonzero(clusters == name) for name in np.unique(clusters)]
    count, rng = len(members), np.random.default_rng(seed)
    value = statistic(np.arange(len(clusters)))
    chosen = rng.integers(count, size=(draws, count))
    drawn = np.array([statistic(np.concatenate([members[one] for one in row])) for row in chosen])
    without = np.array([statistic(np.concatenate(members[:at] + members[at + 1 :])) for at in range(count)])
    if not (np.isfinite(drawn).all() and np.isfinite(without).all()):
        raise errors.AnalysisError(
            f"the statistic is not a finite number on {int((~np.isfinite(drawn)).sum())} of {draws} resamples of "
            f"{count} clusters; use more clusters or a statistic that is defined on any subset of them"
        )
    below = (np.sum(drawn < value) + np.sum(drawn == value) / 2 + 0.5) / (draws + 1)
    bias, pull = float(normal.ppf(below)), without.mean() - without
    acceleration = float((pull**3).sum() / (6 * (pull**2).sum() ** 1.5)) if pull.any() else 0.0
    tail = (1 - level) / 2
    wide = bias + math.sqrt(count / (count - 1)) * student.ppf([tail, 1 - tail], count - 1)
    low, high = np.quantile(drawn, normal.cdf(bias + wide / (1 - acceleration * wide)))
    return Estimate(float(value), float(low), float(high), len(clusters), count, level)


def paired(
    treated: Shaped[np.ndarray, "pair"],
    control: Shaped[np.ndarray, "pair"],
    clusters: Shaped[np.ndarray, "pair"] | None = None,
    *,
    seed: int = 0,
    level: float = 0.95,
) -> Paired:
    """Compares outcomes pair by pair: how much more under treatment, and is it more than a flip of signs would give?

    The test is exact with up to 12 clusters, and by 9999 seeded flips above.

    Args:
        treated: One outcome per pair.
        control: The outcome of the same task and seed without treatment, in the same order.
        clusters: Pairs that belong together (several seeds of one task); every pair by itself if None.
        seed: Fixes the flips.
        level: Coverage of the interval.

    Raises:
        AnalysisError: An outcome is not finite, or there are fewer than two clusters.
    """
    clusters = np.arange(len(treated)) if clusters is None else clusters
    _check({"treated": treated, "control": control}, clusters)
    differences = treated.astype(np.float64) - control.astype(np.float64)
    # A mean of differences is no rate, even if all happen to be 0 or 1.
    one = dataclasses.replace(
        jackknife.of_mean(differences, clusters), bounded=False, informative=len(np.unique(clusters))
    )
    code = np.unique(clusters, return_inverse=True)[1]
    p = _flipped(np.bincount(code, differences), np.random.default_rng(seed))
    return Paired(estimate(one, level), p, len(differences), _smallest(one))


def _flipped(sums: Float[np.ndarray, "cluster"], rng: np.random.Generator) -> float:
    """Share of sign flips whose total is at least as far from zero."""
    count = len(sums)
    if count <= EXACT_CLUSTERS:
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        extra = 0
    else:
        signs, extra = rng.choice([-1.0, 1.0], size=(FLIPS, count)), 1
    edge = abs(sums.sum()) - 1e-9 * np.abs(sums).sum()  # equal totals must count, whatever the rounding
    return float((np.count_nonzero(np.abs(signs @ sums) >= edge) + extra) / (len(signs) + extra))


def _smallest(one: jackknife.Jackknife) -> float | None:
    count = len(one.without)
    if one.error <= 1e-12 * abs(one.value) or 2 * 0.5**count > 0.05:
        return None
    student = jackknife.imported("scipy.stats", "intervals and tests").t
    return float((student.ppf(0.975, count - 1) + student.ppf(0.8, count - 1)) * one.error)


def holm(p_values: Sequence[float] | Float[np.ndarray, "test"]) -> Float[np.ndarray, "test"]:
    """Adjusts p-values so that the chance of any false discovery among them is bounded (Holm 1979).

    Returns them in the order given. A nan (a test that could not be made) stays nan and does not count.
    """
    given, order = _sorted(p_values)
    adjusted = np.full(len(given), np.nan)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1)))
    return adjusted


def benjamini_hochberg(p_values: Sequence[float] | Float[np.ndarray, "test"]) -> Float[np.ndarray, "test"]:
    """Adjusts p-values so that the share of false ones among the discoveries is bounded (Benjamini, Hochberg 1995).

    Returns them in the order given. A nan stays nan and does not count.
    """
    given, order = _sorted(p_values)
    adjusted = np.full(len(given), np.nan)
    scaled = given[order] * len(order) / np.arange(1, len(order) + 1)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return adjusted


def _sorted(
    p_values: Sequence[float] | Float[np.ndarray, "test"],
) -> tuple[Float[np.ndarray, "test"], Int[np.ndarray, "made"]]:
    """The p-values, and the indices of those that are numbers from small to large."""
    given = np.array(p_values, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    order = order[~np.isnan(given[order])]
    wrong = [float(one) for one in given[order] if not 0 <= one <= 1]
    if wrong:
        raise errors.AnalysisError(f"a p-value lies between 0 and 1, got {wrong[0]}")
    return given, order


def _check(columns: dict[str, Shaped[np.ndarray, "row"]], clusters: Shaped[np.ndarray, "row"]) -> None:
    for name, column in columns.items():
        if len(column) != len(clusters):
            raise errors.AnalysisError(
                f"{name} has {len(column)} rows and clusters {len(clusters)}: give one cluster per row"
            )
        if broken := int(np.count_nonzero(~np.isfinite(column.astype(np.float64)))):
            raise errors.AnalysisError(f"{broken} of {len(column)} {name} are nan or infinite; leave those rows out")
    if (found := len(np.unique(clusters))) < 2:
        raise errors.AnalysisError(
            f"an interval over episodes needs at least two of them, got {found} ({len(clusters)} rows)"
        )
