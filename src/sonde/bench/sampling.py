"""Which inputs is a case trained and judged on?

    inputs = sampling.Inputs(symbols=(0, 1, 2), bos=4, lengths=(3, 4))
    base, other = inputs.pair(np.random.default_rng([0, step]), rows=256)

Even draws of every token would show some programs one answer only: of ten numbers below 30, drawn evenly, practically none
are sorted, or all equal. So a row is one of these, and both sets of a pair are drawn independently:

| share | row |
|---|---|
| 1/2 | every token drawn evenly |
| 1/6 | drawn from two or three of the tokens |
| 1/6 | sorted in the order of the vocabulary, from all or few of the tokens |
| 1/6 | sorted, then two places exchanged |

All rows of one draw have the same length, drawn evenly, so nothing is padded; the others of a pair may have another one. Costs microseconds per row.
"""

import dataclasses

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """What the inputs of a case are made of.

    Attributes:
        symbols: Token ids, in the order by which rows are sorted.
        bos: The id that every row starts with.
        lengths: How many tokens may follow it.
    """

    symbols: tuple[int, ...]
    bos: int
    lengths: tuple[int, ...]

    def pair(
        self, rng: np.random.Generator, rows: int, *, length: int | None = None, other: int | None = None
    ) -> tuple[Int[Tensor, "row pos"], Int[Tensor, "row there"]]:
        """Base inputs, of a length that is drawn if it is not given, and others to take activations from, of the same or another."""
        length = int(rng.choice(self.lengths)) if length is None else length
        return self._draw(rng, rows, length), self._draw(rng, rows, length if other is None else other)

    def _draw(self, rng: np.random.Generator, rows: int, length: int) -> Int[Tensor, "row pos"]:
        n = len(self.symbols)
        even = rng.integers(n, size=(rows, length))
        few = rng.integers(n, size=(rows, 3))[np.arange(rows)[:, None], rng.integers(3, size=(rows, length))]
        kind = rng.integers(
            12, size=rows
        )  # 0-5 even, 6-7 few, 8 and 10 sorted and almost sorted, 9 and 11 of few tokens
        found = np.where(((kind == 6) | (kind == 7) | (kind == 9) | (kind == 11))[:, None], few, even)
        found = np.where((kind >= 8)[:, None], np.sort(found, axis=1), found)
        first, second = rng.integers(length, size=(2, rows))
        every = np.arange(rows)
        exchanged = found.copy()
        exchanged[every, first], exchanged[every, second] = found[every, second], found[every, first]
        found = np.where((kind >= 10)[:, None], exchanged, found)
        tokens = np.full((rows, length + 1), self.bos)
        tokens[:, 1:] = np.array(self.symbols)[found]
        return torch.from_numpy(tokens)
