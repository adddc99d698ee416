"""Playing one episode: environment and client, with or without a capture or interventions.

Every function here can be called plainly, and then runs the episode to its end; or inside an event loop, and then it
is awaited. Both give the Trajectory of the episode.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sonde.agents import history, trajectories
from sonde.capture import capture as capture_capture
from sonde.capture import manager as capture_manager
from sonde.capture import records as capture_records
from sonde.capture import trajectory as capture_trajectory
from sonde.core import sites
from sonde.models import model as models_model

OnStep = Callable[[int, Any, Any], None]


def run_episode(
    env: Any,
    client: Any,
    capture: capture_capture.ActivationCapture | None = None,
    *,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
) -> Any:
    """Plays one episode.

    Args:
        env: An environment.
        client: A client.
        capture: What records; by default, with a client that has a model, a capture of the last prompt token's
            residual stream, and with any other the conversation only.
        max_steps: Stop after so many steps.
        on_step: Called after each step with its number, the action and the new TimeStep.

    Returns:
        The Trajectory; `reward` is the sum of the rewards. Inside an event loop, a coroutine of it.
    """
    return trajectories.now_or_later(_play(env, client, capture, max_steps, on_step))


def run_episode_with_intervention(
    env: Any,
    client: Any,
    manager: capture_manager.InterventionManager,
    *,
    capture: capture_capture.ActivationCapture | None = None,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
) -> Any:
    """Plays one episode under a manager's interventions; as `run_episode` otherwise."""

    async def play() -> trajectories.EpisodeTrajectory:
        with manager:
            return await _play(env, client, capture, max_steps, on_step)

    return trajectories.now_or_later(play())


def run_and_cache_episode(
    env: Any,
    client: Any,
    task: Any = None,
    hook_filter: sites.SiteFilter = None,
    *,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
) -> Any:
    """Plays one episode, of a task if given, and records it whole; as `run_episode` otherwise."""

    async def play() -> trajectories.EpisodeTrajectory:
        chosen = env if task is None else env.with_task(task)
        capture = capture_capture.ActivationCapture(client.model, hook_filter)
        return await _play(chosen, client, capture, max_steps, on_step)

    return trajectories.now_or_later(play())


async def _play(
    env: Any,
    client: Any,
    capture: "capture_capture.ActivationCapture | _Notes | None",
    max_steps: int | None,
    on_step: OnStep | None,
) -> trajectories.EpisodeTrajectory:
    capture = capture or _default_capture(client)
    task, before = None, None
    with capture.boarded():
        total, step = 0.0, 0
        async with env:
            now = await env.reset()
            task = getattr(env, "task", None)
            while not now.last() and (max_steps is None or step < max_steps):
                seen = now.observation
                with capture.step():
                    action = await client(seen)
                    now = await env.step(action)
                    capture.record_step_metadata(history.noted(seen, before, action, now, env))
                total += float(now.reward or 0.0)
                before, step = seen, step + 1
                if on_step is not None:
                    on_step(step - 1, action, now)
        capture.reward = total
    origin = trajectories.Origin.of(env, client, task, capture.settings, max_steps)
    return trajectories.EpisodeTrajectory.of(capture.get_trajectory(), origin)


class _Notes:
    """Stands in for a capture where there is no model to look into: what was seen and said is kept, and no more."""

    def __init__(self) -> None:
        self.reward: float | None = None
        self._steps: list[capture_trajectory.Step] = []
        self._noted: dict[str, Any] = {}

    @property
    def settings(self) -> dict[str, Any]:
        return {"sites": []}

    def boarded(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self._noted = {}
        yield
        self._steps.append(capture_trajectory.Step(metadata=self._noted))

    def record_step_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._noted |= metadata

    def get_trajectory(self) -> capture_trajectory.TrajectoryActivations:
        return capture_trajectory.TrajectoryActivations(capture_records.Records(), self._steps, reward=self.reward)


def _default_capture(client: Any) -> capture_capture.ActivationCapture | _Notes:
    model = getattr(client, "model", None)
    if not isinstance(model, models_model.Model):
        return _Notes()
    last = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    return capture_capture.ActivationCapture(model, last, positions="last_prompt")
