"""The study of layers: measure, and write what was found.

    with sonde.load("smollm2-135m-instruct") as model:
        found = experiments.run(study.Layers(model), settings.settings_of(model.cfg), run="layers")
    found.results["verdict"]["worst_skips"]

The stages are those of `stages`. Costs about as much as the estimate says: some minutes for a model of 135 million weights
on a core.
"""

import functools
import time
from collections.abc import Mapping
from typing import Any

from sonde import experiments
from sonde.core import errors
from sonde.lab.layers import pages, verdict
from sonde.lab.layers import settings as study_settings
from sonde.lab.layers import stages as study_stages
from sonde.models import model as models_model
from sonde.report import page


def _measured(stage: str, context: experiments.Context[Any]) -> dict[str, Any]:
    compute, _ = study_stages.STAGES[stage]
    at: Any = context.experiment
    return compute(at.bench(context))


class Layers(experiments.Experiment[study_settings.LayersSettings]):
    """The experiment."""

    kind, verb, results_kind = "layers", ("study", "layers"), study_stages.RESULTS
    settings_type = study_settings.LayersSettings
    stages = tuple(
        experiments.Stage(name, functools.partial(_measured, name), schema)
        for name, (_, schema) in study_stages.STAGES.items()
    )
    model: models_model.Model

    def __init__(self, model: models_model.Model) -> None:
        """Takes the model."""
        super().__init__(model)
        self._bench: study_stages.Bench | None = None

    def bench(self, context: experiments.Context[study_settings.LayersSettings]) -> study_stages.Bench:
        """The texts, run once for all stages."""
        if self._bench is None or self._bench.settings != context.settings:
            self._bench = study_stages.Bench(self.model, context.settings, context.tell)
        return self._bench

    def check(self, settings: study_settings.LayersSettings) -> None:
        """Refuses another model's settings."""
        if settings.model != self.model.cfg.model_name:
            raise errors.RequestError(
                f"the settings are for {settings.model!r}, the model is {self.model.cfg.model_name!r}"
            )

    def headline(self, settings: study_settings.LayersSettings) -> str:
        """Sizes."""
        return f"{self.model.cfg.n_layers} layers, {settings.texts} texts of {settings.tokens} tokens"

    def estimate(self, settings: study_settings.LayersSettings) -> dict[str, float]:
        """Judged by one forward pass over a text."""
        model = self.model
        ids = model.to_tokens([*model.tokenizer.encode(""), *range(20, 20 + settings.tokens)][: settings.tokens])
        model.run_with_hooks(ids)
        start = time.monotonic()
        model.run_with_hooks(ids)
        whole = (time.monotonic() - start) * settings.texts
        count = model.cfg.n_layers
        return {
            "single": 1.8 * count * whole,
            "windows": len(settings.sizes) * (5 + settings.orders) * 0.8 * whole,
            "shape": 0.1 * whole,
            "depth": (0.8 + 0.04 * settings.words) * count * whole,
        }

    def results(self, context: experiments.Context[study_settings.LayersSettings]) -> dict[str, Any]:
        """All stages, and the verdict."""
        measured = {name: context.found(name) for name in study_stages.STAGES}
        told = context.settings.to_json()
        found = {"study": self.kind, "settings": told, "n_layers": self.model.cfg.n_layers, **measured}
        return {**found, "verdict": verdict.of(found)}

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The worst skips."""
        return {"worst skips": results["verdict"]["worst_skips"]}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `pages`."""
        return pages.report(results)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The methods."""
        return (pages.methods_table(results),)
