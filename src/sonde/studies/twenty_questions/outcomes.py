"""How a game of Twenty Questions went: how valid, how repetitive, how informative.

    outcome = of_episode(episode.trajectory)
    outcome.values()["invalid_rate"]

Validity, kind and answer are the oracle's verdicts, as they were recorded. What a question was worth is worked out here:

1. Candidates are all objects of the table.
2. A question that was answered Yes or No leaves those of which the table says the same, or that it depends. A win
   leaves one.
3. The gain is log2(before / after). It is 0 for a message that is invalid, answered "I don't know", or a question asked
   before or that the table does not understand; and for an answer that no candidate agrees with (an oracle that is a model may contradict itself, or the
   table): such an answer is marked, and leaves the candidates as they were.

Cost: one look at the table per object and question, a few milliseconds; questions met before cost nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sonde.agents import history
from sonde.agents.twenty_questions import matching, objects, rules, sentences
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors

Answer = Literal["yes", "no", "unknown"]
ANSWERS: Mapping[str, Answer] = {rules.YES: "yes", rules.NO: "no", rules.UNKNOWN: "unknown"}
ARTICLES = frozenset({"a", "an", "the"})
#: Groups of steps, as published: first, and one past the last.
GROUPS = ((0, 5), (5, 10), (10, 15), (15, 20))
#: How many questions the cache keeps, each with its answer for every object.
REMEMBERED = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """What an outcome is.

    Attributes:
        description: In one line.
        better: Which way is better; None: neither.
    """

    description: str
    better: Literal["higher", "lower"] | None


NAMES: Mapping[str, Measure] = {
    "invalid_rate": Measure("share of messages that are not exactly one yes/no question", "lower"),
    **{
        f"invalid_rate_{first}_{stop - 1}": Measure(f"the same, of steps {first} to {stop - 1}", "lower")
        for first, stop in GROUPS
    },
    "question_share": Measure("share of messages with a question mark", "higher"),
    "win": Measure("share of games won", "higher"),
    "distinct_questions": Measure(
        "different valid questions per game, but for case, punctuation and articles", "higher"
    ),
    "repeated_share": Measure("share of valid questions that had been asked before in the game", "lower"),
    "information": Measure("information gain per message in bits, 0 if invalid, unknown or repeated", "higher"),
    "length": Measure("tokens per message", None),
    "steps": Measure("messages per game", None),
    "fluency": Measure("mean log-probability of the messages' tokens under the unsteered model", "higher"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutcome:
    """How one message went.

    Attributes:
        step: Which it was.
        message: What was said.
        valid: Whether it is exactly one yes/no question, and `kind`, `reason` why, as the oracle said.
        asks: Whether it has a question mark.
        guess: Whether it names a particular thing, and `won` whether that is the secret.
        question: A valid question without case, punctuation and articles; None if not valid.
        answer: What was answered; None if not valid.
        repeated: Whether the same was asked before in the game.
        contradictory: Whether no candidate agrees with the answer.
        gain: Information gained, in bits.
        candidates: How many objects were left after it.
        tokens: How many it took, the one that ends the message included.
    """

    step: int
    message: str
    valid: bool
    kind: str
    reason: str
    asks: bool
    guess: bool
    won: bool
    question: str | None
    answer: Answer | None
    repeated: bool
    contradictory: bool
    gain: float
    candidates: int
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """How a game went.

    Attributes:
        task_id: The secret; None if the record does not say.
        steps: Message by message.
        fluency: Mean log-probability of its tokens under the unsteered model, if somebody measured it.
    """

    task_id: str | None
    steps: tuple[StepOutcome, ...]
    fluency: float | None = None

    @property
    def won(self) -> bool:
        """Whether the secret was found."""
        return any(step.won for step in self.steps)

    def invalid_rate(self, first: int = 0, stop: int | None = None) -> float | None:
        """The share of invalid messages, of all steps or from `first` to before `stop`; None if none was reached."""
        return _mean(
            [not step.valid for step in self.steps if step.step >= first and (stop is None or step.step < stop)]
        )

    def values(self) -> dict[str, float | None]:
        """The outcomes of `NAMES`; None where there is nothing to say."""
        valid = [step for step in self.steps if step.valid]
        return {
            "invalid_rate": self.invalid_rate(),
            **{f"invalid_rate_{first}_{stop - 1}": self.invalid_rate(first, stop) for first, stop in GROUPS},
            "question_share": _mean([step.asks for step in self.steps]),
            "win": float(self.won),
            "distinct_questions": float(len({step.question for step in valid})),
            "repeated_share": _mean([step.repeated for step in valid]),
            "information": _mean([step.gain for step in self.steps]),
            "length": _mean([step.tokens for step in self.steps]),
            "steps": float(len(self.steps)),
            "fluency": self.fluency,
        }

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return dataclasses.asdict(self) | {"values": self.values()}


def of_episode(trajectory: capture_trajectory.TrajectoryActivations, *, fluency: float | None = None) -> EpisodeOutcome:
    """The outcome of a played game.

    Of a fork, steps count from the start of the game, but gains and repetitions only from the fork on; to have them
    right, hand `of_moments` the moments before the fork too.

    Args:
        trajectory: Its record, with or without activations.
        fluency: See `EpisodeOutcome`.

    Raises:
        AnalysisError: It has no steps, or is no game of Twenty Questions.
        EpisodeError: It was recorded without its conversation.
    """
    first = int(trajectory.metadata.get("forked_at", 0))
    told = of_moments(history.moments(trajectory), first=first)
    return dataclasses.replace(told, task_id=trajectory.metadata.get("task_id"), fluency=fluency)


def of_moments(moments: Sequence[history.Moment], *, first: int = 0) -> EpisodeOutcome:
    """The outcome of a game given step by step, the first of which is number `first`."""
    if not moments:
        raise errors.AnalysisError(
            "a game without steps has no outcome: leave out episodes that failed before the first"
        )
    left = frozenset(range(len(objects.things())))
    asked: set[str] = set()
    steps = []
    for number, moment in enumerate(moments, first):
        step, left = _step(number, moment, left, asked)
        steps.append(step)
        if step.question is not None:
            asked.add(step.question)
    return EpisodeOutcome(None, tuple(steps))


def normalised(question: str) -> str:
    """A question without case, punctuation and articles."""
    return " ".join(word for word in _words(question) if word not in ARTICLES)


def _step(
    number: int, moment: history.Moment, left: frozenset[int], asked: set[str]
) -> tuple[StepOutcome, frozenset[int]]:
    """One message, and the candidates after it."""
    info = moment.info
    missing = {"valid", "kind", "answer", "won"} - set(info)
    if missing:
        raise errors.AnalysisError(
            f"step {number} has no verdict of Twenty Questions: {sorted(missing)} missing, got {sorted(info)}; "
            "give a game that was played in TwentyQuestionsEnvironment"
        )
    valid = bool(info["valid"])
    understood = info.get("question")  # None also if a model, as oracle, took for a question what the rules cannot read
    question = normalised(understood or moment.text) if valid else None
    answer = ANSWERS.get(info["answer"]) if valid else None
    repeated = question is not None and question in asked
    after, contradictory = left, False
    if understood and not repeated and not info["won"] and answer in ("yes", "no"):
        after = _agreeing(left, _words(understood), answer == "yes")
        contradictory = not after
        after = after or left
    count = 1 if info["won"] else len(after)
    told = StepOutcome(
        step=number,
        message=moment.text,
        valid=valid,
        kind=info["kind"],
        reason=info.get("reason", ""),
        asks="?" in moment.text,
        guess=info["kind"] == "guess",
        won=bool(info["won"]),
        question=question,
        answer=answer,
        repeated=repeated,
        contradictory=contradictory,
        gain=math.log2(len(left) / count),
        candidates=count,
        tokens=len(moment.tokens),
    )
    return told, after


def _agreeing(left: frozenset[int], words: tuple[str, ...], truth: bool) -> frozenset[int]:
    """The candidates that the table gives the same answer for, or none for certain."""
    truths = _truths(words)
    return frozenset(index for index in left if truths[index] in (truth, None))


@functools.lru_cache(maxsize=REMEMBERED)
def _truths(words: tuple[str, ...]) -> tuple[bool | None, ...]:
    """The answer to a question for every object of the table; None where it is not known."""
    return tuple(matching.match(words, thing).truth for thing in objects.things())


def _words(text: str) -> tuple[str, ...]:
    return tuple(sentences.WORD.findall(sentences.clean(text)))


def _mean(values: Sequence[float | int]) -> float | None:
    return sum(values) / len(values) if values else None
