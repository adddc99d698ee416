"""Playing one episode: environment and client, with or without a capture or interventions.

Every function here can be called plainly, and then runs the episode to its end; or inside an event loop, and then it
is awaited. Both give the Trajectory of the episode.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from sonde.agents import reading
from sonde.capture import capture as capture_capture
from sonde.capture import manager as capture_manager
from sonde.capture import trajectory as capture_trajectory
from sonde.core import sites

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
        capture: What records; with a model client, by default a capture of the last prompt token's residual stream.
        max_steps: Stop after so many steps.
        on_step: Called after each step with its number, the action and the new TimeStep.

    Returns:
        The Trajectory; `reward` is the sum of the rewards. Inside an event loop, a coroutine of it.
    """
    return _now_or_later(_play(env, client, capture, max_steps, on_step))


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

    async def play() -> capture_trajectory.TrajectoryActivations:
        with manager:
            return await _play(env, client, capture, max_steps, on_step)

    return _now_or_later(play())


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

    async def play() -> capture_trajectory.TrajectoryActivations:
        chosen = env if task is None else env.with_task(task)
        capture = capture_capture.ActivationCapture(client.model, hook_filter)
        return await _play(chosen, client, capture, max_steps, on_step)

    return _now_or_later(play())


async def _play(
    env: Any,
    client: Any,
    capture: capture_capture.ActivationCapture | None,
    max_steps: int | None,
    on_step: OnStep | None,
) -> capture_trajectory.TrajectoryActivations:
    if capture is None:
        last = f"blocks.{client.model.cfg.n_layers - 1}.hook_resid_post"
        capture = capture_capture.ActivationCapture(client.model, last, positions="last_prompt")
    with capture.boarded():
        total, step = 0.0, 0
        async with env:
            now = await env.reset()
            while not now.last() and (max_steps is None or step < max_steps):
                with _step(capture):
                    action = await client(now.observation)
                    now = await env.step(action)
                    capture.record_step_metadata({"reward": now.reward, "text": reading.text_of(action)})
                total += float(now.reward or 0.0)
                step += 1
                if on_step is not None:
                    on_step(step - 1, action, now)
        capture.reward = total
    return capture.get_trajectory()


@contextlib.contextmanager
def _step(capture: capture_capture.ActivationCapture) -> Iterator[None]:
    """One step: request, response and what came of it; if any of that fails, no step is left open."""
    capture.start_step()
    try:
        yield
        capture.end_step()
    except BaseException:
        capture.abandon_step()
        raise


def _now_or_later(
    episode: Coroutine[Any, Any, capture_trajectory.TrajectoryActivations],
) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(episode)
    return episode
