"""What would the program say if one number were another? Pairs for causal tracing, and pairs that control for them.

    made = CounterfactualGenerator(seed=0, tokenizer=model.tokenizer)
    made.root(program)          # another root constant: the answer changes
    made.distractor(program)    # another constant off the query's chain: the answer stays

The new constant occurs nowhere in the clean program: if another line had it too, an answer that follows that line would
look as if it followed the patch. Both programs of a pair have the same length in characters and, given a tokenizer, in
tokens, so that positions correspond. What a seed draws for a program does not depend on the programs before it. Costs one
encoding per candidate constant at most.
"""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from sonde.core import errors
from sonde.programs import chains, interpreter, prompts

Kind = Literal["root", "distractor"]


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A clean program and its twin.

    Attributes:
        kind: Whose constant differs: the query's root, or a distractor's.
        clean: The program.
        counterfactual: The same with one constant changed.
        clean_answer: What the program gives.
        counterfactual_answer: What the twin gives.
        line: The line that differs, from 1.
    """

    kind: Kind
    clean: str
    counterfactual: str
    clean_answer: int
    counterfactual_answer: int
    line: int


Accepts = Callable[[Pair], bool]


class CounterfactualGenerator:
    """Makes pairs of binding programs."""

    def __init__(self, *, seed: int = 0, tokenizer: Any = None, template: str = prompts.MINIMAL) -> None:
        """Makes no pair yet.

        Args:
            seed: Fixes which constant is changed into which.
            tokenizer: If given, both programs of a pair have as many tokens.
            template: The prompt in which tokens are counted.
        """
        prompts.check(template)
        self.seed, self.tokenizer, self.template = seed, tokenizer, template

    def root(self, program: str, *, accepts: Accepts = lambda pair: True) -> Pair:
        """Changes the constant that the query's chain ends in.

        Args:
            program: The program.
            accepts: Which pairs will do; of the others the next is tried.

        Raises:
            RequestError: It is no binding program, or no constant that is new to it has as many digits and tokens.
        """
        chain = chains.VariableChain.of(program)
        return self._pair("root", chain, [chain.root], accepts)

    def distractor(self, program: str, *, accepts: Accepts = lambda pair: True) -> Pair:
        """Changes a constant, drawn by the seed, that the query's chain does not touch.

        Args:
            program: The program.
            accepts: Which pairs will do; of the others the next is tried.

        Raises:
            RequestError: It is no binding program, has no such constant, or none that is new to it has as many digits and
                tokens.
        """
        chain = chains.VariableChain.of(program)
        constants = [one for one in chain.distractors if one.is_constant]
        if not constants:
            raise errors.RequestError(
                f"the program has no constant beside that of #{chain.query}:, so there is no control pair; take programs "
                "with more lines"
            )
        return self._pair("distractor", chain, constants, accepts)

    def pairs(self, programs: Sequence[str], kind: Kind = "root") -> list[Pair]:
        """Makes a pair of each program."""
        return [self.root(one) if kind == "root" else self.distractor(one) for one in programs]

    def _pair(
        self, kind: Kind, chain: chains.VariableChain, places: Sequence[chains.Assignment], accepts: Accepts
    ) -> Pair:
        """The first change, in random order of places and constants, that keeps the length and is accepted."""
        clean = chain.program
        rng = np.random.default_rng([self.seed, zlib.crc32(clean.encode())])
        expected, answer = self._length(clean), int(interpreter.answer(clean))
        for at in [places[int(one)] for one in rng.permutation(len(places))]:
            for constant in fresh(chain, at.right, rng):
                twin = clean[: at.start] + constant + clean[at.end :]
                if self._length(twin) != expected:
                    continue
                pair = Pair(kind, clean, twin, answer, int(interpreter.answer(twin)), at.line)
                if accepts(pair):
                    return pair
        if not any(fresh(chain, one.right, rng) for one in places):
            raise errors.RequestError(
                f"every constant that could stand for {places[0].right!r} on line {places[0].line} occurs in the program "
                "already, and an answer that follows another line would look like the twin's: use a program with fewer "
                "different constants"
            )
        raise errors.RequestError(
            f"no other constant than {places[0].right!r} on line {places[0].line} gives a program of {expected} tokens that "
            "will do: positions of a pair must correspond; use another tokenizer or program"
        )

    def _length(self, program: str) -> int:
        if self.tokenizer is None:
            return len(program)
        return len(self.tokenizer.encode(prompts.filled(self.template, program)))


def fresh(chain: chains.VariableChain, right: str, rng: np.random.Generator) -> list[str]:
    """Constants of as many digits and the same sign that occur nowhere in the program, in random order.

    At most a thousand; none if the program has them all, as ten different digits do.
    """
    sign, digits = ("-", right[1:]) if right.startswith("-") else ("", right)
    if len(digits) <= 3:
        low = 0 if len(digits) == 1 and not sign else 10 ** (len(digits) - 1)
        drawn = [str(one) for one in rng.permutation(np.arange(low, 10 ** len(digits)))]
    else:
        first, rest = rng.integers(1, 10, size=(1000, 1)), rng.integers(10, size=(1000, len(digits) - 1))
        drawn = ["".join(map(str, row)) for row in np.concatenate([first, rest], axis=1).tolist()]
    return [sign + one for one in drawn if int(sign + one) not in chain.constants]
