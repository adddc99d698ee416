"""What was found: the impact matrix, the cells that were rolled out, the heads, and which of it may be claimed.

A cell is claimed as critical if its ablation changes how the later steps go: mean over the episodes of the paired
difference to the sham, sign-flip test, Holm-corrected over all cells that were rolled out, chosen and random. The
outcome tested is the share of valid later messages; the reward of the later steps, where there are no verdicts.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sonde import store
from sonde.analysis import stats
from sonde.core import errors
from sonde.studies.critical_steps import settings as study_settings


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A layer at a step."""

    step: int
    layer: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """The screening: mean over episodes, with intervals.

    Attributes:
        layers: The rows.
        steps: The columns.
        value: Impact in nats per token; nan where fewer than two episodes have the step.
        low: Lower ends of the intervals.
        high: Upper ends.
        n: Episodes behind each column.
        sham: The largest impact of the sham: what rounding does.
    """

    layers: tuple[int, ...]
    steps: tuple[int, ...]
    value: Float[np.ndarray, "layer step"]
    low: Float[np.ndarray, "layer step"]
    high: Float[np.ndarray, "layer step"]
    n: Int[np.ndarray, "step"]
    sham: float

    def to_json(self) -> dict[str, Any]:
        """As JSON data; what is not a number becomes null."""
        return store.jsonable(
            {
                "layers": list(self.layers),
                "steps": list(self.steps),
                "n": self.n.tolist(),
                "sham": self.sham,
                **{name: plain(getattr(self, name)) for name in ("value", "low", "high")},
            }
        )


@dataclasses.dataclass(frozen=True, slots=True)
class CellResult:
    """A cell that was rolled out.

    Attributes:
        cell: Which.
        chosen: Whether it stood out in the screening; otherwise it was drawn at random.
        impact: Its screening score, nats per token.
        own: Change of the share of valid messages at the step itself, in per one; not tested.
        later: Change of the share of valid messages at later steps; None without verdicts.
        reward: Change of the reward of the later steps.
        p: Holm-corrected p-value of the outcome that is tested.
        critical: Whether it may be claimed.
    """

    cell: Cell
    chosen: bool
    impact: float
    own: float | None
    later: stats.Paired | None
    reward: stats.Paired | None
    p: float | None
    critical: bool

    def tested(self, outcome: str) -> stats.Paired | None:
        """The comparison that is tested: `later` or `reward`."""
        return self.later if outcome == "later" else self.reward

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        plain_fields = {"chosen": self.chosen, "impact": self.impact, "own": self.own, "p_holm": self.p}
        comparisons = {
            name: None if (pair := getattr(self, name)) is None else pair.to_json() for name in ("later", "reward")
        }
        return {**dataclasses.asdict(self.cell), **plain_fields, **comparisons, "critical": self.critical}


@dataclasses.dataclass(frozen=True, slots=True)
class HeadResult:
    """A head of a chosen cell: its impact in the screening, with the interval over episodes."""

    cell: Cell
    head: int
    impact: stats.Estimate

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {**dataclasses.asdict(self.cell), "head": self.head, "impact": self.impact.to_json()}


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CriticalSteps:
    """What a study found.

    Attributes:
        settings: What fixes it.
        outcome: What was tested: `later`, the share of valid later messages, or `reward`, that of the later steps.
        matrix: The screening.
        cells: What was rolled out, by step and layer.
        heads: Heads of the chosen cells.
        folder: The run's folder.
        seconds: By stage, the time that this call took.
    """

    settings: study_settings.Settings
    outcome: str
    matrix: Matrix
    cells: tuple[CellResult, ...]
    heads: tuple[HeadResult, ...]
    folder: Path
    seconds: Mapping[str, float]

    @property
    def critical(self) -> tuple[Cell, ...]:
        """The cells that may be claimed."""
        return tuple(one.cell for one in self.cells if one.critical)

    @property
    def critical_steps(self) -> tuple[int, ...]:
        """Their steps."""
        return tuple(sorted({cell.step for cell in self.critical}))

    def to_json(self) -> dict[str, Any]:
        """As JSON data; equal for equal seeds, but for `timing`."""
        return {
            "study": "critical-steps",
            "settings": self.settings.to_json(),
            "outcome": self.outcome,
            "critical_steps": list(self.critical_steps),
            "matrix": self.matrix.to_json(),
            "cells": [one.to_json() for one in self.cells],
            "heads": [one.to_json() for one in self.heads],
            "timing": {"seconds": dict(self.seconds)},
        }


def matrix_of(
    settings: study_settings.Settings, steps: Sequence[int], screened: Sequence[Mapping[int, Sequence[float]]]
) -> Matrix:
    """The impact matrix of all episodes.

    Args:
        settings: The study's.
        steps: The columns.
        screened: For each episode, by step, the scores of the sham and of each layer.
    """
    shape = (len(settings.layers), len(steps))
    value, low, high = (np.full(shape, np.nan) for _ in range(3))
    counts = np.zeros(len(steps), dtype=np.int64)
    for column, step in enumerate(steps):
        scores = np.array([episode[step][1:] for episode in screened if step in episode], dtype=np.float64)
        counts[column] = len(scores)
        for row in range(shape[0] if len(scores) > 1 else 0):
            found = stats.mean_interval(scores[:, row], np.arange(len(scores)))
            value[row, column], low[row, column], high[row, column] = found.value, found.low, found.high
    sham = max((scores[0] for episode in screened for scores in episode.values()), default=0.0)
    return Matrix(settings.layers, tuple(steps), value, low, high, counts, sham)


def choose(matrix: Matrix, steps: Sequence[int], cells: int | None, seed: int) -> tuple[list[Cell], list[Cell]]:
    """Cells to roll out: those that stand out, and as many random others.

    First every step's strongest layer, strongest step first; then every step's second, and so on. So a step is not
    passed over because another has several strong layers: the screening says where in depth a step is made, not which
    step matters later.

    Args:
        matrix: The screening.
        steps: Steps that have later ones.
        cells: How many; None: one per step.
        seed: Draws the random ones.
    """
    ranked: list[tuple[int, float, Cell]] = []
    for column, step in enumerate(matrix.steps):
        if step in steps:
            order = sorted(range(len(matrix.layers)), key=lambda row: -matrix.value[row, column])
            ranked += [
                (rank, -float(matrix.value[row, column]), Cell(step, matrix.layers[row]))
                for rank, row in enumerate(order)
            ]
    ranked.sort()
    count = min(len(steps) if cells is None else cells, len(ranked))
    rest = sorted(cell for _, _, cell in ranked[count:])
    drawn = np.random.default_rng((seed, 4)).permutation(len(rest))[:count]
    return sorted(cell for _, _, cell in ranked[:count]), sorted(rest[index] for index in drawn)


def plain(values: Float[np.ndarray, "layer step"]) -> list[list[float | None]]:
    """Rows with None where there is no number."""
    return [[one if np.isfinite(one) else None for one in row] for row in values.tolist()]


def compared(treated: Sequence[float | None], control: Sequence[float | None]) -> stats.Paired | None:
    """The paired comparison of the episodes that have both; None if fewer than two have."""
    both = [(a, b) for a, b in zip(treated, control, strict=True) if a is not None and b is not None]
    if len(both) < 2:
        return None
    left, right = (np.array(side, dtype=np.float64) for side in zip(*both, strict=True))
    return stats.paired(left, right)


def claims(results: Sequence[CellResult], alpha: float) -> tuple[str, tuple[CellResult, ...]]:
    """What was tested, and the cells with their corrected p-values and what may be claimed of them.

    Raises:
        AnalysisError: There is nothing to test.
    """
    outcome = "later" if any(one.later for one in results) else "reward"
    found = [one.tested(outcome) for one in results]
    if not any(found):
        raise errors.AnalysisError("no cell could be tested: fewer than two episodes have later steps to compare")
    adjusted = stats.holm([np.nan if one is None else one.p for one in found])
    told = []
    for one, p in zip(results, adjusted.tolist(), strict=True):
        known = None if np.isnan(p) else p
        told.append(dataclasses.replace(one, p=known, critical=known is not None and known < alpha))
    return outcome, tuple(told)
