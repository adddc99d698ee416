"""An episode that can be gone on with: at any step, again and again, under other interventions.

    trajectory = played[0].trajectory
    others = trajectory.fork(5, interventions=[sonde.Zero("blocks.3.hook_attn_out")], n=16)

The environment is put back by its snapshot or by doing once more what was done; the conversation's tokens are those
that were sampled. The continuations are one batch, and what they have in common is encoded once.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import torch

from sonde.agents import history, plans, waves
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, interventions, sites
from sonde.models import model as models_model


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where an episode comes from: what it takes to go on with it.

    Attributes:
        settings: What was played.
        make: Makes its environment.
        model: The model that played it.
        plan: Which of the episodes it is.
    """

    settings: plans.Settings
    make: Callable[[], Any]
    model: models_model.Model
    plan: plans.Plan

    @classmethod
    def of(cls, env: Any, client: Any, task: Any) -> "Origin | None":
        """Of an episode that was played by hand; None if the environment cannot be made again for its task."""
        model, held = getattr(client, "model", None), getattr(client, "fwd_hooks", ())
        if task is None or not isinstance(model, models_model.Model) or not hasattr(env, "with_task") or callable(held):
            return None
        generation = {"max_new_tokens": client.max_new_tokens, **client.generation_kwargs}
        settings = plans.Settings(
            environment=None,
            options={},
            model=model.cfg.model_name,
            episodes=1,
            conditions={"": tuple(models_model.bind_hooks(list(held), model))},
            capture={"sites": []},
            generation={
                **{name: value for name, value in generation.items() if value is not None},
                "context_policy": client.context_policy,
            },
            threads=torch.get_num_threads(),
        )
        return cls(settings, lambda: env.with_task(task), model, plans.Plan(0, 0))


class EpisodeTrajectory(capture_trajectory.TrajectoryActivations):
    """The record of an episode, and the way back into it."""

    origin: Origin | None = None

    @classmethod
    def of(
        cls, source: "Path | capture_trajectory.TrajectoryActivations", origin: Origin | None
    ) -> "EpisodeTrajectory":
        """The record in a folder, or one in memory, with its origin."""
        if isinstance(source, Path):
            source = capture_trajectory.TrajectoryActivations.load(source)
        found = cls(source.records, source.steps, reward=source.reward, metadata=source.metadata)
        found.origin = origin
        return found

    @property
    def moments(self) -> list[history.Moment]:
        """The steps as they were played: what was seen, said and got."""
        return history.moments(self)

    def fork(
        self,
        step: int,
        *,
        interventions: Sequence[interventions.Intervention] | None = None,
        n: int = 1,
        capture: sites.SiteFilter = None,
        max_steps: int | None = None,
    ) -> Any:
        """Rolls out continuations from a step on.

        Args:
            step: The first step that is played anew; what was seen, said and got before it stays.
            interventions: What to change from there on, in place of what the episode was played under; None: the same.
            n: How many continuations; each draws random numbers of its own.
            capture: Sites to record in the new steps; None: tokens only.
            max_steps: Stop when the episode, counted from its start, has so many steps; None: as it was played.

        Returns:
            One EpisodeTrajectory per continuation: its steps are the new ones, `reward` that of the whole episode,
            past included. Inside an event loop, a coroutine of that.

        Raises:
            EpisodeError: There is no such step, or the environment cannot be taken back there.
        """
        if self.origin is None:
            raise errors.EpisodeError(
                "this trajectory does not know its environment: play it with sonde.play or run_episode, and fork that"
            )
        if not 0 <= step < len(self):
            raise errors.EpisodeError(f"no step {step} to fork at: the episode has steps 0 to {len(self) - 1}")
        if n < 1:
            raise errors.RequestError(f"n must be at least 1, got {n}")
        return now_or_later(self._rolled(self.origin, step, interventions, n, capture, max_steps))

    async def _rolled(
        self,
        origin: Origin,
        step: int,
        held: Sequence[interventions.Intervention] | None,
        n: int,
        capture: sites.SiteFilter,
        max_steps: int | None,
    ) -> list["EpisodeTrajectory"]:
        before = origin.settings
        under = before.conditions[origin.plan.condition]
        names = sites.select(capture, origin.model.site_names) if capture else []
        settings = dataclasses.replace(
            before,
            conditions={"": under if held is None else tuple(held)},
            capture={"sites": names, "positions": "all"},
            max_steps=before.max_steps if max_steps is None else max_steps,
        )
        stage = waves.Stage(
            model=origin.model,
            make=origin.make,
            settings=settings,
            folder=None,
            past=tuple(self.moments[:step]),
            past_under=under,
        )
        branches = [plans.Plan(index, origin.plan.episode, "", branch=index + 1) for index in range(n)]
        done = []
        for start in range(0, n, settings.wave):
            wave = branches[start : start + settings.wave]
            for plan, found in zip(wave, await waves.play_wave(stage, wave), strict=True):
                found.metadata |= {"forked_at": step, "branch": plan.branch}
                if "error" in found.metadata:
                    raise errors.EpisodeError(f"continuation {plan.index} could not go on: {found.metadata['error']}")
                done.append(EpisodeTrajectory.of(found, dataclasses.replace(origin, settings=settings, plan=plan)))
        return done


def now_or_later(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end; inside an event loop, hands it back to be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return work
