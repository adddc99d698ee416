"""The study of critical steps: from episodes to claims.

    source = "20q"                      # or a function that makes an environment, or what sonde.play returned
    chosen = settings.settings_of(source, model.cfg, episodes=12, layers=(4, 14, 24), rollouts=8)
    found = experiments.run(study.CriticalSteps(model, source), chosen, run="critical")
    found.results["critical_steps"], found.html

The stages are those of `stages`. Inside an event loop: `await experiments.run_async(...)`.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sonde import experiments
from sonde.agents import playing, presets
from sonde.core import errors
from sonde.models import identity
from sonde.models import model as models_model
from sonde.report import page
from sonde.store import schemas
from sonde.studies.critical_steps import estimates, pages, results
from sonde.studies.critical_steps import settings as study_settings
from sonde.studies.critical_steps import stages as study_stages

Source = str | Callable[[], Any] | playing.Played


class CriticalSteps(experiments.Experiment[study_settings.CriticalStepsSettings]):
    """The experiment."""

    kind, verb = "critical-steps", ("study", "critical-steps")
    results_kind = schemas.register("results of critical steps", schemas.Data)
    settings_type, stages = study_settings.CriticalStepsSettings, study_stages.STAGES
    model: models_model.Model

    def __init__(self, model: models_model.Model, source: Source) -> None:
        """Takes the model, and what it plays or played.

        Args:
            model: The model.
            source: What to play: a preset with selectors, or a function that makes an environment; or episodes that were
                played, as `sonde.play` returns them.
        """
        super().__init__(model)
        self.source = source
        self._bench: study_stages.Bench | None = None

    async def bench(self, context: study_stages.Context) -> study_stages.Bench:
        """The episodes, played first if they are not there."""
        if self._bench is None or self._bench.folder != context.folder:
            self._bench = study_stages.Bench(context, await self._episodes(context))
        return self._bench

    async def _episodes(self, context: study_stages.Context) -> Sequence[playing.Episode]:
        if isinstance(self.source, playing.Played):
            return study_settings.untouched(self.source)
        names = ("episodes", "seed", "max_steps", "wave", "generation", "options")
        options: Any = {name: getattr(context.settings, name) for name in names}
        played = await playing.play_async(
            self.source,
            self.model,
            run="played",
            runs_dir=context.folder,
            on_progress=lambda now: context.tell("play", now.done, now.total),
            **options,
        )
        return study_settings.untouched(played)

    def around(self) -> AbstractContextManager[Any]:
        """The model packed."""
        return self.model.packed()

    def record(self) -> dict[str, Any]:
        """As it is; another model than the one that played is refused."""
        held = super().record()
        if isinstance(self.source, playing.Played):
            identity.check(self.source.run.manifest["model"], held, what=f"run {self.source.run.id}")
        return held

    def check(self, settings: study_settings.CriticalStepsSettings) -> None:
        """Refuses the settings of another model, and episodes of another."""
        if settings.model != self.model.cfg.model_name:
            raise errors.RequestError(
                f"the settings are for {settings.model!r}, the model is {self.model.cfg.model_name!r}"
            )
        if isinstance(self.source, playing.Played):
            before = self.source[0].origin.settings.model
            if before != settings.model:
                raise errors.RequestError(
                    f"the episodes of run {self.source.run.id} were played by {before!r}, not by {settings.model!r}: load "
                    "that model, or play episodes with this one"
                )

    def headline(self, settings: study_settings.CriticalStepsSettings) -> str:
        """Sizes."""
        return f"{settings.episodes} episodes, {len(settings.layers)} layers"

    def estimate(self, settings: study_settings.CriticalStepsSettings) -> dict[str, float]:
        """At most, by the speed of one short batch; nothing if an episode may go on for ever."""
        if isinstance(self.source, playing.Played):
            steps: int | None = max(one.steps for one in self.source)
        else:
            made = presets.make(self.source, **settings.options) if isinstance(self.source, str) else self.source()
            steps = settings.max_steps or getattr(made, "step_limit", None)
        new_tokens = settings.generation.get("max_new_tokens", playing.NEW_TOKENS)
        return estimates.seconds(self.model, settings, steps=steps, new_tokens=new_tokens) if steps else {}

    def results(self, context: study_stages.Context) -> dict[str, Any]:
        """The matrix, the cells and their claims, the heads."""
        claims = context.found("rollouts")
        critical = results.critical(claims["cells"])
        return {
            "study": self.kind,
            "settings": context.settings.to_json(),
            "outcome": claims["outcome"],
            "critical_steps": sorted({cell.step for cell in critical}),
            "matrix": context.found("screen"),
            "cells": claims["cells"],
            "heads": context.found("heads")["heads"],
        }

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The critical steps."""
        return {"critical_steps": results["critical_steps"], "cells": len(results["cells"])}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `pages`."""
        return pages.report(results)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The cells."""
        return (pages.table(results),)

    def command(self, settings: study_settings.CriticalStepsSettings) -> str:
        """The command that runs it again; nothing where no command can."""
        sampling = {"max_new_tokens": playing.NEW_TOKENS, **settings.generation}
        if settings.source is not None:
            typed = settings.changed(episodes=12, max_steps=None, options={}).typed()
            return shlex.join(["sonde", *self.verb, "--played", settings.source, *typed])
        if settings.environment is None or sampling.keys() - {"max_new_tokens", "temperature"}:
            return ""
        typed = [word for name, one in sampling.items() for word in (f"--{name.replace('_', '-')}", str(one))]
        return shlex.join(["sonde", *self.verb, settings.environment, *settings.typed(), *typed])
