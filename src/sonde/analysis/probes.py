"""Does the model know that it is about to break the rules, at which layer, and can one tell without looking inside?

1. `sweep` maps: every cell (layer x pooling x all steps or one) is cross-validated with whole episodes held out; its
   p-value is that of a permutation test, corrected over all cells of the same moment, before or after speaking.
2. `nested` claims: inside each training part the cell is chosen by an inner cross-validation, fitted, and scored on
   the held-out episodes; the result is compared, pair by pair, with baselines on the same rows. A map has a best
   cell by luck; a choice that is made on training episodes has not.

AUROC compares rows of the same fold only: scores of two fits are not on one scale. The control is a probe on shuffled
labels (after Hewitt and Liang 2019); selectivity is what the probe has over it.

A cell of 3000 rows of 576 features costs about three seconds with three shuffles and 999 deals, a cell of one step a tenth.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sonde.analysis import baselines as baselines_
from sonde.analysis import examples as examples_
from sonde.analysis import held_out, permutation
from sonde.analysis import nested as nested_
from sonde.core import errors

Cell = examples_.Cell
Cells = examples_.Cells
Examples = examples_.Examples
Settings = examples_.Settings
Nested = nested_.Nested
POOLINGS = examples_.POOLINGS
nested = nested_.nested
Progress = Callable[[int, int], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class CellResult:
    """What a probe reached in one cell.

    Attributes:
        scored: AUROC and balanced accuracy on held-out episodes.
        p: One-sided p-value by permutation (see `permutation`): do states and labels belong together?
        adjusted: The same corrected over the cells of the same moment; equal to `p` for a cell by itself.
        control: Mean AUROC on shuffled labels; None without shuffles.
        n: Rows.
        positives: Rows with label True.
    """

    scored: held_out.Scored
    p: float
    adjusted: float
    control: float | None
    n: int
    positives: int

    @property
    def selectivity(self) -> float | None:
        """AUROC minus that of the control."""
        return None if self.control is None else self.scored.auroc.value - self.control

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {**dataclasses.asdict(self), "selectivity": self.selectivity}


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """The map of all cells.

    Attributes:
        cells: What was reached where.
        skipped: Why a cell has no result.
        baselines: For each moment and step (None: all), each baseline on the same rows and folds.
    """

    cells: Mapping[Cell, CellResult]
    skipped: Mapping[Cell, str]
    baselines: Mapping[tuple[str, int | None], Mapping[str, held_out.Scored]]

    def to_json(self) -> dict[str, Any]:
        """The map as JSON data."""
        return {
            "cells": [dataclasses.asdict(cell) | one.to_json() for cell, one in self.cells.items()],
            "skipped": [dataclasses.asdict(cell) | {"reason": why} for cell, why in self.skipped.items()],
            "baselines": [
                {"moment": moment, "step": step, "baseline": name, **one.to_json()}
                for (moment, step), named in self.baselines.items()
                for name, one in named.items()
            ],
        }


def cross_validate(
    features: Float[np.ndarray, "features d_model"], examples: Examples, settings: Settings | None = None
) -> CellResult:
    """Probes one array of features on held-out episodes.

    Raises:
        AnalysisError: The data cannot be cross-validated; the message says why.
    """
    settings = settings or Settings()
    examples_.check_rows(examples, settings.folds)
    examples_.check_features(features, examples, "this cell")
    folds = held_out.assign_folds(examples, settings.folds, settings.seed)
    if reason := examples_.too_few(examples.labels, folds, settings.least):
        raise errors.AnalysisError(f"{reason}; collect more episodes, or lower `least`")
    whole, at = features.astype(np.float64), (np.arange(len(examples)), folds)
    dealt = permutation.deals(examples, settings.deals, settings.seed)
    found = permutation.aurocs(whole, dealt, folds, settings.strength)
    p = float(permutation.p_values(found[None])[0][0])
    return dataclasses.replace(_probed(whole, examples, at, settings), p=p, adjusted=p)


def sweep(
    cells: Cells, examples: Examples, settings: Settings | None = None, *, progress: Progress = lambda done, of: None
) -> Sweep:
    """Probes every cell, and runs the baselines on the same rows and folds.

    Args:
        cells: Features per cell, always one row per example; cells of several steps may share an array.
        examples: The rows.
        settings: How to fit and judge.
        progress: Called with the number of cells done, and of all.

    Raises:
        AnalysisError: The data cannot be probed at all. A cell with too few rows is skipped and says so.
    """
    settings = settings or Settings()
    examples_.check(cells, examples, settings)
    folds = held_out.assign_folds(examples, settings.folds, settings.seed)
    dealt = permutation.deals(examples, settings.deals, settings.seed)
    results, skipped, beside, by_deal = {}, {}, {}, {}
    for done, (cell, features) in enumerate(held_out.wide(cells).items()):
        progress(done, len(cells))
        rows, place = examples.rows(cell.step), (cell.moment, cell.step)
        if reason := examples_.too_few(examples.labels[rows], folds[rows], settings.least):
            skipped[cell] = reason
            continue
        results[cell] = _probed(features, examples, (rows, folds), settings)
        by_deal[cell] = permutation.aurocs(features[rows], dealt[rows], folds[rows], settings.strength)
        if place not in beside:
            scorers = baselines_.scorers(examples, cell.moment, features.shape[1], settings)
            beside[place] = {
                name: held_out.judged(one, examples, (rows, folds), settings) for name, one in scorers.items()
            }
    progress(len(cells), len(cells))
    return Sweep(_tested(results, by_deal), skipped, beside)


def _probed(
    features: Float[np.ndarray, "row d_model"],
    examples: Examples,
    at: tuple[Int[np.ndarray, "chosen"], Int[np.ndarray, "row"]],
    settings: Settings,
) -> CellResult:
    scored = held_out.judged(held_out.linear(features, examples.labels, settings.strength), examples, at, settings)
    control = held_out.shuffled_auroc(features, examples, at, settings)
    return CellResult(scored, 1.0, 1.0, control, len(at[0]), int(examples.labels[at[0]].sum()))


def _tested(results: dict[Cell, CellResult], by_deal: dict[Cell, Float[np.ndarray, "deal"]]) -> dict[Cell, CellResult]:
    """Gives the cells their p-values, corrected over the cells of each moment."""
    tested = dict(results)
    for moment in ("before", "after"):
        family = [cell for cell in results if cell.moment == moment]
        if family:
            own, corrected = permutation.p_values(np.stack([by_deal[cell] for cell in family]))
            for cell, p, adjusted in zip(family, own, corrected, strict=True):
                tested[cell] = dataclasses.replace(results[cell], p=float(p), adjusted=float(adjusted))
    return tested
