"""The whole study: from episodes to claims, stage by stage, each kept on disk as it is finished.

    found = study.run("20q", model, episodes=12, layers=(4, 14, 24), rollouts=8, run="critical")
    found = study.run(played, model)                                  # what sonde.play returned

A work item is an episode (means, screening, heads), or a step of an episode (rollouts). Its result is a small JSON file
with a checksum, written as a whole: a killed study goes on with the item that was in flight.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

from sonde import store
from sonde.agents import playing
from sonde.core import errors
from sonde.models import identity
from sonde.models import model as models_model
from sonde.store import documents
from sonde.studies.critical_steps import results, stages
from sonde.studies.critical_steps import settings as study_settings

KIND = "critical-steps"
RESULTS = "results.json"
Source = str | Callable[[], Any] | playing.Played


def run(source: Source, model: Any, **options: Unpack[study_settings.Options]) -> results.CriticalSteps:
    """Finds the critical steps; not from inside an event loop (there: `run_async`).

    Args:
        source: What to play: a preset with selectors, or a function that makes an environment; or episodes that were
            played, as `sonde.play` returns them.
        model: The model, or the name of one to load.
        **options: See `settings.Settings` and `settings.Options`.

    Raises:
        RequestError: Impossible settings, episodes of another model, or a run of that name with other settings.
        SiteError: A layer that does not exist.
        AnalysisError: Episodes too short or too few to say anything, or a step that they do not reach.
    """
    return asyncio.run(run_async(source, model, **options))


async def run_async(source: Source, model: Any, **options: Unpack[study_settings.Options]) -> results.CriticalSteps:
    """As `run`, to be awaited."""
    unknown = set(options) - study_settings.Options.__annotations__.keys()
    if unknown:
        name = min(unknown)
        known = study_settings.Options.__annotations__
        raise TypeError(f"this study has no option {name!r}{errors.suggest(name, known)}")
    with playing.loaded(model) as loaded:
        settings, held = settings_of(source, loaded, options), identity.of(loaded)
        if isinstance(source, playing.Played):
            identity.check(source.run.manifest["model"], held, what=f"run {source.run.id}")
        kept = store.Run.take_up(
            options.get("runs_dir"),
            kind=KIND,
            model=held,
            settings=settings.to_json(),
            seed=settings.seed,
            id=options.get("run"),
        )
        identity.check(kept.manifest["model"], held, what=f"run {kept.id}")
        with playing.pinned(settings.threads), loaded.packed():
            work = stages.Work(loaded, settings, kept.folder, options.get("on_progress"))
            found = await _stages(work, source)
    documents.write_results(kept.folder / RESULTS, found.to_json())
    if kept.status != "finished":
        kept.finish({"critical_steps": list(found.critical_steps), "cells": len(found.cells)})
    return found


async def _stages(work: stages.Work, source: Source) -> results.CriticalSteps:
    seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def timed(stage: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        seconds[stage] = time.monotonic() - start

    with timed("play"):
        await work.take(await _episodes(work, source))
    with timed("screen"):
        matrix = await work.screened()
    chosen, random = results.choose(matrix, work.decisive, work.settings.cells, work.settings.seed)
    with timed("rollouts"):
        outcomes = await work.rolled_out([*chosen, *random])
    outcome, cells = results.claims(work.compared(outcomes, matrix, set(chosen)), work.settings.alpha)
    with timed("heads"):
        heads = await work.heads(cells)
    return results.CriticalSteps(
        settings=work.settings,
        outcome=outcome,
        matrix=matrix,
        cells=cells,
        heads=heads,
        folder=work.folder,
        seconds=seconds,
    )


def settings_of(source: Source, model: models_model.Model, options: study_settings.Options) -> study_settings.Settings:
    """The settings that options amount to.

    Raises:
        RequestError: Impossible settings, or episodes of another model.
        SiteError: A layer that does not exist.
    """
    given: dict[str, Any] = {
        name: value for name, value in options.items() if name not in ("run", "runs_dir", "on_progress")
    }
    given["layers"] = study_settings.layers_of(options.get("layers"), model.cfg)
    steps = options.get("steps")
    given["steps"] = None if steps is None else tuple(sorted(set(steps)))
    if not isinstance(source, playing.Played):
        environment = source if isinstance(source, str) else None
        return study_settings.Settings(environment=environment, model=model.cfg.model_name, **{"episodes": 16, **given})
    before = source[0].origin.settings
    if before.model != model.cfg.model_name:
        raise errors.RequestError(
            f"the episodes of run {source.run.id} were played by {before.model!r}, not by {model.cfg.model_name!r}: load "
            "that model, or play episodes with this one"
        )
    fixed = {"episodes", "generation", "options", "max_steps"} & given.keys()
    if fixed:
        raise errors.RequestError(f"{sorted(fixed)} are given by the episodes of run {source.run.id}: leave them out")
    usable = len(_untouched(source))
    return study_settings.Settings(
        environment=before.environment,
        source=source.run.id,
        model=before.model,
        episodes=usable,
        generation=before.generation,
        options=before.options,
        max_steps=before.max_steps,
        **given,
    )


def _untouched(played: playing.Played) -> list[playing.Episode]:
    """The episodes that went well, without interventions.

    Raises:
        RequestError: There are fewer than two.
    """
    fine = [one for one in played if one.error is None and not one.origin.settings.conditions[one.plan.condition]]
    if len(fine) < 2:
        raise errors.RequestError(
            f"run {played.run.id} has {len(fine)} episodes without an error and without interventions, two are needed: "
            "play more"
        )
    return fine


async def _episodes(work: stages.Work, source: Source) -> Sequence[playing.Episode]:
    if isinstance(source, playing.Played):
        return _untouched(source)
    settings = work.settings
    played = await playing.play_async(
        source,
        work.model,
        episodes=settings.episodes,
        seed=settings.seed,
        max_steps=settings.max_steps,
        wave=settings.wave,
        generation=settings.generation,
        options=settings.options,
        run="played",
        runs_dir=work.folder,
        on_progress=lambda now: work.tell("play", now.done, now.episodes),
    )
    return _untouched(played)
