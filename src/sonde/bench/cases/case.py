"""What is a case? A task, the program that does it, what it may be given, and worked examples.

    case.Case(8, "identity", "Each number as it is.", rasp.Map(lambda n: n, rasp.TOKENS), vocabulary=case.NUMBERS, …)

Making one costs nothing; `compiled` costs milliseconds the first time.
"""

import dataclasses
import functools
import itertools
import random
import string
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from sonde.bench import rasp

if TYPE_CHECKING:
    from sonde.bench import compiling

Example = tuple[tuple[rasp.Value, ...], tuple[rasp.Value, ...]]
RELEASED = frozenset(
    {2, 3, 4, 7, 8, 11, 13, 14, 15, 18, 19, 20, 21, 24, 25, 26, 29, 30, 31, 33, 34, 35, 36, 37, 39, 40, 41, 43, 44, 45}
    | {46, 49, 50, 51, 52, 53, 54, 55, 56, 58, 60, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 75, 77, 79, 80, 82}
    | {83, 84, 85, 86, 87, 90, 91, 93, 95, 97, 101, 102, 103, 104, 105, 106, 110, 111, 113, 114, 121, 122, 123, 124}
    | {129, 130}
)
CORE = frozenset(
    {2, 3, 4, 7, 11, 13, 14, 15, 18, 19, 21, 25, 39, 40, 44, 45, 53, 56, 58, 63, 67, 71, 82, 93, 97, 103, 110, 111}
    | {113, 124, 129, 130}
)

NUMBERS = tuple(range(11))
BLANK = "_"
START, END = "start", "end"
WORDS = ("J", "LB", "TPSI", "V", "b", "no", "oCLrZaW", "poiVg")
ABC = tuple("abc")
LETTERS = tuple(string.ascii_lowercase[:10])
ALPHABET = tuple(string.ascii_lowercase)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A task whose circuit is known.

    Attributes:
        id: Its number in InterpBench.
        name: A short name.
        task: What is asked at every position.
        program: What computes it.
        vocabulary: The tokens of an input.
        examples: Inputs and outputs, worked out by hand.
        causal: No position looks at later ones.
        kind: `cls` if the output is one of some values, `reg` if it is a number.
        max_length: Positions of the longest input, BOS included.
        min_length: Positions of the shortest.
    """

    id: int
    name: str
    task: str
    program: rasp.Variable
    vocabulary: tuple[rasp.Value, ...] = dataclasses.field(kw_only=True)
    examples: tuple[Example, ...] = dataclasses.field(kw_only=True)
    causal: bool = dataclasses.field(default=False, kw_only=True)
    kind: Literal["cls", "reg"] = dataclasses.field(default="cls", kw_only=True)
    max_length: int = dataclasses.field(default=10, kw_only=True)
    min_length: int = dataclasses.field(default=4, kw_only=True)

    @property
    def released(self) -> bool:
        """Whether InterpBench ships a trained model of it."""
        return self.id in RELEASED

    @property
    def core(self) -> bool:
        """Whether methods are compared on it: released, and not a single component."""
        return self.id in CORE

    def compiled(self) -> "compiling.Compiled":
        """The program as a transformer; made once."""
        return _compiled(self)

    def evaluate(self, tokens: Iterable[rasp.Value]) -> list[rasp.Value]:
        """What the program says, without a model."""
        return rasp.evaluate(self.program, tuple(tokens), causal=self.causal)

    @property
    def lengths(self) -> range:
        """How many tokens an input may have, BOS not counted."""
        return range(self.min_length - 1, self.max_length)

    @property
    def n_inputs(self) -> int:
        """How many inputs there are."""
        return sum(len(self.vocabulary) ** length for length in self.lengths)

    def inputs(self) -> Iterator[tuple[rasp.Value, ...]]:
        """Every input, short ones first."""
        for length in self.lengths:
            yield from itertools.product(self.vocabulary, repeat=length)

    def sample(self, n: int, *, seed: int = 0) -> list[tuple[rasp.Value, ...]]:
        """Random inputs: any length, then any tokens; some may be equal."""
        draw = random.Random(seed)
        return [tuple(draw.choices(self.vocabulary, k=draw.choice(self.lengths))) for _ in range(n)]


def worked(*pairs: tuple[Iterable[rasp.Value], Iterable[rasp.Value]]) -> tuple[Example, ...]:
    """Examples from pairs of input and output; a text stands for its letters."""
    return tuple((tuple(given), tuple(said)) for given, said in pairs)


@functools.cache
def _compiled(case: Case) -> "compiling.Compiled":
    from sonde.bench import compiling

    return compiling.compile(case.program, case.vocabulary, max_length=case.max_length, causal=case.causal)
