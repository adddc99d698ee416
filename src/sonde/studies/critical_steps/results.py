"""What was found, as JSON data: the impact matrix, the cells that were rolled out, and which of them may be claimed.

A cell is claimed as critical if its ablation changes how the later steps go: mean over the episodes of the paired
difference to the sham, sign-flip test, Holm-corrected over all cells that were rolled out, chosen and random. The
outcome tested is the share of valid later messages; the reward of the later steps, where there are no verdicts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sonde.analysis import stats
from sonde.core import errors
from sonde.studies.critical_steps import settings as study_settings

#: `layers` (rows), `steps` (columns), `n` (episodes behind each column), `sham` (its largest impact: what rounding does), and
#: the impact in nats per token: `value`, and `low` and `high` ends of its interval; None where fewer than two episodes have the
#: step.
Matrix = Mapping[str, Any]


class Cell(NamedTuple):
    """A layer at a step."""

    step: int
    layer: int


def matrix_of(
    settings: study_settings.CriticalStepsSettings,
    steps: Sequence[int],
    screened: Sequence[Mapping[int, Sequence[float]]],
) -> dict[str, Any]:
    """The impact matrix of all episodes.

    Args:
        settings: The study's.
        steps: The columns.
        screened: For each episode, by step, the scores of the sham and of each layer.
    """
    ends: dict[str, list[list[float | None]]] = {
        name: [[None] * len(steps) for _ in settings.layers] for name in ("value", "low", "high")
    }
    counts = [sum(step in episode for episode in screened) for step in steps]
    for column, step in enumerate(steps):
        scores = np.array([episode[step][1:] for episode in screened if step in episode], dtype=np.float64)
        for row in range(len(settings.layers) if len(scores) > 1 else 0):
            found = stats.mean_interval(scores[:, row], np.arange(len(scores)))
            for name, rows in ends.items():
                rows[row][column] = getattr(found, name)
    sham = max((scores[0] for episode in screened for scores in episode.values()), default=0.0)
    return {"layers": list(settings.layers), "steps": list(steps), "n": counts, "sham": sham, **ends}


def numbers(matrix: Matrix, name: str) -> np.ndarray:
    """One of the arrays of a matrix, layer by step; nan where there is no number."""
    return np.array(matrix[name], dtype=np.float64)


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
    value = numbers(matrix, "value")
    for column, step in enumerate(matrix["steps"]):
        if step in steps:
            order = sorted(range(len(value)), key=lambda row: -value[row, column])
            ranked += [
                (rank, -float(value[row, column]), Cell(step, matrix["layers"][row])) for rank, row in enumerate(order)
            ]
    ranked.sort()
    count = min(len(steps) if cells is None else cells, len(ranked))
    rest = sorted(cell for _, _, cell in ranked[count:])
    drawn = np.random.default_rng((seed, 4)).permutation(len(rest))[:count]
    return sorted(cell for _, _, cell in ranked[:count]), sorted(rest[index] for index in drawn)


def compared(treated: Sequence[float | None], control: Sequence[float | None]) -> dict[str, Any] | None:
    """The paired comparison of the episodes that have both; None if fewer than two have."""
    both = [(a, b) for a, b in zip(treated, control, strict=True) if a is not None and b is not None]
    if len(both) < 2:
        return None
    left, right = (np.array(side, dtype=np.float64) for side in zip(*both, strict=True))
    return stats.paired(left, right).to_json()


def cell_of(
    cell: Cell, impact: float, pairs: Sequence[tuple[Sequence[float | None], Sequence[float | None]]], *, chosen: bool
) -> dict[str, Any]:
    """A cell that was rolled out; nothing is corrected or claimed yet.

    Args:
        cell: Which.
        impact: Its screening score.
        pairs: For each field of an Outcome, by episode, its means under the ablation and under the sham.
        chosen: Whether it stood out in the screening; otherwise it was drawn at random.
    """
    own, later, reward = (compared(*sides) for sides in pairs)
    return {
        **cell._asdict(),
        "chosen": chosen,
        "impact": impact,
        "own": None if own is None else own["effect"]["value"],
        "p_holm": None,
        "later": later,
        "reward": reward,
        "critical": False,
    }


def claims(cells: Sequence[Mapping[str, Any]], alpha: float) -> dict[str, Any]:
    """The outcome that was tested, and the cells with their corrected p-values and what may be claimed of them.

    Raises:
        AnalysisError: There is nothing to test.
    """
    outcome = "later" if any(one["later"] for one in cells) else "reward"
    found = [one[outcome] for one in cells]
    if not any(found):
        raise errors.AnalysisError("no cell could be tested: fewer than two episodes have later steps to compare")
    adjusted = stats.holm([np.nan if one is None else one["p"] for one in found])
    known = [None if np.isnan(p) else p for p in adjusted.tolist()]
    told = [{**one, "p_holm": p, "critical": p is not None and p < alpha} for one, p in zip(cells, known, strict=True)]
    return {"outcome": outcome, "cells": told}


def critical(cells: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """The cells that may be claimed."""
    return [Cell(one["step"], one["layer"]) for one in cells if one["critical"]]
