"""The Twenty Questions study: play, probe, steer, and say what holds.

    found = experiments.run(study.TwentyQuestions(model), settings.settings_of(model, "full"), run="my-study")
    print(found.results["claims"][0]["sentence"], found.html)

Stages: `collect`, `probe`, `evolution` (see `stages`) and `steer` (see `steering`). Games go on where they were
interrupted. What is claimed is decided at the end, over all headlines together (Holm): the model knows before it speaks, it
can be read off after, steering works, the direction changes over steps.
"""

import time
from collections.abc import Mapping
from typing import Any

from sonde import experiments
from sonde.core import errors
from sonde.models import model as models_model
from sonde.report import page
from sonde.studies.twenty_questions import claims, kinds, pages, stages, steering
from sonde.studies.twenty_questions import settings as study_settings

#: Of an answer, in tokens; and of the words that come back.
ANSWER, REPLY = 10, 16
#: Seconds per cell of the probes' map: all steps, one step.
CELL = (1.0, 0.15)


class TwentyQuestions(experiments.Experiment[study_settings.TwentyQuestionsSettings]):
    """The experiment."""

    kind, verb, results_kind = "study-20q", ("study", "20q"), kinds.RESULTS
    settings_type = study_settings.TwentyQuestionsSettings
    stages = (
        experiments.Stage("collect", stages.collect, kinds.COLLECTED),
        experiments.Stage("probe", stages.probe, kinds.PROBED),
        experiments.Stage("steer", steering.steer, kinds.STEERED),
        experiments.Stage("evolution", stages.evolve, kinds.CHANGED),
    )
    model: models_model.Model

    def __init__(self, model: models_model.Model, games: study_settings.Games | None = None) -> None:
        """Takes the model, and games of your own, whose verdicts say `valid`; Twenty Questions if left out."""
        super().__init__(model)
        self.games = games

    def games_of(self, settings: study_settings.TwentyQuestionsSettings) -> study_settings.Games:
        """The games that are played."""
        return self.games or study_settings.twenty_questions(settings)

    def check(self, settings: study_settings.TwentyQuestionsSettings) -> None:
        """Refuses another model's settings, and games that the settings do not name."""
        if settings.model != self.model.cfg.model_name:
            raise errors.RequestError(
                f"the settings are for {settings.model!r}, the model is {self.model.cfg.model_name!r}"
            )
        if (self.games is None) != (settings.environment == study_settings.TWENTY_QUESTIONS):
            raise errors.RequestError(
                f"the settings are for games of {settings.environment!r}: games of your own are given with the model, "
                "TwentyQuestions(model, games), and have a name of their own, settings_of(model, environment=NAME)"
            )

    def headline(self, settings: study_settings.TwentyQuestionsSettings) -> str:
        """Sizes."""
        return f"{settings.episodes} games of up to {settings.steps} messages, {len(settings.layers)} layers"

    def estimate(self, settings: study_settings.TwentyQuestionsSettings) -> dict[str, float]:
        """Judged by one short batch; a rough guess, because games end early, and answers are shorter than they may be."""
        decode, encode = self._speed(settings.wave)
        wave = settings.steps * (ANSWER * decode + REPLY * encode)
        pilots = len(settings.temperatures) if len(settings.temperatures) > 1 else 0
        conditions = 1 + 2 * len(settings.strengths) + 2 + 2 * (settings.random + 2)
        collected = -(-settings.episodes // settings.wave) + pilots * -(-settings.pilot // settings.wave)
        return {
            "collect": collected * wave,
            "probe": 4 * len(settings.layers) * (CELL[0] + settings.steps * CELL[1]),
            "steer": -(-settings.steer_episodes * conditions // settings.wave) * wave,
            "evolution": 5.0,
        }

    def results(self, context: experiments.Context[study_settings.TwentyQuestionsSettings]) -> dict[str, Any]:
        """All stages, and the claims."""
        found = {one.name: context.found(one.name) for one in self.stages}
        return {
            "settings": context.settings.to_json(),
            "versions": context.run.manifest["versions"],
            "claims": [one.to_json() for one in claims.of_stages(found)],
            **found,
        }

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Which claims hold."""
        return {"claims": {one["name"]: one["holds"] for one in results["claims"]}}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `pages`."""
        return pages.report(results)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The claims, and steering against unsteered games."""
        return pages.claims_table(results), pages.steering_table(results)

    def command(self, settings: study_settings.TwentyQuestionsSettings) -> str:
        """The command, or, where there is none, how to do it in Python."""
        if settings.size is None:
            return "In Python: experiments.run(TwentyQuestions(...), TwentyQuestionsSettings.from_json(SETTINGS))"
        return super().command(settings)

    def _speed(self, rows: int) -> tuple[float, float]:
        """Seconds per token of a whole batch: generated, and encoded."""
        model = self.model
        text = model.to_tokens("a")[0].tolist()
        text += text[-1:] * 32
        with model.packed():
            model.generate([text[:2]] * rows, max_new_tokens=1)  # the first batch of all is slow
            start = time.monotonic()
            model.generate([text[:2]] * rows, max_new_tokens=6, min_new_tokens=6)
            middle = time.monotonic()
            model.generate([text[:32]] * rows, max_new_tokens=1)
            end = time.monotonic()
        model.pool.entries.clear()
        return (middle - start) / 6, (end - middle) / 32
