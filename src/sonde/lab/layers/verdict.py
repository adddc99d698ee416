"""What the numbers of the study of layers say: means with intervals, the worst skips, what stands out. Costs nothing."""

from typing import Any

import numpy as np

from sonde.analysis import jackknife
from sonde.lab import rows as lab_rows
from sonde.lab.layers import settings as study_settings

#: A layer stands out if skipping it does so many times the harm of the median one in the middle.
STANDS_OUT = 3.0
#: What no mean of a measure can be below or above.
LIMITS = {"kl": lab_rows.NO_LESS, "loss": lab_rows.NO_LESS, "entropy": lab_rows.NO_LESS, "agreement": lab_rows.SHARE}


def of(results: dict[str, Any]) -> dict[str, Any]:
    """What the numbers say: the worst skips, layers that stand out, the order of methods, what influence tells."""
    skip = means(results["single"]["skip"], "kl")
    noise = means(results["single"]["noise"], "kl")
    count = len(skip)
    middle = [layer for layer in range(count) if 3 <= layer < count - 2] if count > 8 else list(range(1, count - 1))
    median = float(np.median([skip[layer] for layer in middle]))
    influence = [float(np.mean(one)) for one in results["shape"]["influence"]]
    window = next((one for one in results["windows"]["windows"] if one["size"] == 4), results["windows"]["windows"][0])
    harm = {
        method: float(np.mean(window[method]["kl"])) for method in study_settings.METHODS if window[method] is not None
    }
    spearman = jackknife.imported("scipy.stats", "rank correlations").spearmanr
    ranks = spearman(influence, skip)
    return {
        "worst_skips": [int(layer) for layer in np.argsort(-np.array(skip))[:4]],
        "middle": [middle[0], middle[-1]],
        "median_kl": median,
        "stand_out": [layer for layer in middle if skip[layer] >= STANDS_OUT * median],
        "more_than_noise": int(sum(a > b for a, b in zip(skip, noise, strict=True))),
        "agreement": float(np.median([means(results["single"]["skip"], "agreement")[layer] for layer in middle])),
        "window": {
            "first": window["first"],
            "last": window["last"],
            "kl": dict(sorted(harm.items(), key=lambda x: x[1])),
        },
        "influence_spearman": {"rho": float(ranks.statistic), "p": float(ranks.pvalue), "n": count},
    }


def means(columns: list[dict[str, list[float]] | None], measure: str) -> list[float]:
    """Means over texts; nan for what could not be run."""
    return [float("nan") if one is None else float(np.mean(one[measure])) for one in columns]


def estimates(columns: list[dict[str, list[float]] | None], measure: str) -> dict[str, np.ndarray]:
    """Means over texts with the ends of their intervals; nan for what could not be run."""
    made: dict[str, list[float]] = {"value": [], "low": [], "high": []}
    for one in columns:
        values = np.array([np.nan] if one is None else one[measure], dtype=np.float64)
        found = lab_rows.mean(values, np.arange(len(values)), limits=LIMITS[measure])
        for end, numbers in made.items():
            numbers.append(getattr(found, end))
    return {end: np.array(numbers) for end, numbers in made.items()}
