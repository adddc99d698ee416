"""Can the model do what is to be traced? Pairs of programs are made, asked, and sorted out, each with its reason.

    prepared = causal_asking.prepare(model, programs, settings)
    prepared.ability, len(prepared.tasks), prepared.reasons()

1. Read the programs; a label that does not fit, or a program that does not run, is an error that says which.
2. Leave out those with the root on line 1 or 2, where a rule that understands nothing is right, and those that cannot
   be made into a pair (`causal_pairs`).
3. Ask the model both programs of each pair; right is the first token of the answer. If too few pairs are right both
   ways there is nothing to trace: that is an error, which says how well the model did.
4. For those that are left, make and ask controls.

Costs up to four forward passes a program.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sonde.analysis import stats
from sonde.core import errors, progress
from sonde.programs import (
    binding,
    causal_pairs,
    causal_settings,
    causal_traces,
    chains,
    counterfactuals,
    heuristics,
    interpreter,
)

Program = str | tuple[Any, ...] | counterfactuals.Pair
BATCH = 16
EARLY = "its root stands on line 1 or 2"
ANY_ROOT = "systematic=False, on the command line --any-root"
_WRONG = {
    "clean": "the model answers the clean program wrongly",
    "root": "the model answers the counterfactual program wrongly",
    "distractor": "the model's answer follows a constant off the chain",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Ability:
    """How well the model does the task that is to be traced.

    Attributes:
        programs: Clean programs that were asked.
        right: How many it answered right, by the first token of the answer.
        both: How many it answered right with the counterfactual constant too.
        low: Lower end of the 95 % interval of the share of right answers; nan for a single program.
        high: Its upper end.
        heuristics: The share that rules which understand nothing would get right.
    """

    programs: int
    right: int
    both: int
    low: float
    high: float
    heuristics: dict[str, float]

    @property
    def accuracy(self) -> float:
        """The share of right answers; nan if nothing was asked."""
        return self.right / self.programs if self.programs else float("nan")

    def __str__(self) -> str:
        """In a sentence."""
        if not self.programs:
            return "no program to answer"
        rules = ", ".join(f"{name} {score:.0%}" for name, score in self.heuristics.items())
        ends = f", 95 % interval {self.low:.0%} to {self.high:.0%}" if self.programs > 1 else ""
        return (
            f"{self.right} of {self.programs} clean programs right ({self.accuracy:.0%}{ends}; {rules}), "
            f"{self.both} right both ways"
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        told = {**dataclasses.asdict(self), "accuracy": self.accuracy}
        told |= {name: None for name in ("low", "high", "accuracy") if not np.isfinite(told[name])}
        return told


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """What will be traced.

    Attributes:
        tasks: Pairs that the model answers right both ways.
        controls: Their controls that the model answers right both ways.
        dropped: Programs and controls that are left out, with the reason.
        programs: The texts of all programs that were given.
        ability: How well the model does the task.
    """

    tasks: tuple[causal_pairs.Task, ...]
    controls: tuple[causal_pairs.Task, ...]
    dropped: tuple[causal_pairs.Dropped, ...]
    programs: tuple[str, ...]
    ability: Ability

    def reasons(self, kind: counterfactuals.Kind = "root") -> dict[str, int]:
        """How many were dropped for each reason, the most frequent first."""
        return dict(collections.Counter(one.reason for one in self.dropped if one.kind == kind).most_common())

    def repeated(self) -> dict[str, int]:
        """In how many pairs the answer is also a constant off the chain, and the other answer one of the program."""
        answers = sum(one.answer_repeats for one in self.tasks)
        return {"answer": answers, "counterfactual_answer": sum(one.counterfactual_repeats for one in self.tasks)}


def drawn(lines: int, hops: int, count: int, *, seed: int = 0, systematic: bool = True) -> list[binding.Labelled]:
    """Draws programs to trace: root lines in turn, each program from a seed of its own.

    Args:
        lines: Assignments of a program.
        hops: Assignments from the query's down to the constant, the constant's included.
        count: How many programs.
        seed: Fixes them.
        systematic: Only roots after line 2.

    Raises:
        RequestError: There are no such programs.
    """
    roots = range(3 if systematic else 1, lines - hops + 2)
    if hops < 1 or not roots:
        least = hops + (2 if systematic else 0)
        raise errors.RequestError(
            f"no program of {lines} lines with {hops} hops has its root after line {2 if systematic else 0}: ask for at least 1 "
            f"hop and at least {max(least, 1)} lines" + (f", or allow any root line ({ANY_ROOT})" if systematic else "")
        )
    made = [(roots[index % len(roots)], np.random.default_rng([seed, index])) for index in range(count)]
    return [binding.program(lines, rng, hops=hops, root_line=root) for root, rng in made]


def prepare(
    model: Any,
    programs: Sequence[Program],
    settings: causal_settings.TraceSettings,
    *,
    tell: progress.Tell = progress.silent,
) -> Prepared:
    """Makes the pairs and asks the model all of them.

    Args:
        model: The model.
        programs: What to trace.
        settings: How.
        tell: Called with what is being done, how much, and of how much.

    Raises:
        RequestError: A program or role is no good, no pair is left, or the model cannot do the task.
    """
    if isinstance(programs, str) or not len(programs):
        raise errors.RequestError("give a list of one or more programs to trace")
    maker = causal_pairs.PairMaker(model.tokenizer, template=settings.template, seed=settings.seed)
    made, dropped = _made(maker, programs, settings)
    causal_traces.check_roles(settings, made)
    right, wrong = asked(model, made, tell=functools.partial(tell, "asking pairs"))
    ability = _ability(made, right, wrong)
    if settings.only_right:
        made, dropped = right, [*dropped, *wrong]
    if not made or (settings.only_right and len(made) < settings.min_pairs):
        raise _cannot(model.cfg.model_name, len(programs), settings, dropped, ability)
    controls: list[causal_pairs.Task] = []
    if settings.controls:
        controls, impossible = _sorted_out(maker.control, [(one.index, one) for one in made], "distractor")
        followed, unlike = asked(model, controls, tell=functools.partial(tell, "asking controls"))
        if settings.only_right:
            controls, impossible = followed, [*impossible, *unlike]
        dropped = [*dropped, *impossible]
    return Prepared(tuple(made), tuple(controls), tuple(dropped), texts(programs), ability)


def asked(
    model: Any, tasks: Sequence[causal_pairs.Task], *, tell: Callable[[int, int], Any] = lambda done, of: None
) -> tuple[list[causal_pairs.Task], list[causal_pairs.Dropped]]:
    """The pairs that the model answers right both ways, and the others with the reason."""
    said = top_tokens(model, [row for one in tasks for row in (one.clean, one.counterfactual)], tell)
    right, wrong = [], []
    for task, *got in zip(tasks, said[::2], said[1::2], strict=True):
        clean, other = (token == expected for token, expected in zip(got, task.expected, strict=True))
        if clean and other:
            right.append(task)
        else:
            reason = _WRONG[task.kind if clean else "clean"]
            wrong.append(causal_pairs.Dropped(task.index, task.kind, reason))
    return right, wrong


def top_tokens(
    model: Any, rows: Sequence[tuple[int, ...]], tell: Callable[[int, int], Any] = lambda done, of: None
) -> list[int]:
    """The most probable next token of each row; what rows begin with alike is run once."""
    found: list[int] = []
    model.pool.entries.clear()  # keys and values from before somebody changed the weights would be wrong
    for start in range(0, len(rows), BATCH):
        batch = [list(row) for row in rows[start : start + BATCH]]
        found += [one.tokens[0] for one in model.generate(batch, max_new_tokens=1, temperature=0.0)]
        tell(len(found), len(rows))
    return found


def _made(
    maker: causal_pairs.PairMaker, programs: Sequence[Program], settings: causal_settings.TraceSettings
) -> tuple[list[causal_pairs.Task], list[causal_pairs.Dropped]]:
    """Pairs of the programs, and what could not be made into one."""
    later, early = [], []
    for index, item in enumerate(programs):
        given = _read(index, item)
        text = given if isinstance(given, str) else given.clean
        chain = _numbered(index, lambda text=text: chains.VariableChain.of(text))
        if settings.systematic and not chain.is_systematic:
            early.append(causal_pairs.Dropped(index, "root", EARLY))
        else:
            later.append((index, (index, given)))
    made, dropped = _sorted_out(lambda one: maker.root(*one), later, "root")
    return made, early + dropped


def _read(index: int, item: Program) -> str | counterfactuals.Pair:
    """A program or pair, its label checked."""
    match item:
        case str() | counterfactuals.Pair():
            return item
        case (str() as program, bool() | int() | np.integer() as answer, *rest) if len(rest) < 2:
            true = _numbered(index, lambda: interpreter.answer(program))
            if true != answer:
                raise errors.RequestError(f"program {index} gives {true}, but its label says {answer}: mend the label")
            return program
    raise errors.RequestError(
        f"program {index} must be a text, (text, answer), (text, answer, metadata) or a Pair, got {str(item)[:80]!r}"
    )


def texts(programs: Sequence[Program]) -> tuple[str, ...]:
    """All texts given, both of a Pair."""
    given = [(one.clean, one.counterfactual) if isinstance(one, counterfactuals.Pair) else one for one in programs]
    return tuple(text for one in given for text in ([one] if isinstance(one, str) else one) if isinstance(text, str))


def _numbered(index: int, work: Callable[[], Any]) -> Any:
    """What the work gives; its errors say which program it was."""
    try:
        return work()
    except errors.RequestError as error:
        raise errors.RequestError(f"program {index}: {error}") from error


def _sorted_out(
    make: Callable[[Any], causal_pairs.Task], items: Iterable[tuple[int, Any]], kind: counterfactuals.Kind
) -> tuple[list[causal_pairs.Task], list[causal_pairs.Dropped]]:
    """What could be made of the items, and the others with the reason."""
    made, dropped = [], []
    for index, item in items:
        try:
            made.append(_numbered(index, lambda item=item: make(item)))
        except causal_pairs.Unusable as reason:
            dropped.append(causal_pairs.Dropped(index, kind, str(reason)))
    return made, dropped


def _ability(
    made: Sequence[causal_pairs.Task], right: Sequence[causal_pairs.Task], wrong: Sequence[causal_pairs.Dropped]
) -> Ability:
    failed = sum(one.reason == _WRONG["clean"] for one in wrong)
    hits = np.array([1.0] * (len(made) - failed) + [0.0] * failed)
    low = high = float("nan")
    if len(hits) > 1:
        share = stats.mean_interval(hits, np.arange(len(hits)))
        low, high = share.low, share.high
    rules = heuristics.scores([(one.pair.clean, one.pair.clean_answer) for one in made])
    return Ability(len(made), len(made) - failed, len(right), low, high, dict(rules))


def _cannot(
    name: str,
    given: int,
    settings: causal_settings.TraceSettings,
    dropped: Sequence[causal_pairs.Dropped],
    ability: Ability,
) -> errors.RequestError:
    why = collections.Counter(one.reason for one in dropped).most_common()
    told = "; ".join(f"{count}: {reason}" for reason, count in why)
    early = f"Programs with the root on line 1 or 2 are traced with {ANY_ROOT}. " if EARLY in dict(why) else ""
    return errors.RequestError(
        f"{name} answers {ability.both} of {given} pairs right both ways, and tracing needs "
        f"min_pairs={settings.min_pairs}. It got {ability}. Left out: {told or 'none'}. {early}What a model cannot do cannot be "
        "traced: ask for fewer hops, shorter or more programs, another prompt template, or another model"
    )
