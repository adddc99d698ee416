"""What do the directions of single steps look like if there is no signal, or if nothing changes?

Two kinds of noise for `evolution`, whose module says how they are used: split halves of the episodes, and labels handed from
episode to episode. Directions are weighted sums of rows, so many of them cost one matrix product per step.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sonde.analysis import directions

#: Ways in which directions can change; see step 4 there.
CHANGES = {
    "spread": "the directions differ between steps",
    "norms": "their norms differ between steps",
    "drift": "their cosines fall with the distance of steps",
    "plane": "two axes explain more of their differences than of noise",
}
CHUNK = 128


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """The rows of the steps that have a direction.

    Attributes:
        features: Values, `labels` which side they are on, `numbers` and `episodes` where they come from.
        steps: The steps, and `by_step` the rows of each.
    """

    features: Float[np.ndarray, "row d_model"]
    labels: Bool[np.ndarray, "row"]
    numbers: Int[np.ndarray, "row"]
    episodes: Shaped[np.ndarray, "row"]
    steps: tuple[int, ...]
    by_step: tuple[Int[np.ndarray, "_"], ...]

    def directions(
        self, labels: Bool[np.ndarray, "n row"], kept: Bool[np.ndarray, "n row"]
    ) -> Float[np.ndarray, "n step d_model"]:
        """Directions under many labellings and choices of rows; NaN where a side has none."""
        found = np.empty((len(labels), len(self.steps), self.features.shape[1]))
        for index, rows in enumerate(self.by_step):
            found[:, index] = _weights(labels[:, rows], kept[:, rows]) @ self.features[rows]
        return found


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Null:
    """What permutations give.

    Attributes:
        norm: 95th percentile of norms, and `norm_p` the p-values, last that of the direction common to all steps.
        cosine: Mean cosine between steps.
        explained: 95th percentile of what two axes explain if nothing changes, and `change_p` the p-values of change.
    """

    norm: Float[np.ndarray, "step"]
    norm_p: Float[np.ndarray, "_"]
    cosine: Float[np.ndarray, "step step"]
    explained: float
    change_p: Float[np.ndarray, "4"]


def halves(
    rows: StepRows, splits: int, rng: np.random.Generator
) -> tuple[Float[np.ndarray, "step step"], Float[np.ndarray, "step step"]]:
    """Mean inner product and mean cosine between the two halves' directions, over all splits."""
    names, which = np.unique(rows.episodes, return_inverse=True)
    sides = np.arange(len(names)) % 2 == 0
    products, similar = [], []
    for _ in range(splits):
        first = rng.permuted(sides)[which]
        one, other = rows.directions(np.tile(rows.labels, (2, 1)), np.stack([first, ~first]))
        product = one @ other.T
        lengths = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
        products.append((product + product.T) / 2)
        cosine = product / np.where(lengths > 0, lengths, np.nan)
        similar.append((cosine + cosine.T) / 2)
    return _mean(np.stack(products)), _mean(np.stack(similar))


def permuted(
    rows: StepRows,
    vectors: Float[np.ndarray, "step d_model"],
    inner: Float[np.ndarray, "step step"],
    n: int,
    rng: np.random.Generator,
) -> Null:
    """What `n` permutations give.

    Args:
        rows: The rows.
        vectors: Their directions.
        inner: Inner products of directions across halves.
        n: How many permutations.
        rng: Draws them.
    """
    common = vectors.mean(axis=0)
    # Its own noise makes the mean direction a little too long; across halves it is not.
    true = np.nanmean(inner) / (common @ common or 1.0) if np.isfinite(inner).any() else 1.0
    shown = common * np.sqrt(np.clip(true, 0.0, 1.0))
    mixed = directions.permuted_labels(rows.labels, rows.episodes, rows.numbers, n=n, rng=rng)
    norms = np.empty((n, len(rows.steps) + 1))
    changed = np.empty((n, len(CHANGES)))
    cosine = np.zeros((len(rows.steps), len(rows.steps)))
    distance = np.array(rows.steps, dtype=np.float64)
    for start in range(0, n, CHUNK):
        part = mixed[start : start + CHUNK]
        drawn = rows.directions(part, np.ones_like(part))
        norms[start : start + CHUNK] = _norms(drawn)
        taken = [_weights(part[:, r], np.ones_like(part[:, r])) @ rows.labels[r].astype(float) for r in rows.by_step]
        noise = drawn - np.stack(taken, axis=1)[:, :, None] * common
        for index, (signal_free, one) in enumerate(zip(drawn, noise, strict=True), start):
            cosine += cosines(signal_free) / n
            changed[index] = change(shown + one, distance)
    return Null(
        norm=np.quantile(norms[:, :-1], 0.95, axis=0),
        norm_p=_p(norms, _norms(vectors[None])[0]),
        cosine=cosine,
        explained=float(np.quantile(changed[:, -1], 0.95)),
        change_p=_p(changed, change(vectors, distance)),
    )


def change(vectors: Float[np.ndarray, "step d_model"], steps: Float[np.ndarray, "step"]) -> Float[np.ndarray, "4"]:
    """How much directions change, in the four ways of `CHANGES`; NaN where there are too few steps."""
    centred = vectors - vectors.mean(axis=0)
    spread, norms = (centred**2).sum(), np.linalg.norm(vectors, axis=1).std()
    if len(steps) < 3:
        few = np.nan if len(steps) < 2 else 1.0
        return np.array([spread * few, norms * few, np.nan, np.nan])
    first, second = np.triu_indices(len(steps), 1)
    apart = np.abs(steps[first] - steps[second])
    apart -= apart.mean()
    fall = -(apart @ cosines(vectors)[first, second]) / (apart @ apart)
    squares = np.linalg.eigvalsh(centred @ centred.T)
    return np.array([spread, norms, fall, squares[-2:].sum() / (squares.sum() or 1.0)])


def cosines(vectors: Float[np.ndarray, "step d_model"]) -> Float[np.ndarray, "step step"]:
    """The cosine between any two directions."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1.0)
    return np.clip(unit @ unit.T, -1.0, 1.0)


def _weights(labels: Bool[np.ndarray, "n row"], kept: Bool[np.ndarray, "n row"]) -> Float[np.ndarray, "n row"]:
    """What each row counts in a difference of means; NaN if a side is empty."""
    yes, no = labels & kept, ~labels & kept
    with np.errstate(invalid="ignore", divide="ignore"):
        return yes / yes.sum(axis=1, keepdims=True) - no / no.sum(axis=1, keepdims=True)


def _norms(vectors: Float[np.ndarray, "n step d_model"]) -> Float[np.ndarray, "n test"]:
    """The norm of each step's direction, and of the one common to all."""
    return np.linalg.norm(np.concatenate([vectors, vectors.mean(axis=1, keepdims=True)], axis=1), axis=2)


def _mean(values: Float[np.ndarray, "n step step"]) -> Float[np.ndarray, "step step"]:
    """The mean over what is there; NaN where fewer than half of the splits have a value."""
    there = np.isfinite(values)
    total, count = np.where(there, values, 0.0).sum(axis=0), there.sum(axis=0)
    return np.where(2 * count >= len(values), total / np.maximum(count, 1), np.nan)


def _p(null: Float[np.ndarray, "n test"], own: Float[np.ndarray, "test"]) -> Float[np.ndarray, "test"]:
    """How often the null is as large; NaN where there is no test."""
    # A permutation that changes nothing must count, whatever the order of its sums did to the last bits.
    reached = (null >= own - 1e-9 * np.abs(own)).sum(axis=0)
    return np.where(np.isfinite(own), (reached + 1) / (len(null) + 1), np.nan)
