"""The binding study: look into trained models, train one anew.

    names = shipped.names()
    found = experiments.run(study.Binding(names), study.BindingSettings(models=names), run="binding")
    found.results["models"]["seed-0"]["verdict"]

`Binding` traces models, one work item each. `BindingTraining` makes one (see `training`); its run's folder is a model that
`Binding` takes. Tracing costs about three minutes a model on one core, training an hour.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pydantic

from sonde import experiments
from sonde.analysis import stats
from sonde.core import errors, progress
from sonde.core import settings as core_settings
from sonde.models import loading
from sonde.models import model as models_model
from sonde.programs import heuristics
from sonde.report import page
from sonde.store import disk, schemas
from sonde.studies.binding import language, pages, patching, shipped, spaces, training, verdict

TWINS = "a digit that occurs nowhere in the program"
PLACES = (("number", "rhs_2"), ("number", "final"), ("variable", "query"), ("variable", "final"))


class _Trace(pydantic.BaseModel):
    """What is kept of a model."""

    recipe: schemas.Data
    parameters: schemas.Count
    log: list[schemas.Data]
    accuracy: schemas.Data
    hops: dict[str, schemas.Data]
    heads: dict[str, schemas.Data]
    control: schemas.Data
    spaces: list[schemas.Data]
    verdict: schemas.Data


class _Traces(pydantic.BaseModel):
    models: dict[str, _Trace]


class _Trained(pydantic.BaseModel):
    log: list[schemas.Data]


TRACE = schemas.register("trace of a model", _Trace)
TRACES = schemas.register("traces of models", _Traces)
TRAINED = schemas.register("stage of training", _Trained)
TRAINING = schemas.register("results of training", pydantic.create_model("Results", train=(_Trained, ...)))


class BindingSettings(core_settings.Settings):
    """What fixes the study."""

    threads: ClassVar[int] = 1
    models: tuple[str, ...] = core_settings.field(
        ..., "Names of shipped models, or folders of trained ones.", option="--model", min_length=1
    )
    pairs: int = core_settings.field(200, "Held-out pairs per number of hops.", ge=10)
    seed: int = core_settings.field(0, "Draws them.", ge=0)
    twins: str = core_settings.field(TWINS, "What a pair's other constant is.", option="")


def _short(name: str) -> str:
    return Path(name).name


def _items(context: experiments.Context[BindingSettings]) -> list[dict[str, Any]]:
    return [{"model": name} for name in context.settings.models]


def _traced(context: experiments.Context[BindingSettings], item: Mapping[str, Any]) -> dict[str, Any]:
    name, placed = item["model"], context.experiment
    with loading.load(shipped.folder(name), device=placed.device, dtype=placed.dtype) as model:
        return trace(name, model, context.settings, tell=context.tell)


def _joined(context: experiments.Context[BindingSettings], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"models": dict(zip(map(_short, context.settings.models), found, strict=True))}


def _train(context: experiments.Context[training.BindingTrainingSettings]) -> dict[str, Any]:
    return {"log": training.train(context.settings, context.run, context.tell)}


class Binding(experiments.Experiment[BindingSettings]):
    """The way of a value through trained models."""

    kind, verb, results_kind = "binding", ("study", "binding"), TRACES
    settings_type = BindingSettings
    stages = (experiments.Items("trace", TRACES, _items, _traced, TRACE, _joined),)

    def __init__(self, models: Sequence[str], *, device: str = "auto", dtype: str = "float32") -> None:
        """Takes the models' names or folders, where they run, and the type of their weights."""
        super().__init__()
        self.models, self.device, self.dtype = tuple(models), loading.device_of(device), loading.dtype_of(dtype)

    def record(self) -> dict[str, Any]:
        """Names, place, type, and a digest of all weights."""
        told = hashlib.sha256()
        for name in self.models:
            path = shipped.folder(name) / "model.safetensors"
            with disk.explained(path, doing="read"):
                told.update(path.read_bytes())
        return {
            "name": ", ".join(map(_short, self.models)),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "weights": told.hexdigest(),
        }

    def check(self, settings: BindingSettings) -> None:
        """Refuses models that are not there, two of one name, and other models' settings."""
        if settings.models != self.models or len(set(map(_short, self.models))) < len(self.models):
            raise errors.RequestError(
                f"give models of different names, the same as in the settings: got {list(self.models)}, the settings have "
                f"{list(settings.models)}"
            )
        for name in self.models:
            shipped.folder(name)

    def headline(self, settings: BindingSettings) -> str:
        """Sizes."""
        return f"{len(settings.models)} models, {settings.pairs} pairs per number of hops"

    def results(self, context: experiments.Context[BindingSettings]) -> dict[str, Any]:
        """What was found of each model."""
        return {"study": self.kind, "settings": context.settings.to_json(), **context.found("trace")}

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The verdicts."""
        return {name: one["verdict"] for name, one in results["models"].items()}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `pages`."""
        return pages.report(results)


class BindingTraining(experiments.Experiment[training.BindingTrainingSettings]):
    """The training of a model."""

    kind, verb, results_kind = "binding-training", ("study", "binding", "train"), TRAINING
    settings_type = training.BindingTrainingSettings
    stages = (experiments.Stage("train", _train, TRAINED),)

    def check(self, settings: training.BindingTrainingSettings) -> None:
        """Refuses a beginning that is not there."""
        training.beginning(settings)

    def headline(self, settings: training.BindingTrainingSettings) -> str:
        """Sizes."""
        return f"{settings.shape.layers} layers, {settings.steps} steps of {settings.batch} programs"

    def estimate(self, settings: training.BindingTrainingSettings) -> dict[str, float]:
        """Judged by one step."""
        course = training.Course(settings)
        course.learn()  # the first step of all is slow
        start = time.monotonic()
        course.learn()
        return {"train": settings.steps * (time.monotonic() - start)}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `pages`."""
        return pages.training_report(results, run)

    def command(self, settings: training.BindingTrainingSettings) -> str:
        """The command, or, where there is none, how to do it in Python."""
        if not settings.is_typed:
            return "In Python: experiments.run(BindingTraining(), BindingTrainingSettings.from_json(SETTINGS))"
        return super().command(settings)


def trace(
    name: str, model: models_model.Model, settings: BindingSettings, *, tell: progress.Tell = progress.silent
) -> dict[str, Any]:
    """Everything that is measured of one model, as JSON data."""
    recipe, pairs, seed = shipped.recipe(name), settings.pairs, settings.seed
    found: dict[str, Any] = {
        "recipe": recipe.to_json(),
        "parameters": sum(one.numel() for one in model.hf.parameters()),
        "log": shipped.log(name),
        "accuracy": accuracy(model, recipe.grammar),
        "hops": {},
        "heads": {},
    }
    for hops in range(1, recipe.grammar.max_hops + 1):
        rng = np.random.default_rng([5, seed, hops])
        programs = spaces.programs_of(recipe.grammar, hops, patching.TRIES * pairs, rng, held_out=True)
        traced = patching.root_pairs(model, programs, pairs, rng)
        found["hops"][str(hops)] = patching.staircase(model, traced, tell=_said(tell, f"{hops} hops"))
        found["heads"][str(hops)] = patching.heads(model, traced, tell=_said(tell, f"heads, {hops} hops"))
    rng = np.random.default_rng([6, seed])
    programs = language.draw(recipe.grammar, 8 * patching.TRIES * pairs, rng, held_out=True)
    traced = patching.control_pairs(model, programs[programs.roots > 1], pairs, rng)
    found["control"] = patching.control(model, traced, tell=_said(tell, "control"))
    found["spaces"] = _spaces(model, recipe.grammar, settings, tell)
    return {**found, "verdict": verdict.of(found)}


def accuracy(model: models_model.Model, grammar: language.Grammar) -> dict[str, Any]:
    """Accuracy on held-out programs with intervals, and what the heuristics score on the same."""
    sets = training.tests(grammar)
    programs = sets["balanced"]
    right = training.answers(model.hf, programs) == programs.answers
    natural = training.answers(model.hf, sets["natural"]) == sets["natural"].answers
    parts = {
        "balanced": right,
        "natural": natural,
        "root on line 1": right[programs.roots == 0],
        "root on line 2": right[programs.roots == 1],
        "root after line 2": right[programs.roots > 1],
    }
    for hops in range(1, grammar.max_hops + 1):
        parts[f"{hops} hops"] = right[programs.hops == hops]
        parts[f"{hops} hops, root after line 2"] = right[(programs.hops == hops) & (programs.roots > 1)]
    rates = {
        name: stats.mean_interval(values.astype(np.float64), np.arange(len(values))).to_json()
        for name, values in parts.items()
    }
    rules = {
        name: dict(heuristics.scores((some.source(at), int(some.answers[at])) for at in range(len(some))))
        for name, some in sets.items()
    }
    return {"rates": rates, "heuristics": rules}


def _spaces(
    model: models_model.Model, grammar: language.Grammar, settings: BindingSettings, tell: progress.Tell
) -> list[dict[str, Any]]:
    found = []
    for at, (what, role) in enumerate(PLACES):
        measure = spaces.number if what == "number" else spaces.variable
        found.append(measure(model, grammar, role=role, pairs=settings.pairs, seed=settings.seed))
        tell("subspaces", at + 1, len(PLACES))
    return found


def _said(tell: progress.Tell, doing: str) -> progress.Tell:
    return lambda _, done, of: tell(doing, done, of)
