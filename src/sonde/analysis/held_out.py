"""How well is a row predicted by a model that never saw its episode?

A Scorer fits on some rows and scores others; a probe, a baseline and a control differ in nothing else, so all are judged
in the same way. The probe is a logistic regression with a strong L2 penalty, classes weighted equally, features
standardised with the mean and spread of the training rows. A fit of 2400 rows of 576 features takes less than 100 ms.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sonde.analysis import examples as examples_
from sonde.analysis import jackknife, stats
from sonde.core import errors

# Training rows and rows to score, to scores: above 0 predicts True.
Scorer = Callable[[Int[np.ndarray, "train"], Int[np.ndarray, "test"]], Float[np.ndarray, "test"]]
Scorers = Mapping[str, Scorer]
FEATURE = "fitting probes"


@dataclasses.dataclass(frozen=True, slots=True)
class Scored:
    """How well rows were predicted: AUROC and balanced accuracy on held-out episodes."""

    auroc: stats.Estimate
    balanced_accuracy: stats.Estimate

    def to_json(self) -> dict[str, Any]:
        """The scores as JSON data."""
        return dataclasses.asdict(self)


def assign_folds(examples: examples_.Examples, count: int, seed: int) -> Int[np.ndarray, "row"]:
    """Gives each row the fold of its episode, with about the same share of positives in each fold."""
    selection = jackknife.imported("sklearn.model_selection", FEATURE)
    splitter = selection.StratifiedGroupKFold(n_splits=count, shuffle=True, random_state=seed)
    folds = np.zeros(len(examples), dtype=np.int64)
    parts = splitter.split(np.zeros((len(examples), 1)), examples.labels, examples.episodes)
    for fold, (_, test) in enumerate(parts):
        folds[test] = fold
    return folds


def linear(features: Any, labels: Bool[np.ndarray, "row"], strength: float, *, scale: bool = True) -> Scorer:
    """A logistic regression on an array of features, or on a sparse matrix if `scale` is off."""
    pipeline = jackknife.imported("sklearn.pipeline", FEATURE)
    preprocessing = jackknife.imported("sklearn.preprocessing", FEATURE)
    models = jackknife.imported("sklearn.linear_model", FEATURE)

    def score(train: Int[np.ndarray, "train"], test: Int[np.ndarray, "test"]) -> Float[np.ndarray, "test"]:
        if not len(test) or labels[train].all() or not labels[train].any():
            return np.zeros(len(test))
        regression = models.LogisticRegression(C=strength, class_weight="balanced", max_iter=2000)
        steps = ([preprocessing.StandardScaler()] if scale else []) + [regression]
        fitted = pipeline.make_pipeline(*steps).fit(features[train], labels[train])
        return fitted.decision_function(features[test]).astype(np.float64)

    return score


def least_squares(
    train: Float[np.ndarray, "train d_model"],
    test: Float[np.ndarray, "test d_model"],
    targets: Float[np.ndarray, "train target"],
    strength: float,
) -> Float[np.ndarray, "test target"]:
    """Scores test rows by ridge regression on standardised features, for many targets at once.

    The penalty, 4 / strength, is the one that a logistic regression of the same strength has near its start, so the two
    rank rows nearly alike. Scores lack a constant, which comparisons within a fold do not see.
    """
    middle, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread <= 1e-12 * np.abs(middle)] = 1.0
    fitted, seen = (train - middle) / spread, (test - middle) / spread
    centred = targets - targets.mean(axis=0)
    few = len(fitted) < fitted.shape[1]
    square = fitted @ fitted.T if few else fitted.T @ fitted
    square[np.diag_indices_from(square)] += 4 / strength
    solved = np.linalg.solve(square, centred if few else fitted.T @ centred)
    return seen @ (fitted.T @ solved if few else solved)


def quick(features: Float[np.ndarray, "row d_model"], labels: Bool[np.ndarray, "row"], strength: float) -> Scorer:
    """A least-squares probe: ranks rows as `linear` does, nearly, at a fraction of the time on few rows."""

    def score(train: Int[np.ndarray, "train"], test: Int[np.ndarray, "test"]) -> Float[np.ndarray, "test"]:
        targets = labels[train].astype(np.float64)[:, None]
        return least_squares(features[train], features[test], targets, strength)[:, 0]

    return score


def across(
    scorer: Scorer, rows: Int[np.ndarray, "chosen"], folds: Int[np.ndarray, "row"]
) -> Float[np.ndarray, "chosen"]:
    """Scores each of the rows by a fit on those of them that are in other folds."""
    scores, own = np.zeros(len(rows)), folds[rows]
    for fold in np.unique(own):
        scores[own == fold] = scorer(rows[own != fold], rows[own == fold])
    return scores


def wide(cells: examples_.Cells) -> dict[examples_.Cell, Float[np.ndarray, "row d_model"]]:
    """The cells with features as float64, sharing an array where the given ones do."""
    copies: dict[int, np.ndarray] = {}
    for features in cells.values():
        copies.setdefault(id(features), features.astype(np.float64))
    return {cell: copies[id(features)] for cell, features in cells.items()}


def shuffled_auroc(
    features: Float[np.ndarray, "row d_model"],
    examples: examples_.Examples,
    at: tuple[Int[np.ndarray, "chosen"], Int[np.ndarray, "row"]],
    settings: examples_.Settings,
) -> float | None:
    """The control: mean AUROC of probes fitted and judged on labels dealt out anew among the rows.

    Args:
        features: One row per example.
        examples: The examples.
        at: The rows to use, and the fold of every row.
        settings: How many shuffles, and the seed.

    Returns:
        None if no shuffle was asked for.
    """
    rows, folds = at
    found = []
    for turn in range(settings.shuffles):
        labels = examples.labels.copy()
        labels[rows] = np.random.default_rng([settings.seed, turn]).permutation(labels[rows])
        scores = across(linear(features, labels, settings.strength), rows, folds)
        try:
            one = jackknife.of_auroc(labels[rows], scores, examples.episodes[rows], folds[rows])
        except errors.AnalysisError:  # so few positives that the shuffle left no fold with both classes
            continue
        found.append(one.value)
    return float(np.mean(found)) if found else None


def judged(
    scorer: Scorer,
    examples: examples_.Examples,
    at: tuple[Int[np.ndarray, "chosen"], Int[np.ndarray, "row"]],
    settings: examples_.Settings,
) -> Scored:
    """Scores the rows `at[0]` out of fold, `at[1]` being the fold of every row, and judges the scores."""
    rows, folds = at
    scores = across(scorer, rows, folds)
    return judge(scores, examples.labels[rows], (examples.episodes[rows], folds[rows]), settings.level)


def judge(
    scores: Float[np.ndarray, "row"],
    labels: Bool[np.ndarray, "row"],
    groups: tuple[Int[np.ndarray, "row"], Int[np.ndarray, "row"]],
    level: float = 0.95,
) -> Scored:
    """Judges held-out scores.

    Args:
        scores: Above 0 predicts True.
        labels: What was to be predicted.
        groups: The episode and the fold of each row.
        level: Coverage of the intervals.
    """
    episodes, folds = groups
    auroc = jackknife.of_auroc(labels, scores, episodes, folds)
    accuracy = jackknife.of_balanced_accuracy(labels, scores > 0, episodes)
    return Scored(stats.estimate(auroc, level), stats.estimate(accuracy, level))
