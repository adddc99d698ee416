"""What fixes the training of a model with a known circuit?

    recipe = recipes.Recipe(seeds=(0, 1), strict=1.0)
    recipe.steps, recipe.rate_at(0), recipe.weight_id

The same recipe, task and shape give the same batches, places and first weights. Costs nothing.
"""

import math
from typing import Any, Literal, Self

import pydantic

from sonde.core import settings as core_settings

WARM = 100
#: The kind of a run that trains a case.
KIND = "bench-train"


class Recipe(core_settings.Settings):
    """What fixes a training; the same in every try of a case but for rate and epochs."""

    seeds: tuple[int, ...] = core_settings.field((0,), "Of the weights and of the places.", option="", min_length=1)
    iit: float = core_settings.field(1.0, "Weight of the IIT loss; one of weight 0 is not computed.", option="", ge=0)
    behaviour: float = core_settings.field(1.0, "Weight of the plain loss.", option="", ge=0)
    strict: float = core_settings.field(0.4, "Weight of the strict loss.", option="", ge=0)
    way: Literal["individual", "sample_all", "all", "mixed"] = core_settings.field(
        "mixed", "How the strict loss swaps.", option="--siit-sampling"
    )
    rate: float = core_settings.field(1e-2, "The learning rate at its highest.", option="", ge=0)
    epochs: int = core_settings.field(4, "At most so many.", option="", ge=1)
    samples: int = core_settings.field(96_000, "Rows per epoch.", option="", ge=1)
    batch: int = core_settings.field(128, "Rows per step.", option="--batch-size", ge=1)
    pool: int = core_settings.field(400, "Different batches.", ge=1)
    check: int = core_settings.field(250, "Steps between measurements.", option="", ge=1)
    rows: int = core_settings.field(512, "Rows per length in a measurement.", option="", ge=1)
    threshold: float | None = core_settings.field(0.999, "What is good; None to go on to the end.", option="")
    separate: bool = core_settings.field(False, "A step for each loss.", option="--separate-steps")
    same_place: bool = core_settings.field(False, "Nodes stand where they stand in the program.")
    detached: bool = core_settings.field(
        False, "No gradient flows through the outputs that are swapped in, as published."
    )

    @pydantic.model_validator(mode="after")
    def _learns(self) -> Self:
        if not max(self.iit, self.behaviour, self.strict) > 0:
            raise ValueError("nothing to learn: give -iit, -b or -s a weight above 0")
        return self

    def told(self) -> dict[str, Any]:
        """As logs have it: the recipe alone, as JSON data."""
        return self.model_dump(mode="json", include=set(Recipe.model_fields))

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
