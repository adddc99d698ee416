"""What must be there before anything is concluded, and what does it then say?

    decided = rules.decide(inquiry, hypothesis, needed=…)
    decided.status, decided.why             # supported or refuted, and the reason in words

A planner does not say what is true; it asks, and the log answers. In order:

1. The hypothesis has at least one registered prediction: a corruption, a measure, a bound and a side of it.
2. Every one of its predictions was tested on the held-out examples, by a run that came after it in the log. None may be
   left out because it went badly.
3. No example of that run was ever explored with.
4. Each test has its controls: the same thing done to random other layers, drawn by the lab, as many as `CONTROLS` where
   there are so many.
5. A prediction holds if the whole 95 % interval lies on the predicted side, and fails if it lies on the other side;
   otherwise the examples cannot tell, and nothing is concluded.
6. If one fails, or a random choice of layers does as well (half of the controls or more), the hypothesis is refuted.
7. If all hold, and most controls of each do not fulfil it, and that survives Holm's correction over all hypotheses that the
   inquiry tested (`correcting`), it is supported. What holds by itself only stays open.

Costs a few queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sonde.core import errors
from sonde.lab import correcting, inquiries, log

CONTROLS = 3
Side = Literal["yes", "no", "unclear"]


@dataclass(frozen=True, slots=True)
class Test:
    """A prediction and what became of it.

    Attributes:
        prediction: What was predicted.
        run: The held-out run that tested it.
        controls: The runs of its controls.
        outcome: Whether it came true.
        controls_fulfil: How many controls fulfil it too.
    """

    prediction: log.Entry
    run: log.Entry
    controls: tuple[log.Entry, ...]
    outcome: Side
    controls_fulfil: int

    @property
    def specific(self) -> bool:
        """Whether most controls do not do the same."""
        return 2 * self.controls_fulfil < len(self.controls)

    def to_json(self) -> dict[str, Any]:
        """The test as JSON data."""
        return {
            "prediction": self.prediction.id,
            "run": self.run.id,
            "outcome": self.outcome,
            "controls": [one.id for one in self.controls],
            "controls_fulfil": self.controls_fulfil,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """What the evidence says about a hypothesis."""

    status: Literal["supported", "refuted"]
    why: str
    tests: tuple[Test, ...]
    chance: correcting.Chance

    @property
    def evidence(self) -> list[str]:
        """The runs it rests on."""
        return [one.id for test in self.tests for one in (test.run, *test.controls)]


def decide(inquiry: inquiries.Inquiry, hypothesis: str, *, needed: dict[str, int]) -> Decision:
    """What the evidence says.

    Args:
        inquiry: The inquiry.
        hypothesis: Id of the hypothesis.
        needed: How many controls each prediction must have; what the lab can draw, `CONTROLS` at most.

    Raises:
        AnalysisError: The rules are not met yet; says what is missing, or that the examples cannot tell.
    """
    predictions = [one for one in inquiry.entries("prediction") if one["hypothesis"] == hypothesis]
    if not predictions:
        raise _refusal(
            hypothesis, "it has no registered prediction", "call register_prediction before the run it is about"
        )
    tests = tuple(_tested(inquiry, one, needed.get(one.id, CONTROLS)) for one in predictions)
    chance = correcting.over(inquiry)[hypothesis]
    failed = [test for test in tests if test.outcome == "no"]
    if failed:
        return Decision("refuted", "; ".join(f"{told(one)}: it failed" for one in failed), tests, chance)
    unclear = [test for test in tests if test.outcome == "unclear"]
    if unclear:
        raise _refusal(
            hypothesis,
            f"the held-out examples cannot tell: {told(unclear[0])}, and the bound lies inside the interval",
            "leave it open, or ask a bolder question",
        )
    common = [test for test in tests if not test.specific]
    if common:
        why = "; ".join(f"{told(one)}: it came true, but not only there" for one in common)
        return Decision("refuted", why, tests, chance)
    if not chance.survives:
        raise _refusal(
            hypothesis,
            f"by itself it holds, but not among all that was tested: {chance.told}",
            "leave it open; fewer hypotheses or more held-out examples could tell",
        )
    return Decision("supported", "; ".join([*(told(test) for test in tests), chance.told]), tests, chance)


def side(run: log.Entry, prediction: log.Entry) -> Side:
    """Whether a run fulfils a prediction: with its whole interval, against it with all of it, or neither."""
    measure, value = prediction["measure"], float(prediction["value"])
    low, high = run[f"{measure}_low"], run[f"{measure}_high"]
    if low is None or high is None:
        return "unclear"
    below, above = high < value, low > value
    if prediction["relation"] == "below":
        return "yes" if below else "no" if above else "unclear"
    return "yes" if above else "no" if below else "unclear"


def told(test: Test) -> str:
    """A test in words."""
    one, run = test.prediction, test.run
    number, low, high = (run[f"{one['measure']}{end}"] for end in ("", "_low", "_high"))
    span = "no interval" if number is None or low is None else f"{number:.2f} [{low:.2f}, {high:.2f}]"
    return (
        f"{one['corruption']} gives {one['measure']} {span} on {run['n']} held-out examples ({run.id}), predicted "
        f"{one['relation']} {one['value']:g} ({one.id}); {test.controls_fulfil} of {len(test.controls)} controls do too"
    )


def _tested(inquiry: inquiries.Inquiry, prediction: log.Entry, needed: int) -> Test:
    runs = [one for one in inquiry.entries("run") if one["prediction"] == prediction.id and one.seq > prediction.seq]
    real = [one for one in runs if one["control"] is None]
    if not real:
        raise _refusal(
            prediction["hypothesis"],
            f"{prediction.id} was not tested on held-out examples",
            f"run_experiment with prediction={prediction.id}",
        )
    seen = {index for one in inquiry.entries("run") if one["split"] == "explore" for index in one["examples"]}
    shared = seen & set(real[0]["examples"])
    if shared:
        raise _refusal(
            prediction["hypothesis"], f"{real[0].id} uses examples that were explored with: {sorted(shared)}"
        )
    controls = tuple(one for one in runs if one["control"] is not None)
    if len(controls) < needed or not controls:
        what = f"{prediction.id} has {len(controls)} controls and needs {max(needed, 1)}"
        todo = f"run_experiment with prediction={prediction.id} and control=true"
        raise _refusal(
            prediction["hypothesis"], what, todo if needed else "use a corruption that random layers can match"
        )
    return Test(prediction, real[0], controls, side(real[0], prediction), _fulfilling(controls, prediction))


def _fulfilling(controls: Sequence[log.Entry], prediction: log.Entry) -> int:
    """How many controls fulfil a prediction by their value; their intervals give them no benefit of the doubt."""
    value, below = float(prediction["value"]), prediction["relation"] == "below"
    numbers = [one[prediction["measure"]] for one in controls]
    return sum(number is not None and ((number < value) if below else (number > value)) for number in numbers)


def _refusal(hypothesis: str, why: str, todo: str = "") -> errors.AnalysisError:
    return errors.AnalysisError(f"{hypothesis} cannot be concluded: {why}" + (f"; {todo}" if todo else ""))
