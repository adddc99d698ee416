"""The headlines of a study, corrected for there being several.

A headline has one p-value, that of the strictest comparison it must pass. Holm's correction over the headlines keeps the
chance of any false claim in a study at 5 %.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from sonde.analysis import evolution, stats

ALPHA = 0.05
QUESTIONS = {
    "knows before speaking": "Before it speaks, the model's state tells whether the message will be invalid",
    "shows after speaking": "After it spoke, the model's state tells whether the message was invalid",
    "steering works": "Steering along valid minus invalid makes messages valid more often than its controls do",
    "direction changes": "The direction from invalid to valid changes from step to step",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A headline.

    Attributes:
        name: Its name.
        p: Its p-value.
        adjusted: Corrected over the headlines.
        holds: Whether it may be said.
        sentence: What may be said, in words.
    """

    name: str
    p: float
    adjusted: float
    holds: bool
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return dataclasses.asdict(self)


def of_stages(stages: Mapping[str, Any]) -> tuple[Claim, ...]:
    """The headlines of a study."""
    nested = stages["probe"]["nested"]
    p = {
        "knows before speaking": nested["before"]["claim_p"],
        "shows after speaking": nested["after"]["claim_p"],
        "steering works": stages["steer"]["claim_p"],
        "direction changes": stages["evolution"]["claim_p"],
    }
    why = {
        "knows before speaking": nested["before"]["why"],
        "shows after speaking": nested["after"]["why"],
        "steering works": _steering(stages["steer"]),
        "direction changes": _changing(stages["evolution"]),
    }
    adjusted = dict(zip(p, (float(one) for one in stats.holm(list(p.values()))), strict=True))
    return tuple(
        Claim(name, p[name], adjusted[name], adjusted[name] <= ALPHA, _sentence(name, adjusted[name], why[name]))
        for name in p
    )


def change_p(found: evolution.Evolution) -> float:
    """The p-value of a change: a direction must stand, and change, in the strongest way (corrected over the ways)."""
    signal = min([float(found.common_p), *(float(one) for one in found.norm_p if np.isfinite(one))], default=1.0)
    change = min((float(one) for one in found.change_p.values() if np.isfinite(one)), default=1.0)
    return max(signal, change)


def _sentence(name: str, adjusted: float, why: str) -> str:
    verdict = "Yes" if adjusted <= ALPHA else "Not shown"
    return f"{QUESTIONS[name]}? {verdict} (p = {adjusted:.2g}, corrected over {len(QUESTIONS)} headlines). {why}"


def _steering(found: Mapping[str, Any]) -> str:
    told = []
    for one in found["tests"]:
        a, b = one["unsteered"], one["controls"]
        sight = "" if a["smallest"] is None else f" (smallest effect in sight: {100 * a['smallest']:.0f} points)"
        told.append(
            f"{one['condition']}: invalid messages {_points(a)} against unsteered{sight}, {_points(b)} against the mean of "
            f"its controls, {a['pairs']} games"
        )
    return "; ".join(told) + "."


def _points(one: Mapping[str, Any]) -> str:
    effect = one["effect"]
    low, high, value = (100 * effect[name] for name in ("low", "high", "value"))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}] (p = {one['p']:.2g})"


def _changing(found: Mapping[str, Any]) -> str:
    if "skipped" in found:
        return found["skipped"]
    known = [p for p in found["change_p"].values() if p is not None]
    strongest = f" Of the ways in which it could change, the clearest has p = {min(known):.2g}." if known else ""
    return found["sentences"][0] + strongest
