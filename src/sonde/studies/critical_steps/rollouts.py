"""Continuations of an episode from a step on, with and without what one layer adds to that step.

1. Put the environment and the conversation back to where the recorded episode stood before the step.
2. Play on to the end, several times: under the sham, and under the ablation of each cell of that step. Equal
   continuations of different conditions draw the same random numbers, so that what differs is the ablation.
3. Of each continuation keep: was the step itself valid, the share of valid messages among the later steps, and the
   reward of the later steps. Where the environment gives no verdicts the reward is all there is.

The forks are those of `EpisodeTrajectory.fork`, with several conditions in one batch. Environments without snapshots are
taken back by replay. Cost: conditions x rollouts continuations per episode and step.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.agents import plans, trajectories, waves
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, interventions

#: The name of the control condition.
SHAM = "sham"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one continuation.

    Attributes:
        own: Whether the step itself was valid; None without verdicts.
        later: Share of valid messages among the later steps; None without verdicts, or without later steps.
        reward: Sum of the rewards of the later steps.
    """

    own: bool | None
    later: float | None
    reward: float

    @classmethod
    def of(cls, continuation: capture_trajectory.TrajectoryActivations) -> "Outcome":
        """Reads a continuation whose first step is the one in question."""
        own, *later = [verdict(note) for note in continuation.step_metadata]
        known = [valid for valid in later if valid is not None]
        reward = sum(float(note["reward"] or 0.0) for note in continuation.step_metadata[1:])
        return cls(own, float(np.mean(known)) if known else None, reward)

    def to_json(self) -> list[Any]:
        """For the file of a work item."""
        return [self.own, self.later, self.reward]


def verdict(note: Mapping[str, Any]) -> bool | None:
    """The recorded verdict on a step's message; None if the environment gives none."""
    valid = (note.get("info") or {}).get("valid")
    return None if valid is None else bool(valid)


async def roll_out(
    trajectory: trajectories.EpisodeTrajectory,
    step: int,
    conditions: Mapping[str, Sequence[interventions.Intervention]],
    *,
    n: int,
    wave: int,
) -> dict[str, list[Outcome]]:
    """Plays on from a step under several conditions.

    Args:
        trajectory: The recorded episode.
        step: The first step that is played anew.
        conditions: Interventions by name.
        n: Continuations per condition.
        wave: Continuations that go in one batch.

    Raises:
        EpisodeError: The episode cannot be taken back there, or a continuation could not go on.
    """
    origin = trajectory.origin
    if origin is None:
        raise errors.EpisodeError("this trajectory does not know its environment: play it with sonde.play")
    stage = waves.Stage(
        model=origin.model,
        make=origin.make,
        settings=origin.settings.changed(
            conditions={name: tuple(held) for name, held in conditions.items()},
            capture={"sites": [], "positions": "all"},
        ),
        folder=None,
        past=trajectory.past(step),
        chat=origin.chat,
    )
    pairs = [(branch, name) for branch in range(n) for name in conditions]
    rows = [plans.Plan(i, origin.plan.episode, name, branch + 1) for i, (branch, name) in enumerate(pairs)]
    found: dict[str, list[Outcome]] = {name: [] for name in conditions}
    for start in range(0, len(rows), wave):
        batch = rows[start : start + wave]
        for plan, continuation in zip(batch, await waves.play_wave(stage, batch), strict=True):
            if "error" in continuation.metadata:
                raise errors.EpisodeError(
                    f"a continuation of episode {origin.plan.episode} from step {step} under {plan.condition!r} could not "
                    f"go on: {continuation.metadata['error']}"
                )
            found[plan.condition].append(Outcome.of(continuation))
    return found
