"""How often does a 95 % interval of a rare rate hold the truth, and how wide is it, where rows come in clusters?

    python benchmarks/measure_coverage.py            # 54 cells of 4,000 studies each, some five minutes
    python benchmarks/measure_coverage.py 200        # fewer studies

Simulates studies whose clusters' own rates are drawn from a beta distribution, so that two rows of a cluster are correlated,
and prints a markdown table: coverage and mean width of `stats.mean_interval`, and of the plain bootstrap that resamples whole
clusters (percentiles, 400 resamples). Clusters have 20 rows each ("equal") or 5 to 50 ("unequal"). Seeded.
"""

import itertools
import sys

import numpy as np

from sonde.analysis import stats

RATES, CLUSTERS, CORRELATIONS, SIZES = (0.001, 0.005, 0.02), (20, 60, 200), (0.0, 0.2, 0.5), ("equal", "unequal")
STUDIES, RESAMPLES, PART = 4000, 400, 500


def hits_of(rng, rate, clusters, correlation, sizes, studies):
    """Hits and rows of each cluster of each study."""
    shape = (studies, clusters)
    rows = np.full(shape, 20) if sizes == "equal" else rng.integers(5, 51, size=shape)
    spread = (1 - correlation) / correlation if correlation else np.inf
    own = rng.beta(rate * spread, (1 - rate) * spread, size=shape) if correlation else np.full(shape, rate)
    return rng.binomial(rows, own), rows


def interval(hits, rows):
    """Ends of the interval of one study, from its rows."""
    owners = np.repeat(np.arange(len(rows)), rows)
    place = np.arange(len(owners)) - np.repeat(np.cumsum(rows) - rows, rows)  # of a row in its cluster
    one = stats.mean_interval(place < np.repeat(hits, rows), owners)
    return one.low, one.high


def resampled(rng, hits, rows):
    """Ends of the bootstrap's intervals of many studies."""
    clusters = hits.shape[1]
    drawn = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=RESAMPLES).astype(np.float64)
    return np.quantile((drawn @ hits.T) / (drawn @ rows.T), (0.025, 0.975), axis=0).T


def judged(ends, rate):
    """Coverage, and mean width."""
    return np.mean((ends[:, 0] <= rate) & (rate <= ends[:, 1])), np.mean(ends[:, 1] - ends[:, 0])


def cell(rate, clusters, correlation, sizes, studies):
    """The row of one kind of study: coverage and width of both intervals, and share of studies without a hit."""
    seed = [int(1e4 * rate), clusters, int(100 * correlation), SIZES.index(sizes)]
    rng = np.random.default_rng(seed)
    ours, plain, empty = [], [], 0
    for start in range(0, studies, PART):
        hits, rows = hits_of(rng, rate, clusters, correlation, sizes, min(PART, studies - start))
        ours += [interval(*one) for one in zip(hits, rows, strict=True)]
        plain.append(resampled(rng, hits, rows))
        empty += int((hits.sum(axis=1) == 0).sum())
    return *judged(np.array(ours), rate), *judged(np.concatenate(plain), rate), empty / studies


def main() -> None:
    """Prints the table."""
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else STUDIES
    print(f"{studies} studies in each row.\n")
    print(
        "| rate | clusters | correlation | sizes | covers | mean width | bootstrap covers | its width | without a hit |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    least = 1.0
    for rate, clusters, correlation, sizes in itertools.product(RATES, CLUSTERS, CORRELATIONS, SIZES):
        covers, width, plain, its, empty = cell(rate, clusters, correlation, sizes, studies)
        least = min(least, covers)
        print(
            f"| {rate:g} | {clusters} | {correlation:g} | {sizes} | {covers:.3f} | {width:.4f} | {plain:.3f} | {its:.4f} | {empty:.0%} |",
            flush=True,
        )
    print(f"\nLeast coverage: {least:.3f}")


if __name__ == "__main__":
    main()
