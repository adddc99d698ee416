"""How well does a trained model follow its program? Accuracy, IIA and strict accuracy.

    for found in measuring.measure(pupils, weights, rows=1000, key=1):
        found.accuracy, found.iia, found.strict, found.reached(0.999)

1. **accuracy**: answers as the program's.
2. **IIA** (interchange intervention accuracy): the same with a node swapped, in equally many rows for each node. `moved` says in
   which share of a node's answers the swap matters at all: a node that never matters has an IIA of its accuracy.
3. **strict**: answers as if nothing had happened with nodes outside the circuit swapped: one, each with probability 1/2, all.
   The lowest of the three counts.

Answers at all positions but BOS count, each alone. Every length, or seven of them, has the same number of rows. Costs five passes over the rows.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.bench import siit

CHUNK = 512
LENGTHS = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One model, measured.

    Attributes:
        accuracy: Share of right answers.
        nodes: IIA of each node of the program.
        moved: Share of the program's answers that swapping each node changes.
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
    hits, moved = torch.zeros(n, 4 + k), torch.zeros(k)
    seen = torch.zeros(4 + k)
    for length in spread(pupils.task.inputs.lengths):
        for first in range(0, rows, CHUNK):
            found, changed, answers = _chunk(pupils, weights, rng, min(CHUNK, rows - first), length)
            hits, moved, seen = hits + found, moved + changed, seen + answers
    shares, moves = (hits / seen).tolist(), (moved / seen[4:]).tolist()
    return [
        Measured(
            accuracy=row[0],
            nodes=dict(zip(pupils.nodes, row[4:], strict=True)),
            moved=dict(zip(pupils.nodes, moves, strict=True)),
            ways=dict(zip(siit.STRICT, row[1:4], strict=True)),
            answers=int(seen[0]),
        )
        for row in shares
    ]


def spread(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths that are measured: all, or seven from the shortest to the longest."""
    if len(lengths) <= LENGTHS:
        return lengths
    return tuple(lengths[round(index * (len(lengths) - 1) / (LENGTHS - 1))] for index in range(LENGTHS))


def _chunk(
    pupils: siit.Pupils, weights: Float[Tensor, "seed parameter"], rng: np.random.Generator, rows: int, length: int
) -> tuple[Float[Tensor, "seed group"], Float[Tensor, "node"], Float[Tensor, "group"]]:
    """Right answers, answers that moved, and all answers: behaviour, three strict ways, then each node."""
    base, other = pupils.task.inputs.pair(rng, rows, length=length)
    node = torch.arange(rows) % len(pupils.nodes)
    luck = torch.from_numpy(rng.random((rows, pupils.free.shape[1]), dtype=np.float32))
    batch = pupils.judged(base, other, node, luck)
    masks = [pupils.masks(batch, "behaviour"), *(pupils.masks(batch, "strict", way) for way in siit.STRICT)]
    masks = torch.stack([*masks, pupils.masks(batch, "iit")], dim=1)
    right = torch.stack([batch.plain] * 4 + [batch.swapped])
    with torch.no_grad():
        found = pupils.hits(pupils.logits(weights, batch, masks), right).float().sum(dim=-1)
    of_node = torch.nn.functional.one_hot(node, len(pupils.nodes)).float()
    changed = (batch.plain - batch.swapped).abs() > (siit.TOLERANCE if pupils.task.regression else 0)
    each = float(batch.plain.shape[1])
    seen = torch.cat([torch.full((4,), rows * each), of_node.sum(dim=0) * each])
    hits = torch.cat([found[:, :4].sum(dim=-1), found[:, 4] @ of_node], dim=1)
    return hits, changed.float().sum(dim=-1) @ of_node, seen
