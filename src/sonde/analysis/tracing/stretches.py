"""What does replacing that many positions do, wherever they stand? The control of an influence map.

    where = stretches.beside(step.start, step.end, before=80, count=5, rng=rng)
    control.put(i, later, kl_of_each, kl_of_the_step)

A step is a stretch of positions in a row, so its control is another stretch of the same length that was said before the
same reply, does not overlap with it, and leaves the first token alone, on which many heads rest. The interval is over the
stretches of one episode, of which some are drawn: it says what such a stretch does there, nothing about other episodes.
Costs nothing beside the forward passes.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sonde.analysis import stats


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Stretches:
    """What replacing as many positions elsewhere does, by the step whose length they have and the measured one.

    Attributes:
        mean: Mean KL over the stretches; nan where none fits beside the step, as for the longest.
        low: Lower end of its 95 % interval over stretches; nan with fewer than two.
        high: Upper end.
        below: Share of stretches that move the words less than the step itself does.
        n: How many stretches were replaced.
    """

    mean: Float[np.ndarray, "step step"]
    low: Float[np.ndarray, "step step"]
    high: Float[np.ndarray, "step step"]
    below: Float[np.ndarray, "step step"]
    n: Int[np.ndarray, "step step"]

    @classmethod
    def none(cls, count: int) -> "Stretches":
        """Of an episode of so many steps, before anything was replaced."""
        unknown = (np.full((count, count), np.nan) for _ in range(4))
        return cls(**dict(zip(("mean", "low", "high", "below"), unknown, strict=True)), n=np.zeros((count, count), int))

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON data; null where there is none."""
        return {name: plain(getattr(self, name)) for name in ("mean", "low", "high", "below")} | {"n": self.n.tolist()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Stretches":
        """The figures that `to_json` gave."""
        known = {name: np.array(told[name], dtype=np.float64) for name in ("mean", "low", "high", "below")}
        return cls(**known, n=np.array(told["n"], dtype=int))

    def put(
        self,
        step: int,
        later: Sequence[int],
        drawn: Float[np.ndarray, "stretch measured"],
        own: Float[np.ndarray, "measured"],
    ) -> None:
        """Sets cells of a step: what stretches did to each of the later steps, and what the step itself did."""
        for column, (measured, value) in enumerate(zip(later, own, strict=True)):
            cell, some = (step, measured), drawn[:, column]
            self.n[cell] = len(some)
            if len(some):
                self.mean[cell], self.below[cell] = some.mean(), (some < value).mean()
            if len(some) > 1:
                found = stats.mean_interval(some, np.arange(len(some)), rate=False)
                self.low[cell], self.high[cell] = max(found.low, 0.0), found.high

    def fill(self, block: slice, part: "Stretches") -> None:
        """Takes over the figures of some steps among themselves."""
        for field in dataclasses.fields(self):
            getattr(self, field.name)[block, block] = getattr(part, field.name)


def beside(start: int, end: int, *, before: int, count: int, rng: np.random.Generator) -> list[int]:
    """Where up to so many stretches as long as `start` to `end - 1` start that end before a position and do not overlap it."""
    size = end - start
    free = [*range(1, start - size + 1), *range(max(end, 1), before - size + 1)]
    return sorted(rng.choice(free, size=min(count, len(free)), replace=False).tolist()) if free else []


def plain(cells: Float[np.ndarray, "step step"]) -> list[list[float | None]]:
    """Rows of cells as JSON knows them: null where there is no figure."""
    return [[None if np.isnan(cell) else float(cell) for cell in row] for row in cells]
