"""Is the model's state worth more than what is known anyway, if the place to look is chosen honestly?

1. Divide the episodes into outer folds. For each, on the other folds only:
2. cross-validate every cell on inner folds (by least squares: it ranks rows nearly as the probe does and costs less);
   the best cell is the one whose AUROC less its standard error is highest;
3. among cells within one standard error of the best take the earliest layer (of several there, the best);
4. fit that cell on the training rows, and score the held-out rows of its step, as every baseline does.
5. Judge all held-out rows together, and the difference to each baseline with episodes as clusters (Holm).

Costs `folds x inner_folds` least-squares fits per cell, and `folds` fits of the probe and of each baseline.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sonde.analysis import baselines as baselines_
from sonde.analysis import examples as examples_
from sonde.analysis import held_out, jackknife, stats
from sonde.core import errors


@dataclasses.dataclass(frozen=True, slots=True)
class Gain:
    """AUROC over a baseline on the same rows: the baseline's own, the difference, its p-value, and that corrected."""

    baseline: stats.Estimate
    difference: stats.Estimate
    p: float
    adjusted: float

    def to_json(self) -> dict[str, Any]:
        """The gain as JSON data."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Nested:
    """What the whole procedure, choice of the cell included, reaches on episodes it has not seen.

    Attributes:
        scored: AUROC and balanced accuracy.
        p: Two-sided p-value of the AUROC against 0.5.
        choices: The cell chosen in each outer fold.
        modal: The cell chosen most often, the earliest layer if several are.
        gains: The difference to each baseline.
        control: Mean AUROC at the chosen cells when labels are shuffled; None without shuffles.
        claim: Whether AUROC is above chance and above every baseline of what is known anyway, after correction.
        why: The reason in a sentence.
    """

    scored: held_out.Scored
    p: float
    choices: tuple[examples_.Cell, ...]
    modal: examples_.Cell
    gains: Mapping[str, Gain]
    control: float | None
    claim: bool
    why: str

    @property
    def selectivity(self) -> float | None:
        """AUROC minus that of the control."""
        return None if self.control is None else self.scored.auroc.value - self.control

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {**dataclasses.asdict(self), "selectivity": self.selectivity}


@dataclasses.dataclass(frozen=True, slots=True)
class _Fold:
    """One outer fold: the cell chosen, the rows held out, and what each scorer says of them."""

    cell: examples_.Cell
    rows: Int[np.ndarray, "test"]
    scores: dict[str, Float[np.ndarray, "test"]]


def nested(
    cells: examples_.Cells,
    examples: examples_.Examples,
    settings: examples_.Settings | None = None,
    *,
    progress: Callable[[int, int], Any] = lambda done, of: None,
) -> Nested:
    """Chooses a cell on training episodes, and scores the choice on held-out ones beside every baseline.

    Args:
        cells: Features per cell, one row per example; all of one moment, before or after speaking.
        examples: The rows.
        settings: How to fit and judge.
        progress: Called with the number of outer folds done, and of all.

    Raises:
        AnalysisError: The data cannot be probed, or the cells mix moments.
    """
    settings = settings or examples_.Settings()
    examples_.check(cells, examples, settings)
    moment = examples_.one_moment(list(cells))
    wide = held_out.wide(cells)
    width = next(iter(wide.values())).shape[1]
    beside = baselines_.scorers(examples, moment, width, settings)
    folds = held_out.assign_folds(examples, settings.folds, settings.seed)
    outer = []
    for fold in range(settings.folds):
        progress(fold, settings.folds)
        outer.append(_outer(wide, examples, (fold, folds), beside, settings))
    progress(settings.folds, settings.folds)
    return _concluded(outer, examples, folds, (_control(outer, wide, examples, folds, settings), settings))


def _outer(
    cells: dict[examples_.Cell, Float[np.ndarray, "row d_model"]],
    examples: examples_.Examples,
    at: tuple[int, Int[np.ndarray, "row"]],
    beside: held_out.Scorers,
    settings: examples_.Settings,
) -> _Fold:
    fold, folds = at
    cell = _choose(cells, examples, np.flatnonzero(folds != fold), (settings, fold))
    rows = examples.rows(cell.step)
    train, test = rows[folds[rows] != fold], rows[folds[rows] == fold]
    probe = held_out.linear(cells[cell], examples.labels, settings.strength)
    return _Fold(cell, test, {name: one(train, test) for name, one in {"probe": probe, **beside}.items()})


def _choose(
    cells: dict[examples_.Cell, Float[np.ndarray, "row d_model"]],
    examples: examples_.Examples,
    train: Int[np.ndarray, "train"],
    at: tuple[examples_.Settings, int],
) -> examples_.Cell:
    """Chooses a cell by an inner cross-validation on the training rows."""
    settings, fold = at
    part = examples_.Examples(examples.labels[train], examples.episodes[train], examples.steps[train])
    examples_.check_rows(part, settings.inner_folds)
    inner = np.full(len(examples), -1, dtype=np.int64)
    inner[train] = held_out.assign_folds(part, settings.inner_folds, settings.seed + 1 + fold)
    found: dict[examples_.Cell, jackknife.Jackknife] = {}
    reasons = []
    for cell, features in cells.items():
        rows = train if cell.step is None else train[examples.steps[train] == cell.step]
        if reason := examples_.too_few(examples.labels[rows], inner[rows], settings.least):
            reasons.append(f"{cell}: {reason}")
            continue
        scores = held_out.across(held_out.quick(features, examples.labels, settings.strength), rows, inner)
        one = jackknife.of_auroc(examples.labels[rows], scores, examples.episodes[rows], inner[rows])
        if np.isfinite(one.error):
            found[cell] = one
    if not found:
        raise errors.AnalysisError(
            f"no cell has enough rows to be chosen on the training part of fold {fold} ({'; '.join(reasons[:3])}); "
            "collect more episodes, lower `least`, or use fewer folds"
        )
    return _earliest(found)


def _earliest(found: dict[examples_.Cell, jackknife.Jackknife]) -> examples_.Cell:
    """The earliest layer within one standard error of the best cell, and the surest cell there."""
    sure = {cell: one.value - one.error for cell, one in found.items()}
    best = found[max(found, key=sure.__getitem__)]
    near = [cell for cell, one in found.items() if one.value >= best.value - best.error]
    layer = min(cell.layer for cell in near)
    return max((cell for cell in near if cell.layer == layer), key=sure.__getitem__)


def _control(
    outer: list[_Fold],
    cells: dict[examples_.Cell, Float[np.ndarray, "row d_model"]],
    examples: examples_.Examples,
    folds: Int[np.ndarray, "row"],
    settings: examples_.Settings,
) -> float | None:
    """Mean over the outer folds of the shuffled-label AUROC of the cell chosen there."""
    chosen = {one.cell for one in outer}
    known = {
        cell: held_out.shuffled_auroc(cells[cell], examples, (examples.rows(cell.step), folds), settings)
        for cell in cells
        if cell in chosen
    }
    values = [value for value in (known[one.cell] for one in outer) if value is not None]
    return float(np.mean(values)) if values else None


def _concluded(
    outer: list[_Fold],
    examples: examples_.Examples,
    folds: Int[np.ndarray, "row"],
    rest: tuple[float | None, examples_.Settings],
) -> Nested:
    control, settings = rest
    rows = np.concatenate([one.rows for one in outer])
    scores = {name: np.concatenate([one.scores[name] for one in outer]) for name in outer[0].scores}
    labels, groups = examples.labels[rows], (examples.episodes[rows], folds[rows])
    scored = held_out.judge(scores["probe"], labels, groups, settings.level)
    gains = _gains(scores, labels, groups, settings.level)
    choices = tuple(one.cell for one in outer)
    counts = Counter(choices)
    modal = min(
        counts, key=lambda cell: (-counts[cell], cell.layer, cell.pooling, -1 if cell.step is None else cell.step)
    )
    p = jackknife.p_value(jackknife.of_auroc(labels, scores["probe"], *groups), 0.5)
    claim, why = _claim(scored.auroc, p, gains, settings.alpha)
    return Nested(scored, p, choices, modal, gains, control, claim, why)


def _gains(
    scores: dict[str, Float[np.ndarray, "row"]],
    labels: Bool[np.ndarray, "row"],
    groups: tuple[Int[np.ndarray, "row"], Int[np.ndarray, "row"]],
    level: float,
) -> dict[str, Gain]:
    found = {name: jackknife.of_auroc(labels, one, *groups) for name, one in scores.items()}
    probe = found.pop("probe")
    differences = {name: jackknife.difference(probe, one) for name, one in found.items()}
    p = {name: jackknife.p_value(one, 0.0) for name, one in differences.items()}
    adjusted = dict(zip(p, stats.holm(list(p.values())), strict=True))
    return {
        name: Gain(stats.estimate(one, level), stats.estimate(differences[name], level), p[name], float(adjusted[name]))
        for name, one in found.items()
    }


def _claim(auroc: stats.Estimate, p: float, gains: Mapping[str, Gain], alpha: float) -> tuple[bool, str]:
    """Decides, and says why."""
    reached = f"AUROC {auroc.value:.2f} [{auroc.low:.2f}, {auroc.high:.2f}] on {auroc.clusters} held-out episodes"
    if auroc.value <= 0.5 or p > alpha:
        return False, f"{reached} is not above chance (p = {p:.2g})."
    known = {name: gain for name, gain in gains.items() if name in baselines_.KNOWN}
    strongest = max(known, key=lambda name: known[name].baseline.value)
    lost = {name: gain for name, gain in known.items() if gain.difference.value <= 0 or gain.adjusted > alpha}
    if lost:
        name = strongest if strongest in lost else max(lost, key=lambda name: lost[name].adjusted)
        return False, (
            f"{reached} is above chance, but not shown to be above the baseline {name!r} "
            f"(AUROC {lost[name].baseline.value:.2f}, corrected p = {lost[name].adjusted:.2g})."
        )
    gain = known[strongest]
    return True, (
        f"{reached} is above chance and above every baseline; the strongest, {strongest!r}, reaches "
        f"{gain.baseline.value:.2f} (corrected p = {gain.adjusted:.2g})."
    )
