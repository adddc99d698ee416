"""How sure is a number that was measured on rows which come in episodes?

Rows of one episode resemble each other, so the unit that counts is the episode (the cluster). The estimate is computed
again with each cluster left out; all statistics here have closed forms for that, so it costs one sort of the rows.

1. The variance is that of the leave-one-cluster-out values, (C - 1) / C times their squared distance from the estimate.
2. Quantiles are Student's. The degrees of freedom are the least of C - 1, one less than the clusters on the rarer side
   (at a rate of 0.1, the episodes with any positive), and what Satterthwaite's formula gives for the spread of the
   clusters' own contributions: a variance that hangs on three episodes is not known as if it hung on thirty.
3. Rates and AUROCs get the exact interval of a binomial share of as many independent draws as would have that variance,
   fewer where its degrees of freedom are few (Korn and Graubard 1998). It stays inside 0 to 1 and holds close to them.
4. The draws of a rate are never fewer than one per cluster, as if its rows were copies of one another, and never more than its
   rows. Few hits tell next to nothing of how alike the rows of a cluster are: one hit has a variance with one degree of
   freedom, and would count as hardly a draw. Clusters of unequal size count as (Σ n)² / Σ n² of equal size (Kish 1965).
5. Some cluster was hit at all, which bounds a rate from below whatever the likeness: hits are at least as many as clusters with
   hits, so the rate is at least the exact lower end of these clusters' share, divided by the rows per cluster.

Chosen by simulation, before logit, BCa and bootstrap-t intervals over episodes: those cover too rarely where a rate is
low and rows are strongly correlated, or reach far below an AUROC near 1. How often this one covers is measured in
tests/truth/test_statistics.py, and for rare hits by benchmarks/measure_coverage.py.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sonde.core import errors

NOTHING = 1e-12


@dataclasses.dataclass(frozen=True, slots=True)
class Jackknife:
    """An estimate, and what it would be without each cluster.

    Attributes:
        value: The estimate.
        without: The estimate with one cluster left out, nan where that leaves nothing to estimate from.
        rows: How many rows it rests on.
        informative: How many clusters have rows on the rarer side.
        bounded: Whether it lives between 0 and 1.
        draws: The fewest and the most independent draws that a rate is worth; nothing is known of them for other estimates.
    """

    value: float
    without: Float[np.ndarray, "cluster"]
    rows: int
    informative: int
    bounded: bool
    draws: tuple[float, float] = (0.0, math.inf)

    @property
    def error(self) -> float:
        """The standard error; nan if some cluster cannot be left out."""
        count = len(self.without)
        return float(np.sqrt((count - 1) / count * np.sum((self.without - self.value) ** 2)))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the standard error, at least 1."""
        squares = (self.without - self.value) ** 2
        total, excess = squares.sum(), (squares**2).sum() - squares.sum() ** 2 / len(squares)
        satterthwaite = 2 * total**2 / excess if excess > 0 else math.inf
        return float(max(1.0, min(self.informative - 1, len(squares) - 1, satterthwaite)))


def of_mean(
    values: Shaped[np.ndarray, "row"], clusters: Shaped[np.ndarray, "row"], *, rate: bool | None = None
) -> Jackknife:
    """The mean over rows, which is or is not a rate; one if every value is 0 or 1 and nothing is said."""
    code, count = _coded(clusters)
    numbers = values.astype(np.float64)
    sums, sizes = np.bincount(code, numbers, count), np.bincount(code, minlength=count)
    without = (sums.sum() - sums) / (sizes.sum() - sizes)
    is_rate = bool(np.isin(numbers, (0.0, 1.0)).all()) if rate is None else rate
    informative = min(np.count_nonzero(sums), np.count_nonzero(sums < sizes)) if is_rate else count
    draws = (float(sizes.sum() ** 2 / (sizes**2).sum()), float(len(numbers))) if is_rate else (0.0, math.inf)
    return Jackknife(float(numbers.mean()), without, len(numbers), int(informative), is_rate, draws)


def of_auroc(
    labels: Bool[np.ndarray, "row"],
    scores: Float[np.ndarray, "row"],
    clusters: Shaped[np.ndarray, "row"],
    strata: Shaped[np.ndarray, "row"] | None = None,
) -> Jackknife:
    """The chance that a positive row scores above a negative one of the same stratum; ties count half.

    Scores of different folds come from different fits and are not on one scale. With folds as strata only pairs within
    a fold are compared, so a fold's base rate and offset cannot enter.
    """
    code, count = _coded(clusters)
    levels = np.zeros(len(labels), dtype=np.int64) if strata is None else _coded(strata)[0]
    wins, pairs = _in_groups(labels, scores, levels)
    own_wins, own_pairs = _in_groups(labels, scores, levels * count + code)
    won, compared = wins[labels].sum(), pairs[labels].sum()
    if not compared:
        raise errors.AnalysisError(
            f"no pair of a positive and a negative row to compare: {int(labels.sum())} positives among {len(labels)} "
            "rows, never both classes in one stratum; use fewer folds or more episodes"
        )
    # A pair of two clusters goes with either of them; a pair inside a cluster is met at both its ends, so add it back.
    lost = np.bincount(code, wins, count) - np.bincount(code[labels], own_wins[labels], count)
    gone = np.bincount(code, pairs, count) - np.bincount(code[labels], own_pairs[labels], count)
    with np.errstate(invalid="ignore"):
        without = np.where(compared - gone > 0, (won - lost) / (compared - gone), np.nan)
    sides = (len(np.unique(code[labels & (pairs > 0)])), len(np.unique(code[~labels & (pairs > 0)])))
    return Jackknife(float(won / compared), without, len(labels), min(sides), True)


def of_balanced_accuracy(
    labels: Bool[np.ndarray, "row"], predicted: Bool[np.ndarray, "row"], clusters: Shaped[np.ndarray, "row"]
) -> Jackknife:
    """The mean of the share of positives and the share of negatives that are predicted right."""
    if labels.all() or not labels.any():
        raise errors.AnalysisError(
            f"balanced accuracy needs both classes, got {int(labels.sum())} positives among {len(labels)} rows"
        )
    code, count = _coded(clusters)
    shares, removed, sides = [], [], []
    for side in (labels, ~labels):
        size = np.bincount(code[side], minlength=count)
        right = np.bincount(code[side], (predicted == labels)[side], count)
        with np.errstate(invalid="ignore"):
            removed.append((right.sum() - right) / (size.sum() - size))
        shares.append(right.sum() / size.sum())
        sides.append(int(np.count_nonzero(size)))
    return Jackknife(float(np.mean(shares)), np.mean(removed, axis=0), len(labels), min(sides), True)


def difference(one: Jackknife, other: Jackknife) -> Jackknife:
    """One estimate minus another of the same rows and clusters, with the covariance accounted for."""
    fewest = min(one.informative, other.informative)
    return Jackknife(one.value - other.value, one.without - other.without, one.rows, fewest, False)


def bounds(one: Jackknife, level: float) -> tuple[float, float]:
    """Returns the ends of the interval."""
    tail, error = (1 - level) / 2, one.error
    if math.isnan(error):  # everything of one class is in one episode: nothing is known of other episodes
        return (0.0, 1.0) if one.bounded else (-1.0, 1.0)
    if one.bounded and one.value in (0.0, 1.0):
        room = 1 - tail ** (1 / _witnesses(one))
        return (0.0, room) if one.value == 0 else (1 - room, 1.0)
    if not one.bounded:
        reach = float(_scipy_stats().t.ppf(1 - tail, one.freedom)) * error
        return one.value - reach, one.value + reach
    if error <= NOTHING and math.isinf(one.draws[1]):
        return one.value, one.value
    hits, misses = _draws(one)
    beta, (touched, rest, share) = _scipy_stats().beta, _touched(one)
    some = share * float(beta.ppf(tail, touched, rest + 1))
    low, high = beta.ppf(tail, hits, misses + 1), beta.ppf(1 - tail, hits + 1, misses)
    return max(float(low), some), min(float(high), 1 - some)


def p_value(one: Jackknife, null: float) -> float:
    """Two-sided p-value of the estimate against a fixed value; it is below 1 - level when `bounds` exclude the value."""
    error = one.error
    if one.value == null or math.isnan(error):
        return 1.0
    if one.bounded and one.value in (0.0, 1.0):
        side = null if one.value == 1 else 1 - null
        return min(1.0, 2 * side ** _witnesses(one))
    if error <= NOTHING * abs(one.value) and not (
        one.bounded and math.isfinite(one.draws[1])
    ):  # every cluster says exactly the same: as sure as tossing that many coins
        return min(1.0, 2 * 0.5 ** len(one.without))
    if not one.bounded:
        return float(2 * _scipy_stats().t.sf(abs(one.value - null) / error, one.freedom))
    hits, misses = _draws(one)
    beta, (touched, rest, share) = _scipy_stats().beta, _touched(one)
    tail = beta.cdf(null, hits, misses + 1) if null < one.value else beta.sf(null, hits + 1, misses)
    if share:
        tail = min(tail, beta.cdf((null if null < one.value else 1 - null) / share, touched, rest + 1))
    return float(min(1.0, 2 * tail))


def _draws(one: Jackknife) -> tuple[float, float]:
    """Hits and misses of as many independent draws as would be known as well as the estimate is."""
    quantiles = _scipy_stats().norm.ppf(0.975) / _scipy_stats().t.ppf(0.975, one.freedom)
    known = one.value * (1 - one.value) / one.error**2 * float(quantiles) ** 2 if one.error else math.inf
    fewest, most = one.draws
    draws = min(max(known, fewest), most)
    return one.value * draws, (1 - one.value) * draws


def _touched(one: Jackknife) -> tuple[int, int, float]:
    """Of a rate: clusters on its rarer side, all others, and clusters per row; 0 clusters per row for what is no rate."""
    count = len(one.without)
    return one.informative, count - one.informative, count / one.rows if math.isfinite(one.draws[1]) else 0.0


def _witnesses(one: Jackknife) -> int:
    """How many clusters attest a perfect score: those of the rarer side, or all if a rate has no other side."""
    return one.informative or len(one.without)


def _coded(groups: Shaped[np.ndarray, "row"]) -> tuple[Int[np.ndarray, "row"], int]:
    names, code = np.unique(groups, return_inverse=True)
    return code.astype(np.int64), len(names)


def _in_groups(
    labels: Bool[np.ndarray, "row"], scores: Float[np.ndarray, "row"], groups: Int[np.ndarray, "row"]
) -> tuple[Float[np.ndarray, "row"], Float[np.ndarray, "row"]]:
    """For each row: comparisons with the other class in its group that went the right way, and all of them."""
    wins, pairs = np.zeros(len(labels)), np.zeros(len(labels))
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        up, down = rows[labels[rows]], rows[~labels[rows]]
        if len(up) and len(down):
            wins[up] = _below(scores[up], np.sort(scores[down]))
            wins[down] = len(up) - _below(scores[down], np.sort(scores[up]))
            pairs[up], pairs[down] = len(down), len(up)
    return wins, pairs


def _below(values: Float[np.ndarray, "row"], others: Float[np.ndarray, "other"]) -> Float[np.ndarray, "row"]:
    """How many of the sorted others lie below each value; equal ones count half."""
    return (np.searchsorted(others, values, "left") + np.searchsorted(others, values, "right")) / 2


def _scipy_stats() -> Any:
    return imported("scipy.stats", "intervals and tests")


def imported(module: str, feature: str) -> Any:
    """Returns a module of the extra `study`.

    Raises:
        MissingExtraError: It is not installed.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
        raise errors.MissingExtraError(package, extra="study", feature=feature) from error
