"""Does the direction that tells valid from invalid change over an episode, or is that noise?

    found = evolution(features, labels, steps, episodes, Options(seed=1))
    print(found.sentences())

Directions of single steps rest on few episodes and are mostly noise; and since neighbouring steps share their episodes,
they share some of it. So a cosine of 0.4 between steps may be a fall from 0.9, or all that can be had, or nothing at all.

1. Directions: mean(True) - mean(False) at each step, their norms, cosines, and path in the plane of a PCA.
2. Split halves: the episodes are cut in two, many times. The cosine between the halves' directions of one step is the
   ceiling for the cosine between two steps, taken across halves as well. Their ratio is corrected for attenuation:
   mean <d_s, d_t> over sqrt(mean <d_s, d_s> x mean <d_t, d_t>), all across halves. It may exceed 1.
3. No signal: labels are handed from episode to episode (`directions.permuted_labels`). A norm stands if it exceeds its
   permuted ones; so does the norm of the direction common to all steps, their mean (Holm over steps and that one).
4. No change: one direction for all steps, plus the noise of the same permutations, from features that the common direction
   has been taken out of. Change is claimed if the directions are spread more widely than that, their norms vary more,
   their cosines fall more steeply with the distance of steps, or two axes explain more (Holm over the four), and
   only if step 3 found a signal at all.

p-values are (k + 1) / (n + 1). Cost: one matrix product per step and permutation; about 2 s for 50 episodes of 20 steps,
576 dimensions and 1999 permutations.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sonde.analysis import directions, stats, step_noise
from sonde.core import errors

DERIVED = ("norm", "common_norm", "cosine", "path", "explained", "ceiling", "stands", "signal", "changes")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to analyse.

    Attributes:
        least: Rows that each side of a step must have.
        splits: How many split halves.
        permutations: How many permutations.
        level: Of significance.
        seed: Fixes splits and permutations.
    """

    least: int = 5
    splits: int = 200
    permutations: int = 1999
    level: float = 0.05
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evolution:
    """How directions change over steps, and how far that can be believed. What cannot be had is NaN.

    Attributes:
        steps: The steps that have a direction, and `positive`, `negative` their rows.
        left_out: Steps without one, and why.
        episodes: How many episodes.
        vectors: The directions.
        half_cosine: Across split halves; the diagonal is the ceiling.
        corrected: Cosines corrected for attenuation, between steps whose norms stand.
        cosine_null: Mean cosine under permuted labels: what shared episodes alone give.
        norm_null: The 95th percentile of norms under permuted labels; `norm_p` of the norms, corrected.
        common_p: Of the direction common to all steps, corrected.
        explained_null: The 95th percentile of what two axes explain if nothing changes.
        change_p: By each way of change, corrected.
        options: How it was analysed.
    """

    steps: tuple[int, ...]
    positive: tuple[int, ...]
    negative: tuple[int, ...]
    left_out: dict[int, str]
    episodes: int
    vectors: Float[np.ndarray, "step d_model"]
    half_cosine: Float[np.ndarray, "step step"]
    corrected: Float[np.ndarray, "step step"]
    cosine_null: Float[np.ndarray, "step step"]
    norm_null: Float[np.ndarray, "step"]
    norm_p: Float[np.ndarray, "step"]
    common_p: float
    explained_null: float
    change_p: dict[str, float]
    options: Options

    @property
    def norm(self) -> Float[np.ndarray, "step"]:
        """The norm of each direction."""
        return np.linalg.norm(self.vectors, axis=1)

    @property
    def common_norm(self) -> float:
        """The norm of the direction common to all steps."""
        return float(np.linalg.norm(self.vectors.mean(axis=0)))

    @property
    def cosine(self) -> Float[np.ndarray, "step step"]:
        """Between the directions of steps, all rows used, as published."""
        return step_noise.cosines(self.vectors)

    @property
    def path(self) -> Float[np.ndarray, "step 2"]:
        """Where each step is in the plane of the first two principal components."""
        return _plane(self.vectors)[0]

    @property
    def explained(self) -> Float[np.ndarray, "2"]:
        """The two components' shares of the variance between steps."""
        return _plane(self.vectors)[1]

    @property
    def ceiling(self) -> Float[np.ndarray, "step"]:
        """The cosine between split halves of the same step: no cosine between steps can be expected to be higher."""
        return np.diagonal(self.half_cosine).copy()

    @property
    def stands(self) -> Bool[np.ndarray, "step"]:
        """At which steps the norm exceeds its permutation null after correction."""
        return self.norm_p <= self.options.level

    @property
    def signal(self) -> bool:
        """Whether any direction, of a step or common to all, is more than noise."""
        return bool(self.stands.any() or self.common_p <= self.options.level)

    @property
    def changes(self) -> tuple[str, ...]:
        """The ways of change that are more than noise; none unless there is a signal."""
        if not self.signal:
            return ()
        return tuple(name for name, p in self.change_p.items() if p <= self.options.level)

    def to_json(self) -> dict[str, Any]:
        """As JSON data, the vectors left out; NaN becomes None."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "vectors":
                found[field.name] = dataclasses.asdict(value) if isinstance(value, Options) else value
        for name in DERIVED:
            found[name] = getattr(self, name)
        return _plain(found | {"sentences": self.sentences()})

    def sentences(self) -> list[str]:
        """What stands and what is within noise, in words."""
        count, standing = len(self.steps), int(self.stands.sum())
        told = [f"The norm exceeds its permutation null at {standing} of {count} steps after correction."]
        if self.left_out:
            told.append(f"{len(self.left_out)} steps are left out: too few rows on a side, or all rows alike.")
        common = "exceeds its null" if self.common_p <= self.options.level else "is within noise"
        told.append(f"The norm of the direction common to all steps {common} (p = {self.common_p:.3g} corrected).")
        if not self.signal:
            return [*told, "No direction stands, so nothing is said about how directions change."]
        ceiling = self.ceiling[self.stands & np.isfinite(self.ceiling)]
        if len(ceiling):
            told.append(
                f"Where one stands, split halves agree with a mean cosine of {ceiling.mean():.2f}: the ceiling."
            )
        between = self.corrected[np.triu_indices(count, 1)]
        if np.isfinite(between).any():
            told.append(
                f"Between those steps the mean cosine is {np.nanmean(between):.2f}, corrected for attenuation "
                "(1 would be the same direction)."
            )
        for name, p in self.change_p.items():
            if np.isfinite(p):
                verdict = "this stands" if name in self.changes else "this is within noise"
                told.append(f"Change: {step_noise.CHANGES[name]}? p = {p:.3g} corrected: {verdict}.")
        return told


def evolution(
    features: Float[np.ndarray, "row d_model"],
    labels: Bool[np.ndarray, "row"],
    steps: Int[np.ndarray, "row"],
    episodes: Shaped[np.ndarray, "row"],
    options: Options | None = None,
) -> Evolution:
    """Follows the contrastive direction from step to step.

    Args:
        features: Values at one Site, one row for each step of each episode.
        labels: Which side a row is on.
        steps: Which step of its episode.
        episodes: Which episode.
        options: How to analyse.

    Raises:
        AnalysisError: No step has enough rows, or too few permutations for as many steps.
    """
    options = options or Options()
    rows, left_out = _rows(features, labels, steps, episodes, options)
    rng = np.random.default_rng(options.seed)
    vectors = rows.directions(rows.labels[None], np.ones((1, len(rows.labels)), dtype=bool))[0]
    inner, half_cosine = step_noise.halves(rows, options.splits, rng)
    null = step_noise.permuted(rows, vectors, inner, options.permutations, rng)
    *norm_p, common_p = stats.holm(null.norm_p)
    norm_p = np.array(norm_p)
    return Evolution(
        steps=rows.steps,
        positive=tuple(int(rows.labels[index].sum()) for index in rows.by_step),
        negative=tuple(int((~rows.labels[index]).sum()) for index in rows.by_step),
        left_out=left_out,
        episodes=len(np.unique(rows.episodes)),
        vectors=vectors,
        half_cosine=half_cosine,
        corrected=_corrected(inner, norm_p <= options.level),
        cosine_null=null.cosine,
        norm_null=null.norm,
        norm_p=norm_p,
        common_p=float(common_p),
        explained_null=null.explained,
        change_p=dict(zip(step_noise.CHANGES, stats.holm(null.change_p).tolist(), strict=True)),
        options=options,
    )


def _rows(
    features: Float[np.ndarray, "row d_model"],
    labels: Bool[np.ndarray, "row"],
    steps: Int[np.ndarray, "row"],
    episodes: Shaped[np.ndarray, "row"],
    options: Options,
) -> tuple[step_noise.StepRows, dict[int, str]]:
    """The rows to analyse, and the steps that are left out."""
    # The Site is not looked at here: any will do to learn which steps have enough rows.
    found = directions.per_step(features, labels, steps, site="hook_embed", least=options.least)
    chosen = tuple(found.directions)
    if not chosen:
        raise errors.AnalysisError(f"no step has a direction: {dict(found.left_out)}; collect more episodes")
    needed = int(np.ceil((len(chosen) + 1) / options.level)) - 1
    if options.permutations < needed:
        raise errors.AnalysisError(
            f"{options.permutations} permutations cannot show anything at {len(chosen)} steps and level {options.level}: "
            f"take at least {needed}"
        )
    kept = np.isin(steps, chosen)
    numbers = steps[kept]
    by_step = tuple(np.flatnonzero(numbers == step) for step in chosen)
    values = features[kept].astype(np.float64)
    for index in by_step:  # directions do not care, but a large common mean costs digits
        values[index] -= values[index].mean(axis=0)
    rows = step_noise.StepRows(values, labels[kept], numbers, episodes[kept], chosen, by_step)
    return rows, dict(found.left_out)


def _plane(vectors: Float[np.ndarray, "step d_model"]) -> tuple[Float[np.ndarray, "step 2"], Float[np.ndarray, "2"]]:
    """Where each step is in the plane that shows most of the differences, and what its axes explain."""
    if len(vectors) < 3:
        return np.full((len(vectors), 2), np.nan), np.full(2, np.nan)
    left, lengths, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    path = np.zeros((len(vectors), 2))
    path[:, : left.shape[1]] = (left * lengths)[:, :2]
    # The sign of an axis is anybody's choice; this one does not depend on the library.
    path *= np.where(path[np.abs(path).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    shares = np.append(lengths**2, 0.0)[:2] / ((lengths**2).sum() or 1.0)
    return path, shares


def _corrected(
    inner: Float[np.ndarray, "step step"], stands: Bool[np.ndarray, "step"]
) -> Float[np.ndarray, "step step"]:
    own = np.diagonal(inner)
    usable = np.where(stands & (own > 0), own, np.nan)
    return inner / np.sqrt(usable[:, None] * usable)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
