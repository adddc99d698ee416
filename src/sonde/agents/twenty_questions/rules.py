"""An oracle without a model: is a message one yes/no question, and what is its answer?

Deterministic, embedded, and in time linear in the message; a fraction of a millisecond for a question. Every verdict says
why. How well it agrees with labels made by hand is measured by `benchmarks/measure_oracle.py`.

    RulesOracle().judge("Is it alive?", objects.thing("dog")).answer   # 'Yes'
"""

import dataclasses
from typing import Any

from sonde.agents.twenty_questions import matching, objects, sentences

YES, NO, UNKNOWN, INVALID = "Yes", "No", "I don't know", "Invalid question"
ANSWERS = (YES, NO, INVALID, UNKNOWN)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What an oracle says to a message.

    Attributes:
        valid: Whether it is one yes/no question about the secret.
        kind: `valid`, `guess`, `open`, `several`, `statement`, `rambling` or `empty`.
        answer: `Yes`, `No`, `I don't know` or `Invalid question`.
        won: Whether it names the secret.
        reason: Which rule or attribute decided.
        question: The question as understood; None if there is none.
    """

    valid: bool
    kind: str
    answer: str
    won: bool
    reason: str
    question: str | None

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON data."""
        return dataclasses.asdict(self)


class RulesOracle:
    """Judges by rules of grammar and the table of objects."""

    def judge(self, message: str, thing: objects.Thing) -> Verdict:
        """Judges one message.

        Args:
            message: What the player wrote; anything at all.
            thing: The secret.
        """
        reading = sentences.read(message)
        if reading.question is None:
            return Verdict(False, reading.kind, INVALID, False, reading.why, None)
        found = matching.match(reading.question, thing)
        answer = UNKNOWN if found.truth is None else YES if found.truth else NO
        question = " ".join(reading.question) + "?"
        return Verdict(True, "guess" if found.guess else "valid", answer, found.won, found.why, question)
