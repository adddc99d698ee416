"""Which programs are models asked to trace? One function a kind: `(seq_len, rng) -> (program, answer[, metadata])`.

Every program ends with a query line, `#x: `, and every answer comes from running the text in `interpreter`. A program
of length n has n assignments and then the query. In `make_range_program` they are the n assignments that run: the first
value, and n - 1 turns of the loop; its unrolled form writes them out. An `if` or a `try` with its `except` counts as the
one assignment it decides about. Costs a fraction of a millisecond a program, and a few for those that are balanced.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from sonde.core import errors
from sonde.programs import binding, chains, counterfactuals, interpreter, randomness

Answer = int | bool
Labelled = tuple[str, Answer]
REDRAWS = 100
Generator = Callable[[int, np.random.Generator], tuple[str, Answer] | tuple[str, Answer, dict[str, Any]]]


def make_variable_binding_program(
    seq_len: int, rng: randomness.Rng, *, hops: int | None = None, root_line: int | None = None
) -> Labelled:
    """`a = 3`, `b = a`, …: hops and root line are uniform, or as asked for; see `binding`."""
    return binding.program(seq_len, randomness.generator(rng), hops=hops, root_line=root_line)[:2]


def make_variable_binding_program_with_metadata(
    seq_len: int, rng: randomness.Rng, *, hops: int | None = None, root_line: int | None = None
) -> tuple[str, int, dict[str, Any]]:
    """The same program for the same rng, with chain, query, assignments, depth, root_line and targets."""
    return binding.program(seq_len, randomness.generator(rng), hops=hops, root_line=root_line)


def make_balanced_binding_programs(
    seq_len: int, count: int, rng: randomness.Rng, *, max_hops: int = binding.MAX_HOPS
) -> list[tuple[str, int, dict[str, Any]]]:
    """A set of binding programs in which hops, and root lines for each of them, are equally frequent."""
    return binding.balanced(seq_len, count, randomness.generator(rng), max_hops=max_hops)


def make_counterfactual_pair(seq_len: int, rng: randomness.Rng) -> tuple[str, int, dict[str, Any]]:
    """A binding program whose metadata also hold its twin with another root constant, and the twin's answer.

    The twin's constant occurs nowhere in the program. Programs that have all ten digits are drawn again; `redrawn` counts.
    """
    rng = randomness.generator(rng)
    for redrawn in range(REDRAWS):
        program, answer, metadata = binding.program(seq_len, rng)
        made = counterfactuals.CounterfactualGenerator(seed=int(rng.integers(2**32)))
        if len(chains.VariableChain.of(program).constants) < 10:
            pair = made.root(program)
            twin = {"counterfactual_program": pair.counterfactual, "counterfactual_answer": pair.counterfactual_answer}
            return program, answer, {**metadata, **twin, "redrawn": redrawn}
    raise errors.RequestError(
        f"{REDRAWS} programs of {seq_len} assignments all have all ten digits, so none has a twin with a new one: ask for "
        "shorter programs"
    )


def make_range_program(seq_len: int, rng: randomness.Rng) -> Labelled:
    """A first value and a loop over `range` that adds or subtracts a number or the counter, n - 1 times."""
    loop = _loop(seq_len, randomness.generator(rng))
    head = f"for {loop.counter} in {loop.ranged}:"
    return _labelled([f"{loop.name} = {loop.first}", head, f"    {loop.name} {loop.sign}= {loop.added}"], loop.name)


def make_range_program_unrolled(seq_len: int, rng: randomness.Rng) -> Labelled:
    """What `make_range_program` gives for the same rng, with every turn of the loop written out."""
    loop = _loop(seq_len, randomness.generator(rng))
    turns = [f"{loop.name} {loop.sign}= {number if loop.by_counter else loop.added}" for number in loop.numbers]
    return _labelled([f"{loop.name} = {loop.first}", *turns], loop.name)


def make_variable_increments(seq_len: int, rng: randomness.Rng) -> Labelled:
    """One variable: a first value, then additions and subtractions."""
    rng = randomness.generator(rng)
    (name,) = _names(rng, seq_len, 1)
    steps = [f"{name} {_sign(rng)}= {rng.integers(1, 10)}" for _ in range(seq_len - 1)]
    return _labelled([f"{name} = {rng.integers(10)}", *steps], name)


def make_arithmetic_sequence(seq_len: int, rng: randomness.Rng) -> Labelled:
    """A new variable a line, each the last one plus or minus the same difference; asks for any of them."""
    rng = randomness.generator(rng)
    names = _names(rng, seq_len, seq_len)
    sign, difference = _sign(rng), rng.integers(1, 10)
    lines = [f"{names[0]} = {rng.integers(10)}"]
    lines += [f"{new} = {old} {sign} {difference}" for old, new in itertools.pairwise(names)]
    return _labelled(lines, names[int(rng.integers(seq_len))])


def make_counter_program(seq_len: int, rng: randomness.Rng) -> Labelled:
    """A counter that goes up by one whenever a comparison of two digits holds."""
    rng = randomness.generator(rng)
    (name,) = _names(rng, seq_len, 1)
    lines = [f"{name} = {rng.integers(10)}"]
    for _ in range(seq_len - 1):
        left, right = rng.integers(10, size=2)
        lines += [f"if {left} {'<' if rng.random() < 0.5 else '>'} {right}:", f"    {name} += 1"]
    return _labelled(lines, name)


def make_fibonacci_program(seq_len: int, rng: randomness.Rng) -> Labelled:
    """Two first values, then each variable the sum of the two before; asks for the last."""
    rng = randomness.generator(rng)
    names = _names(rng, seq_len, seq_len)
    lines = [f"{name} = {rng.integers(1, 10)}" for name in names[:2]]
    lines += [f"{names[at]} = {names[at - 2]} + {names[at - 1]}" for at in range(2, seq_len)]
    return _labelled(lines, names[-1])


def make_exception_program(seq_len: int, rng: randomness.Rng) -> Labelled:
    """A first value, then divisions in `try`; where the divisor is zero, which is every other time, `except` acts."""
    rng = randomness.generator(rng)
    (name,) = _names(rng, seq_len, 1)
    lines = [f"{name} = {rng.integers(10)}"]
    for _ in range(seq_len - 1):
        divisor = rng.integers(1, 10) if rng.random() < 0.5 else 0
        lines += ["try:", f"    {name} = {name} + {rng.integers(1, 10)} // {divisor}"]
        lines += ["except ZeroDivisionError:", f"    {name} = {name} - {rng.integers(1, 10)}"]
    return _labelled(lines, name)


def make_boolean_program(seq_len: int, rng: randomness.Rng) -> Labelled:
    """Truth values joined by `not`, `and`, `or`; True and False are equally often the answer."""
    rng = randomness.generator(rng)
    wanted = bool(rng.random() < 0.5)
    names = _names(rng, seq_len, seq_len)
    lines: list[str] = []
    for at, name in enumerate(names):
        kind = rng.random() if at else 0.0
        left, right = (names[int(one)] for one in rng.integers(max(at, 1), size=2))
        if kind < 0.3:
            lines.append(f"{name} = {bool(rng.random() < 0.5)}")
        elif kind < 0.5:
            lines.append(f"{name} = not {left}")
        else:
            lines.append(f"{name} = {left} {'and' if rng.random() < 0.5 else 'or'} {right}")
    values = interpreter.run("\n".join(lines))
    fitting = [name for name in names if values[name] is wanted]
    if not fitting:  # all are the same: turn the last line round, which no other refers to
        left, _, right = lines[-1].partition(" = ")
        lines[-1] = f"{left} = {wanted if right in ('True', 'False') else f'not ({right})'}"
        fitting = [left]
    return _labelled(lines, fitting[int(rng.integers(len(fitting)))])


@dataclasses.dataclass(frozen=True, slots=True)
class _Loop:
    """What a range program does."""

    name: str
    counter: str
    first: int
    sign: str
    numbers: range
    by_counter: bool
    step: int

    @property
    def added(self) -> str:
        return self.counter if self.by_counter else str(self.step)

    @property
    def ranged(self) -> str:
        ends = self.numbers
        parts = [ends.start, ends.stop] if ends.start or ends.step > 1 else [ends.stop]
        return f"range({', '.join(map(str, [*parts, ends.step] if ends.step > 1 else parts))})"


def _loop(seq_len: int, rng: np.random.Generator) -> _Loop:
    name, counter = _names(rng, seq_len, 2)
    start = int(rng.integers(6)) if rng.random() < 0.5 else 0
    stride = int(rng.integers(2, 4)) if rng.random() < 0.25 else 1
    return _Loop(
        name=name,
        counter=counter,
        first=int(rng.integers(10)),
        sign=_sign(rng),
        numbers=range(start, start + stride * (seq_len - 1), stride),
        by_counter=bool(rng.random() < 0.5),
        step=int(rng.integers(1, 10)),
    )


def _labelled(lines: list[str], query: str) -> Labelled:
    text = "\n".join([*lines, f"#{query}: "])
    return text, interpreter.answer(text)


def _names(rng: np.random.Generator, seq_len: int, count: int) -> list[str]:
    if seq_len < 1:
        raise errors.RequestError(f"a program needs at least one assignment, got seq_len {seq_len}")
    pool = binding.names(max(26, count))
    return [pool[at] for at in rng.permutation(len(pool))[:count]]


def _sign(rng: np.random.Generator) -> str:
    return "+" if rng.random() < 0.5 else "-"
