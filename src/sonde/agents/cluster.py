"""Waves on a Ray cluster: the same work items, elsewhere.

Every wave is one task that loads the model by its name, plays, and writes its episodes into the run's folder, which
every node must see under the same path (one machine, or a shared file system). Seed, wave and thread count fix the
result, so it is the same as in process, to the last bit on machines of the same kind.

Cost: one load of the model per worker process. Nothing opaque (functions, interventions that are functions) can travel.
"""

import asyncio
import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sonde import store
from sonde.agents import plans, playing, waves
from sonde.core import errors
from sonde.models import loading
from sonde.models import model as models_model


async def play(
    run: store.Run, settings: plans.Settings, todo: Sequence[Sequence[plans.Plan]], *, on_tick: waves.OnTick
) -> None:
    """Plays waves on the cluster that Ray is connected to: $RAY_ADDRESS, or one started here.

    Raises:
        OpaqueError: The settings cannot be sent.
        MissingExtraError: Ray is not installed.
    """
    if settings.opaque:
        raise errors.OpaqueError(
            f"{settings.opaque[0]} cannot be sent to another process: name a preset and use data interventions"
        )
    try:
        import ray
    except ImportError as error:
        raise errors.MissingExtraError("ray", extra="ray", feature="engine='ray'") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    task = ray.remote(num_cpus=settings.threads, max_retries=2)(_work)
    written = settings.to_json()
    numbers = {wave[0].index: number for number, wave in enumerate(settings.waves())}
    refs = [task.remote(str(run.folder), written, numbers[wave[0].index]) for wave in todo]

    async def finish(ref: Any) -> None:
        for tick in await ref:
            on_tick(_read(tick))

    try:
        await asyncio.gather(*(finish(ref) for ref in refs))
    except BaseException as error:
        for ref in refs:
            ray.cancel(ref)
        cause = getattr(error, "cause", None)
        raise cause if isinstance(cause, errors.SondeError) else error from None


def _work(folder: str, written: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Plays one wave in a worker; what it tells is plain data."""
    settings = plans.Settings.from_json(written)
    assert settings.environment is not None
    ticks: list[dict[str, Any]] = []

    def note(tick: waves.Tick) -> None:
        ticks.append(
            {
                "plan": [tick.plan.index, tick.plan.episode, tick.plan.condition],
                "step": tick.step,
                "tokens": tick.tokens,
                "over": tick.over,
                "again": tick.again,
                "failed": tick.failed,
            }
        )

    with playing.pinned(settings.threads):
        stage = waves.Stage(
            model=_model(settings.model),
            make=playing.maker(settings.environment, settings),
            settings=settings,
            folder=store.Run.open(Path(folder)).episodes_dir,
            on_tick=note,
        )
        asyncio.run(waves.play_wave(stage, settings.waves()[number]))
    return ticks


@functools.lru_cache(maxsize=1)
def _model(name: str) -> models_model.Model:
    return loading.load(name)


def _read(tick: dict[str, Any]) -> waves.Tick:
    return waves.Tick(**{**tick, "plan": plans.Plan(*tick["plan"])})
