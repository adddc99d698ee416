"""How well does a trained model follow its program? Accuracy, IIA and strict accuracy.

    for found in measuring.measure(pupils, weights, rows=1000, key=1):
        found.accuracy, found.iia, found.strict, found.reached(0.999)

1. **accuracy**: answers as the program's.
2. **IIA** (interchange intervention accuracy): the same with a node swapped, in equally many rows for each node. `moved` says in
   which share of a node's exchanges the swap changes the answer at all: a node that never matters has an IIA of its accuracy.
3. **strict**: answers as if nothing had happened with nodes outside the circuit swapped: one, each with probability 1/2, all; or silent.
   The lowest of the four counts.

Answers at all positions but BOS count, each alone, unless the program has none there. Every length, or seven of them, has the same number
of rows; where the program reads the length (`lengths`) the others are of another length in half of them. Costs six passes over the rows.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from sonde.bench import high, lengths, siit

CHUNK = 512
LENGTHS = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One model, measured.

    Attributes:
        accuracy: Share of right answers.
        nodes: IIA of each node of the program.
        moved: Share of exchanges of each node that change the program's answer.
        ways: Strict accuracy for each way of swapping.
        answers: How many answers the accuracy is of.
    """

    accuracy: float
    nodes: dict[str, float]
    moved: dict[str, float]
    ways: dict[str, float]
    answers: int

    @property
    def iia(self) -> float:
        """Mean over nodes."""
        return float(np.mean(list(self.nodes.values())))

    @property
    def strict(self) -> float:
        """The lowest of the ways."""
        return min(self.ways.values())

    @property
    def lowest(self) -> float:
        """The lowest of accuracy, IIA and strict accuracy."""
        return min(self.accuracy, self.iia, self.strict)

    def reached(self, threshold: float) -> bool:
        """Whether all three reach a threshold."""
        return self.lowest >= threshold

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON data."""
        own = {"accuracy": self.accuracy, "iia": self.iia, "strict": self.strict, "answers": self.answers}
        return own | {"nodes": self.nodes, "moved": self.moved, "ways": self.ways}


def measure(
    pupils: siit.Pupils, weights: Float[Tensor, "seed parameter"], *, rows: int, key: int = 0
) -> list[Measured]:
    """Measures every model on the same rows, `rows` of each length; a key fixes them."""
    rng = np.random.default_rng([2, key])
    k, n = len(pupils.nodes), len(weights)
    first = 1 + len(siit.STRICT)
    hits, seen, moved, tried = torch.zeros(n, first + k), torch.zeros(first + k), torch.zeros(k), torch.zeros(k)
    for base, other in _pairs(pupils.task, rng, rows):
        node = torch.arange(len(base)) % k
        luck = torch.from_numpy(rng.random((len(base), pupils.free.shape[1]), dtype=np.float32))
        batch = pupils.judged(base, other, node, luck)
        found, answers = _right(pupils, weights, batch)
        hits, seen = hits + found, seen + answers
        of_node = F.one_hot(node, k).float()
        changed = lengths.changed(batch.plain, batch.swapped, regression=pupils.task.regression).any(dim=1)
        moved, tried = moved + changed.float() @ of_node, tried + of_node.sum(dim=0)
    shares, moves = (hits / seen.clamp(min=1)).tolist(), (moved / tried.clamp(min=1)).tolist()
    return [
        Measured(
            accuracy=row[0],
            nodes=dict(zip(pupils.nodes, row[first:], strict=True)),
            moved=dict(zip(pupils.nodes, moves, strict=True)),
            ways=dict(zip(siit.STRICT, row[1:first], strict=True)),
            answers=int(seen[0]),
        )
        for row in shares
    ]


def spread(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths that are measured: all, or seven from the shortest to the longest."""
    if len(lengths) <= LENGTHS:
        return lengths
    return tuple(lengths[round(index * (len(lengths) - 1) / (LENGTHS - 1))] for index in range(LENGTHS))


def _pairs(task: high.Task, rng: np.random.Generator, rows: int) -> Iterator[lengths.Two]:
    """So many rows of each length, in chunks; others of another length in half of them where the program reads it."""
    known = task.inputs.lengths
    for length in spread(known):
        for first in range(0, rows, CHUNK):
            count = min(CHUNK, rows - first)
            if not lengths.mixed(task):
                yield task.inputs.pair(rng, count, length=length)
                continue
            apart = [one for one in known if one != length]
            yield task.inputs.pair(rng, count - count // 2, length=length)
            yield task.inputs.pair(rng, count // 2, length=length, other=int(rng.choice(apart)))


def _right(
    pupils: siit.Pupils, weights: Float[Tensor, "seed parameter"], batch: siit.Batch
) -> tuple[Float[Tensor, "seed group"], Float[Tensor, "group"]]:
    """Right answers and all answers: behaviour, the strict ways, then each node."""
    ways = [("behaviour", "all"), *(("strict", way) for way in siit.STRICT), ("iit", "all")]
    masks = torch.stack([pupils.masks(batch, *way) for way in ways], dim=1)
    silent = torch.stack([pupils.silent(batch, *way) for way in ways], dim=1)
    right = torch.stack([batch.plain] * (len(ways) - 1) + [batch.swapped])
    with torch.no_grad():
        hits = pupils.hits(pupils.logits(weights, batch, masks, silent=silent), right).float().sum(dim=-1)
    known = torch.ones_like(right) if pupils.task.regression else right != high.UNKNOWN
    seen, of_node = known.float().sum(dim=-1), F.one_hot(batch.node, len(pupils.nodes)).float()
    found = torch.cat([hits[:, :-1].sum(dim=-1), hits[:, -1] @ of_node], dim=1)
    return found, torch.cat([seen[:-1].sum(dim=-1), seen[-1] @ of_node])
