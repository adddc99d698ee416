"""Waves on a Ray cluster: the same work items, elsewhere.

Every wave is one task that loads the model again, plays, and writes its episodes into the run's folder, which every node
must see under the same path (one machine, or a shared file system). Seed, wave and thread count fix the result, so it is
the same as in process, to the last bit on machines of the same kind.

What a worker plays is what the caller holds: it compares the model that it has loaded with the caller's record (see
`models.identity`) before its first wave. `check` sends one worker ahead, so that what cannot be rebuilt there is refused
before anything is written.

Cost: one load of the model and one look at its weights per worker process, and the first of them before anything else
starts. Nothing opaque (functions, interventions that are functions) can travel.
"""

import asyncio
import functools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde import experiments, store
from sonde.agents import plans, waves
from sonde.core import errors
from sonde.models import identity, riders
from sonde.models import model as models_model


def check(settings: plans.PlaySettings, model: models_model.Model, held: Mapping[str, Any]) -> None:
    """Makes sure that workers will play what is held here.

    Args:
        settings: What is to be played.
        model: The model here.
        held: Its record.

    Raises:
        OpaqueError: A function, a capture or a manager, which cannot be sent.
        ModelError: The model cannot be sent, or a worker gets another one; says what differs.
        SelectorError: Workers do not know the environment.
        MissingExtraError: Ray is not installed.
    """
    opaque = list(settings.opaque)
    if riders.of(model):
        opaque.append("a capture or an InterventionManager that is in force here")
    if opaque:
        raise errors.OpaqueError(
            f"{opaque[0]} cannot be sent to another process: name a preset and use data interventions"
        )
    if held["source"] is None:
        raise errors.ModelError(
            f"{held['name']!r} was made from an object and cannot be sent to another process: save it to a folder (network and "
            "tokenizer), and sonde.load that"
        )
    ref = _remote(settings, held, _rehearse).remote(settings.to_json(), json.dumps(held))
    import ray

    try:
        ray.get(ref)
    except Exception as error:
        raise _cause(error) from None


async def play(
    run: store.Run,
    settings: plans.PlaySettings,
    held: Mapping[str, Any],
    todo: Sequence[Sequence[plans.Plan]],
    *,
    on_tick: waves.OnTick,
) -> None:
    """Plays waves on the cluster that Ray is connected to ($RAY_ADDRESS, or one started here) with the model of a record."""
    task = _remote(settings, held, _work)
    numbers = {wave[0].index: number for number, wave in enumerate(settings.waves())}
    told = str(run.folder), settings.to_json(), json.dumps(held)
    await _answers([task.remote(*told, numbers[wave[0].index]) for wave in todo], on_tick)


def _remote(settings: plans.PlaySettings, held: Mapping[str, Any], work: Any) -> Any:
    """A function as a task of Ray's, with the processors that its model needs."""
    try:
        import ray
    except ImportError as error:
        raise errors.MissingExtraError("ray", extra="ray", feature="engine='ray'") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    return ray.remote(num_cpus=settings.threads, num_gpus=int(held["device"] == "cuda"), max_retries=2)(work)


async def _answers(refs: Sequence[Any], on_tick: waves.OnTick | None = None) -> None:
    """Waits for tasks; the first that fails ends all."""
    import ray

    async def finish(ref: Any) -> None:
        for tick in await ref:
            if on_tick is not None:
                on_tick(_read(tick))

    try:
        await asyncio.gather(*(finish(ref) for ref in refs))
    except BaseException as error:
        for ref in refs:
            ray.cancel(ref)
        raise _cause(error) from None


def _cause(error: BaseException) -> BaseException:
    """What was raised in the worker, if it is an error of Sonde's."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, errors.SondeError) else error


def _rehearse(written: dict[str, Any], held: str) -> list[dict[str, Any]]:
    """Proves in a worker that model and environment can be made there."""
    settings = plans.PlaySettings.from_json(written)
    assert settings.environment is not None
    _model(held)
    try:
        plans.maker(settings.environment, settings)()
    except errors.SondeError as error:
        raise errors.SelectorError(f"a worker cannot make the environment {settings.environment!r}: {error}") from None
    return []


def _work(folder: str, written: dict[str, Any], held: str, number: int) -> list[dict[str, Any]]:
    """Plays one wave in a worker; what it tells is plain data."""
    settings = plans.PlaySettings.from_json(written)
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

    with experiments.pinned(settings.threads):
        stage = waves.Stage(
            model=_model(held),
            make=plans.maker(settings.environment, settings),
            settings=settings,
            folder=store.Run.open(Path(folder)).episodes_dir,
            on_tick=note,
        )
        asyncio.run(waves.play_wave(stage, settings.wave_at(number)))
    return ticks


@functools.lru_cache(maxsize=1)
def _model(held: str) -> models_model.Model:
    """The model that a record describes; a worker keeps it for its next wave, and nobody else can reach it."""
    try:
        return identity.rebuilt(json.loads(held))
    except errors.SondeError as error:
        raise errors.ModelError(f"a worker cannot play the model that is held here: {error}") from None


def _read(tick: dict[str, Any]) -> waves.Tick:
    return waves.Tick(**{**tick, "plan": plans.Plan(*tick["plan"])})
