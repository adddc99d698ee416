"""What does a probe learn from? Rows of an experiment, the cells they are probed in, and the settings.

A row is one step of one episode, with its label: was the message that followed invalid? Checks happen here, once, so
that what comes later can trust its data. Costs nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from sonde.core import errors

Moment = Literal["before", "after"]

# When each pooling is read: before the model speaks, or after, when the message itself is in view.
POOLINGS: Mapping[str, Moment] = {
    "last_prompt": "before",
    "mean_prompt": "before",
    "mean_generated": "after",
    "last_generated": "after",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """Where and when a probe looks: a layer, a pooling, and one step or, if None, all steps together."""

    layer: int
    pooling: str
    step: int | None = None

    @property
    def moment(self) -> Moment:
        """Whether the model has spoken by then.

        Raises:
            AnalysisError: The pooling is unknown.
        """
        if self.pooling not in POOLINGS:
            hint = errors.suggest(self.pooling, POOLINGS)
            raise errors.AnalysisError(f"no pooling {self.pooling!r}, expected one of {', '.join(POOLINGS)}{hint}")
        return POOLINGS[self.pooling]

    def __str__(self) -> str:
        return f"layer {self.layer}, {self.pooling}, " + ("all steps" if self.step is None else f"step {self.step}")


Cells = Mapping[Cell, Float[np.ndarray, "row d_model"]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How probes are fitted and judged.

    Attributes:
        folds: Parts into which episodes are divided.
        inner_folds: Parts of the training episodes, when a cell is chosen on them.
        strength: Inverse of the L2 penalty (scikit-learn's C) on standardised features; small is strong.
        least: Rows of each class that every training fold must have, or the cell is skipped.
        shuffles: Fits on shuffled labels per cell, for the control.
        deals: Permutations of the labels, for the p-values of a sweep.
        alpha: Corrected level at which something is claimed.
        level: Coverage of intervals.
        seed: Fixes folds, shuffles and random features.
    """

    folds: int = 5
    inner_folds: int = 4
    strength: float = 0.01
    least: int = 8
    shuffles: int = 3
    deals: int = 999
    alpha: float = 0.05
    level: float = 0.95
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON data."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Examples:
    """The rows of an experiment, in any order.

    Attributes:
        labels: What is to be predicted: True if the message is invalid.
        episodes: A number per episode.
        steps: The step of the row in its episode; an episode has each step at most once.
        texts: The message itself, for the bag-of-words baseline of probes that look after speaking.
        before: The text in view before the model speaks (the conversation so far), for probes that look before.
    """

    labels: Bool[np.ndarray, "row"]
    episodes: Int[np.ndarray, "row"]
    steps: Int[np.ndarray, "row"]
    texts: tuple[str, ...] | None = None
    before: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        named: tuple[tuple[str, Any], ...] = (
            ("episodes", self.episodes),
            ("steps", self.steps),
            ("texts", self.texts),
            ("before", self.before),
        )
        for name, column in named:
            if column is not None and len(column) != len(self.labels):
                raise errors.AnalysisError(
                    f"{name} has {len(column)} rows, labels has {len(self.labels)}: give every column one entry per row"
                )
        pairs = np.stack([self.episodes, self.steps], axis=1)
        if len(np.unique(pairs, axis=0)) < len(pairs):
            seen, counts = np.unique(pairs, axis=0, return_counts=True)
            episode, step = seen[counts.argmax()]
            raise errors.AnalysisError(f"episode {episode} has step {step} more than once: give one row per step")

    def __len__(self) -> int:
        return len(self.labels)

    def known(self, moment: Moment) -> tuple[str, ...] | None:
        """The text in view at a moment."""
        return self.before if moment == "before" else self.texts

    def rows(self, step: int | None) -> Int[np.ndarray, "chosen"]:
        """Indices of the rows of a step, or of all.

        Raises:
            AnalysisError: No episode reached the step.
        """
        chosen = np.arange(len(self)) if step is None else np.flatnonzero(self.steps == step)
        if not len(chosen):
            raise errors.AnalysisError(
                f"no episode reached step {step}; rows exist for steps {self.steps.min()} to {self.steps.max()}: "
                "leave that cell out, or collect longer episodes"
            )
        return chosen

    def previous(self) -> tuple[Bool[np.ndarray, "row"], Bool[np.ndarray, "row"], Float[np.ndarray, "row"]]:
        """For each row: is there an earlier one in its episode, the label of the last such, the mean of all such."""
        exists, last = np.zeros(len(self), dtype=np.bool_), np.zeros(len(self), dtype=np.bool_)
        mean = np.full(len(self), 0.5)
        order = np.lexsort((self.steps, self.episodes))
        for rows in np.split(order, np.flatnonzero(np.diff(self.episodes[order])) + 1):
            exists[rows[1:]], last[rows[1:]] = True, self.labels[rows[:-1]]
            mean[rows[1:]] = np.cumsum(self.labels[rows[:-1]]) / np.arange(1, len(rows))
        return exists, last, mean


def check(cells: Cells, examples: Examples, settings: Settings) -> None:
    """Refuses data that cannot be probed.

    Raises:
        AnalysisError: No cell, an unknown pooling, a step nobody reached, one class only, fewer episodes or rows of a
            class than folds, features with too many or too few rows, or with values that are not finite.
    """
    if not cells:
        raise errors.AnalysisError("no cells to probe: give features for at least one layer and pooling")
    check_rows(examples, settings.folds)
    checked: set[int] = set()
    for cell, features in cells.items():
        cell.moment  # noqa: B018 - refuses an unknown pooling
        examples.rows(cell.step)
        if id(features) not in checked:
            check_features(features, examples, str(cell))
            checked.add(id(features))


def check_rows(examples: Examples, folds: int) -> None:
    """Refuses labels of one class only, and too few episodes or rows of a class for the folds."""
    positives, total = int(examples.labels.sum()), len(examples)
    if positives in (0, total):
        raise errors.AnalysisError(
            f"all {total} rows are {'invalid' if positives else 'valid'}: a probe needs both classes; collect more "
            "episodes, or play at another temperature so that both occur"
        )
    if folds < 2:
        raise errors.AnalysisError(f"cross-validation needs at least 2 folds, got {folds}")
    for what, count in (
        ("episodes", len(np.unique(examples.episodes))),
        ("invalid rows", positives),
        ("valid rows", total - positives),
    ):
        if count < folds:
            raise errors.AnalysisError(f"{count} {what} cannot fill {folds} folds; collect more, or set folds={count}")


def check_features(features: Float[np.ndarray, "features d_model"], examples: Examples, where: str) -> None:
    """Refuses features that do not fit the rows, or are not finite."""
    if len(features) != len(examples):
        raise errors.AnalysisError(
            f"features of {where} have {len(features)} rows, the examples {len(examples)}: give one row per example "
            "(all steps, also for a cell of one step)"
        )
    broken = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(broken):
        raise errors.AnalysisError(
            f"features of {where} are nan or infinite in {len(broken)} of {len(features)} rows, first in row "
            f"{broken[0]}; record again with dtype float32, or leave those rows out everywhere"
        )


def too_few(labels: Bool[np.ndarray, "row"], folds: Int[np.ndarray, "row"], least: int) -> str | None:
    """Says why rows cannot be cross-validated: the smallest class in the training part of some fold; None if they can."""
    present = np.unique(folds)
    counts = [min(int(kept.sum()), int((~kept).sum())) for kept in (labels[folds != fold] for fold in present)]
    fewest = min(counts, default=0)
    if fewest < least:
        return f"{fewest} rows of a class in a training fold, at least {least} are needed ({len(labels)} rows)"
    if not any(0 < int(labels[folds == fold].sum()) < int((folds == fold).sum()) for fold in present):
        return f"no held-out fold has both classes ({int(labels.sum())} positives in {len(labels)} rows)"
    return None


def one_moment(cells: Sequence[Cell]) -> Moment:
    """Returns the moment all cells share.

    Raises:
        AnalysisError: Some look before the model speaks and some after.
    """
    moments: list[Moment] = [cell.moment for cell in cells]
    if len(set(moments)) > 1:
        raise errors.AnalysisError(
            "a choice among cells that look before and after speaking answers neither question; call it once for each "
            f"(poolings given: {', '.join(sorted({cell.pooling for cell in cells}))})"
        )
    return moments[0]
