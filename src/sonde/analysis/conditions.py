"""How do conditions differ, outcome by outcome, over the same games?

A table has, for each condition and outcome, one value per game, None where there is nothing to say; games are in the same
order everywhere, so that everything is paired. Costs a sign-flip test for each condition and outcome.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.analysis import stats

Column = Sequence[float | None]
Table = Mapping[str, Mapping[str, Column]]


def means(table: Table) -> dict[str, dict[str, dict[str, Any] | None]]:
    """Mean and interval of every outcome under every condition; None with fewer than two games."""
    return {name: {outcome: mean(column) for outcome, column in held.items()} for name, held in table.items()}


def versus(table: Table, base: str) -> dict[str, dict[str, dict[str, Any] | None]]:
    """Every condition against one, as `stats.Paired` with `adjusted`: Holm over the conditions, within each outcome."""
    found = {
        name: {outcome: paired(column, table[base][outcome]) for outcome, column in held.items()}
        for name, held in table.items()
        if name != base
    }
    for outcome in table[base]:
        known = [one for one in (held[outcome] for held in found.values()) if one is not None]
        for one, adjusted in zip(known, stats.holm([one["p"] for one in known]), strict=True):
            one["adjusted"] = float(adjusted)
    return found


def mean(column: Column) -> dict[str, Any] | None:
    """Mean and interval over the games that have a value; of shares, the interval ends at 0 and 1."""
    known = np.array([value for value in column if value is not None], dtype=np.float64)
    if len(known) < 2:
        return None
    found = stats.mean_interval(known, np.arange(len(known))).to_json()
    if known.min() >= 0 and known.max() <= 1:
        found |= {"low": max(found["low"], 0.0), "high": min(found["high"], 1.0)}
    return found


def paired(treated: Column, control: Column) -> dict[str, Any] | None:
    """The comparison over the games that have both values."""
    pairs = [pair for pair in zip(treated, control, strict=True) if None not in pair]
    known = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return stats.paired(known[:, 0], known[:, 1]).to_json() if len(known) > 1 else None
