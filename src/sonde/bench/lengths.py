"""Pairs of inputs between which nodes are exchanged: of one length, or of different ones where the program reads the length.

    lengths.mixed(task)                                        # does it read the length?
    base, other = lengths.pair(task, rng, rows=256)            # for training and for measuring
    base, other = lengths.longest(task, rng, rows=100)         # for circuit finders and evaluations of one model

A node that finds out how long the input is says the same on all inputs of one length: exchanged between those it changes no answer, training
cannot teach it anything, and nobody could find it. So

1. A program reads the length if one of its nodes changes less than 2 % of exchanges between inputs of one length, and at
   least as many between inputs of different lengths.
2. Then half of the draws are of one length, and the others of two, drawn evenly.
   For circuit finders, which take one length, base inputs are of the greatest length, and the others of the shorter one for which
   the node that matters least matters most.
3. A node is exchanged at the positions that both inputs have, and keeps its own at those that the other one does not have.

An exchange changes the answer if at any position that counts the program has an answer before and after it, and they are not the same.

Costs two passes of the program over 480 rows per node, once per task.
"""

import functools
from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from sonde.bench import correspondence, high

LEAST = 0.02
TOLERANCE = 0.05
ROWS, DRAWS = 20, 24
Two = tuple[Int[Tensor, "row pos"], Int[Tensor, "row there"]]


def pair(task: high.Task, rng: np.random.Generator, rows: int, *, length: int | None = None) -> Two:
    """Base inputs, of a length that is drawn if it is not given, and others to take activations from."""
    known = task.inputs.lengths
    length = int(rng.choice(known)) if length is None else length
    other = int(rng.choice(known)) if mixed(task) and rng.random() < 0.5 else length
    return task.inputs.pair(rng, rows, length=length, other=other)


def longest(task: high.Task, rng: np.random.Generator, rows: int) -> Two:
    """Inputs of the greatest length; where the program reads it, the others are of a shorter one."""
    most = max(task.inputs.lengths)
    return task.inputs.pair(rng, rows, length=most, other=_shorter(task) if mixed(task) else most)


def mixed(task: high.Task) -> bool:
    """Whether the program reads the length, so that inputs of different lengths must be exchanged."""
    return len(task.inputs.lengths) > 1 and _mixed(task)


def moved(task: high.Task, pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The share of exchanges that change the answer, for each node of the program."""
    names = correspondence.nodes_of(task.program.circuit)
    count, rows = torch.zeros(len(names)), 0
    for base, other in pairs:
        swapped = torch.eye(len(names) + 1, len(names), dtype=torch.bool)[:, None].expand(-1, len(base), -1)
        plain, *others = task.program.answers(base, other, swapped.roll(1, dims=0))[:, :, task.counted]
        count += torch.stack([changed(plain, one, regression=task.regression).any(dim=1).sum() for one in others])
        rows += len(base)
    return dict(zip(names, (count / rows).tolist(), strict=True))


def changed(
    plain: Shaped[Tensor, "*any counted"], swapped: Shaped[Tensor, "*any counted"], *, regression: bool
) -> Bool[Tensor, "*any counted"]:
    """Where a swap changes an answer: another class, or a number that is not near; not where there is none."""
    if regression:
        return (plain - swapped).abs() > TOLERANCE
    return (plain != swapped) & (plain != high.UNKNOWN) & (swapped != high.UNKNOWN)


@functools.lru_cache(maxsize=256)
def _mixed(task: high.Task) -> bool:
    known = task.inputs.lengths

    def draws(rng: np.random.Generator, *, apart: bool) -> Iterable[tuple[Tensor, Tensor]]:
        for _ in range(DRAWS):
            one, two = (int(length) for length in rng.choice(known, size=2, replace=False))
            yield task.inputs.pair(rng, ROWS, length=one, other=two if apart else one)

    same = moved(task, draws(np.random.default_rng(5), apart=False))
    if all(share >= LEAST for share in same.values()):
        return False
    across = moved(task, draws(np.random.default_rng(6), apart=True))
    return any(share < LEAST <= across[node] for node, share in same.items())


@functools.lru_cache(maxsize=256)
def _shorter(task: high.Task) -> int:
    """The length of others under which the node that matters least matters most."""
    *known, most = sorted(task.inputs.lengths)

    def good(length: int) -> tuple[int, float, int]:
        rng = np.random.default_rng([8, length])
        shares = moved(task, [task.inputs.pair(rng, 3 * ROWS, length=most, other=length)])
        enough = [share for share in shares.values() if share >= LEAST]
        return len(enough), min(enough, default=0.0), length

    return max(known, key=good)
