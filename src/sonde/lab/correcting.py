"""Would chance have found it among so many? Holm's correction over the hypotheses of one inquiry.

    chance = correcting.over(inquiry)["h14"]
    chance.p, chance.corrected, chance.survives

Who tests twenty hypotheses at 5 % each finds one by luck. So what an inquiry supports must survive this:

1. The p-value of a tested prediction is two-sided and belongs to its interval: it is below 0.05 exactly when the whole 95 %
   interval lies on the predicted side. For `kept` it is that of the exact binomial test against the bound, for
   `loss_delta` that of Student's t over examples.
2. The p-value of a hypothesis is the largest of its predictions', because all of them must hold. One that was not tested
   yet counts as 1.
3. They are corrected together by Holm's method (1979), over all hypotheses of the inquiry with a prediction that was tested
   on held-out examples: supported, refuted or left open, and after a fork also those it inherited. It needs no
   assumption about how they hang together. The chance of supporting anything that is not so stays below 5 %.
4. The number of hypotheses may grow later, and p-values with it. What was supported and no longer survives is withdrawn: a
   new finding says that it is open again.

Nothing of this makes it harder to refute. Costs a few queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sonde.analysis import jackknife, stats
from sonde.lab import inquiries, log

LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Chance:
    """How likely chance is to have done it.

    Attributes:
        p: The p-value of a hypothesis by itself.
        corrected: The same after Holm's correction.
        tested: How many hypotheses were tested.
    """

    p: float
    corrected: float
    tested: int

    @property
    def survives(self) -> bool:
        """Whether it holds after the correction."""
        return self.corrected < LEVEL

    @property
    def told(self) -> str:
        """The numbers in words."""
        others = "1 tested hypothesis" if self.tested == 1 else f"{self.tested} tested hypotheses"
        return f"p = {self.p:.2g}, {self.corrected:.2g} after Holm's correction over {others}"

    def to_json(self) -> dict[str, Any]:
        """The numbers as fields of a finding."""
        return {"p": self.p, "p_corrected": self.corrected, "hypotheses_tested": self.tested}


def over(inquiry: inquiries.Inquiry) -> dict[str, Chance]:
    """The tested hypotheses of an inquiry, corrected for how many there are."""
    tests = {one["prediction"]: one for one in inquiry.entries("run") if one["prediction"] and one["control"] is None}
    asked: dict[str, list[log.Entry]] = {}
    for one in inquiry.entries("prediction"):
        asked.setdefault(one["hypothesis"], []).append(one)
    tested = {name: found for name, found in asked.items() if any(one.id in tests for one in found)}
    alone = [max(_p(inquiry, one, tests.get(one.id)) for one in found) for found in tested.values()]
    both = zip(tested, alone, stats.holm(alone).tolist(), strict=True)
    return {name: Chance(p, corrected, len(tested)) for name, p, corrected in both}


def withdraw(inquiry: inquiries.Inquiry) -> list[log.Entry]:
    """Takes back what is supported and no longer survives: writes a finding for each, and returns them."""
    supported = [one for one in inquiry.findings() if one["status"] == "supported"]
    chances = over(inquiry) if supported else {}
    made = []
    for one in supported:
        chance = chances[one["hypothesis"]]
        if not chance.survives:
            body = {name: one[name] for name in ("hypothesis", "claim", "evidence", "tests")} | chance.to_json()
            body |= {"status": "open", "why": f"it was supported ({one.id}) before more was tested: {chance.told}"}
            made.append(inquiry.append("finding", body, cites=(one["hypothesis"], *one["evidence"], one.id)))
    return made


def p_value(rows: Sequence[dict[str, Any]], measure: str, relation: str, value: float) -> float:
    """How likely such examples are if the truth is at the bound; 1 if they lie on the other side of it.

    Args:
        rows: The examples of a run.
        measure: `kept` or `loss_delta`.
        relation: `below` or `above`.
        value: The bound.
    """
    if measure == "kept":
        kept = [bool(row["correct"]) for row in rows if row["intact_correct"]]
        if len(kept) < 2 or not 0 <= value <= 1:
            return 1.0
        law = jackknife.imported("scipy.stats", "intervals and tests").binom(len(kept), value)
        tail = law.cdf(sum(kept)) if relation == "below" else law.sf(sum(kept) - 1)
        return float(min(1.0, 2 * tail))
    pairs = [(row["loss"], row["intact_loss"]) for row in rows]
    moved = np.array([after - before for after, before in pairs if after is not None and before is not None])
    if len(moved) < 2 or (moved.mean() < value) != (relation == "below"):
        return 1.0
    return jackknife.p_value(jackknife.of_mean(moved, np.arange(len(moved))), value)


def _p(inquiry: inquiries.Inquiry, prediction: log.Entry, run: log.Entry | None) -> float:
    if run is None:
        return 1.0
    rows = inquiry.book.examples(run.id)
    return p_value(rows, prediction["measure"], prediction["relation"], float(prediction["value"]))
