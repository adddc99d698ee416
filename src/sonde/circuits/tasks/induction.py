"""Induction: a random sequence begins again. What followed last time?

    t7 t2 t9 t4 t1 t8 | t2 t9        -> t4, not t8

Tokens are drawn from the vocabulary, so nothing but the repetition helps. Corruption: in the first stretch, the repeated
token changes places with another one; every token is still there, and the one that now follows is another.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from sonde.circuits import pairs
from sonde.circuits.tasks import building
from sonde.core import errors


def make(
    model: Any, *, n: int = 64, seed: int = 0, length: int = 12, again: int = 4
) -> tuple[pairs.Pairs, building.Report]:
    """Induction: the token that followed at an earlier occurrence, in random sequences.

    Args:
        model: Whose vocabulary is drawn from.
        n: How many pairs.
        seed: Of the drawing.
        length: Tokens in the first stretch.
        again: How many of them come again.
    """
    special = set(getattr(model.tokenizer, "all_special_ids", ()))
    tokens = [token for token in range(model.cfg.d_vocab) if token not in special]
    if not 1 <= again <= length - 4:
        raise errors.RequestError(f"again is {again} with length {length}: expected between 1 and {length - 4}")
    if len(tokens) < length:
        raise errors.RequestError(f"induction needs {length} different tokens, the model has {len(tokens)}")
    builder = building.Builder(model, "induction")
    start = list(model.tokenizer.encode("")) if model.tokenizer is not None else []
    builder.fill(_drafts(random.Random(seed), tokens, start, (length, again)), n=n)
    return builder.finish()


def _drafts(
    rng: random.Random, tokens: list[int], start: list[int], sizes: tuple[int, int]
) -> Iterator[building.Draft]:
    length, again = sizes
    for number in itertools.count():
        first = rng.sample(tokens, length)
        last = rng.randrange(again - 1, length - 1)
        other = rng.choice([place for place in range(length - 1) if abs(place - last) > 1])
        swapped = list(first)
        swapped[last], swapped[other] = first[other], first[last]
        repeated = first[last - again + 1 : last + 1]
        yield building.Draft(
            [*start, *first, *repeated],
            [*start, *swapped, *repeated],
            [first[last + 1]],
            [first[other + 1]],
            label=f"sequence {number}",
        )
