"""What fixes the training of a model with a known circuit?

    recipe = recipes.Recipe(seeds=(0, 1), strict=1.0)
    recipe.steps, recipe.rate_at(0), recipe.weight_id

The same recipe, task and shape give the same batches, places and first weights. Costs nothing.
"""

import dataclasses
import math

from sonde.core import errors

WARM = 100
#: The kind of a run that trains a case.
KIND = "bench-train"


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """What fixes a run.

    Attributes:
        seeds: Of the weights and of the places.
        iit: Weight of the IIT loss; a loss of weight 0 is not computed.
        behaviour: Weight of the plain loss.
        strict: Weight of the strict loss.
        way: How the strict loss swaps: `individual`, `sample_all`, `all`, `mixed`.
        rate: The learning rate at its highest.
        epochs: At most so many.
        samples: Rows per epoch.
        batch: Rows per step.
        pool: Different batches.
        check: Steps between measurements.
        rows: Rows per length in a measurement.
        threshold: What is good; None to go on to the end.
        separate: A step for each loss.
        same_place: Nodes stand where they stand in the program.
        detached: No gradient flows through the outputs that are swapped in, as published.
    """

    seeds: tuple[int, ...] = (0,)
    iit: float = 1.0
    behaviour: float = 1.0
    strict: float = 0.4
    way: str = "mixed"
    rate: float = 1e-2
    epochs: int = 4
    samples: int = 96_000
    batch: int = 128
    pool: int = 400
    check: int = 250
    rows: int = 512
    threshold: float | None = 0.999
    separate: bool = False
    same_place: bool = False
    detached: bool = False

    def __post_init__(self) -> None:
        """Refuses a recipe that learns nothing."""
        if not max(self.iit, self.behaviour, self.strict) > 0:
            raise errors.RequestError("nothing to learn: give -iit, -b or -s a weight above 0")

    @property
    def steps(self) -> int:
        """Steps in all epochs."""
        return max(1, self.samples // self.batch) * self.epochs

    @property
    def weight_id(self) -> int:
        """The number by which weights are asked for: 10 iit + 100 behaviour + 1000 strict."""
        return int(round(10 * self.iit + 100 * self.behaviour + 1000 * self.strict, 6))

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        return self.rate * min((step + 1) / WARM, 1.0) * 0.5 * (1 + math.cos(math.pi * step / self.steps))
