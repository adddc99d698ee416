"""Which conditions differ, from the unsteered games and from their controls?

Every comparison is paired by game (object and seed). For each outcome: mean and interval per condition, difference to
the unsteered games with p-value and the smallest effect that the design could have seen. The claim is about one outcome,
the share of invalid messages, at one strength; everything else is a table to look at.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.analysis import conditions as analysis_conditions
from sonde.analysis import stats
from sonde.core import errors
from sonde.studies.twenty_questions import outcomes
from sonde.studies.twenty_questions import settings as study_settings

OUTCOME = "invalid_rate"
Games = Mapping[str, Mapping[int, outcomes.EpisodeOutcome]]
Conditions = Sequence[Mapping[str, Any]]


def judged(games: Games, conditions: Conditions, settings: study_settings.Settings) -> dict[str, Any]:
    """All comparisons, as JSON data.

    Raises:
        AnalysisError: Fewer than two games were finished under all conditions.
    """
    common = sorted(set.intersection(*(set(held) for held in games.values())))
    if len(common) < 2:
        raise errors.AnalysisError(
            f"{len(common)} games were finished under all {len(games)} conditions, two are needed: play more"
        )
    rows = {name: [held[number].values() for number in common] for name, held in games.items()}
    table = {name: {key: [row[key] for row in held] for key in outcomes.NAMES} for name, held in rows.items()}
    tests = _tests(table, conditions, settings)
    return {
        "games": len(common),
        "means": analysis_conditions.means(table),
        "versus": analysis_conditions.versus(table, conditions[0]["name"]),
        "tests": tests,
        "claim_p": min((one["adjusted"] for one in tests), default=1.0),
        "examples": _examples(games, common, conditions, settings),
    }


def _tests(
    table: analysis_conditions.Table, conditions: Conditions, settings: study_settings.Settings
) -> list[dict[str, Any]]:
    """For each kind of steering: against the unsteered games, and against the mean of its controls."""
    found = []
    for one in conditions:
        if one["control"] is not None or one["strength"] != settings.strength:
            continue
        own = table[one["name"]][OUTCOME]
        controls = [table[other["name"]][OUTCOME] for other in conditions if _controls(other, one)]
        mean = [float(np.mean(values)) for values in np.array(controls, dtype=float).T]
        unsteered = analysis_conditions.paired(own, table[conditions[0]["name"]][OUTCOME])
        controlled = analysis_conditions.paired(own, mean)
        assert unsteered is not None
        assert controlled is not None
        better = unsteered["effect"]["value"] < 0 and controlled["effect"]["value"] < 0
        p = max(unsteered["p"], controlled["p"]) if better else 1.0
        found.append({"condition": one["name"], "unsteered": unsteered, "controls": controlled, "p": p})
    for one, adjusted in zip(found, stats.holm([one["p"] for one in found]), strict=True):
        one["adjusted"] = float(adjusted)
    return found


def _controls(other: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    return other["kind"] == one["kind"] and other["control"] is not None


def _examples(
    games: Games, common: Sequence[int], conditions: Conditions, settings: study_settings.Settings
) -> list[dict[str, Any]]:
    """Two games by a rule: the one that steering changed most, and the one it changed as much as the median."""
    names = [one["name"] for one in conditions]
    chosen = [
        names[0],
        next(one["name"] for one in conditions if one["control"] is None and one["strength"] == settings.strength),
        next(one["name"] for one in conditions if one["control"]),
    ]
    rates = {number: [games[name][number].invalid_rate() or 0.0 for name in chosen] for number in common}
    order = sorted(common, key=lambda number: (rates[number][1] - rates[number][0], number))
    picked = {"most changed for the better": order[0], "median change": order[len(order) // 2]}
    return [
        {
            "rule": rule,
            "game": number,
            "task": games[chosen[0]][number].task_id,
            "transcripts": {name: _transcript(games[name][number]) for name in chosen},
        }
        for rule, number in picked.items()
    ]


def _transcript(game: outcomes.EpisodeOutcome) -> list[dict[str, Any]]:
    return [
        {"step": one.step, "message": one.message, "valid": one.valid, "verdict": one.answer or one.reason}
        for one in game.steps
    ]
