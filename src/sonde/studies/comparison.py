"""The same tasks on several models, side by side: who keeps the rules, who wins, who talks more.

    chosen = comparison.CompareSettings(environment="20q:0:40", models=("smollm2-135m-instruct", "other"), episodes=32)
    found = experiments.run(comparison.Compare(), chosen, run="it")

Every model plays the same tasks with the same seeds. Outcomes are compared game by game with the first model: paired
differences with intervals, sign-flip tests, Holm over models, and the smallest effect that the design could have seen.
Games of Twenty Questions have all its outcomes; other environments have reward, steps, tokens and, where a verdict says
`valid`, the share of invalid messages. One model is in memory at a time. Costs the games.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pydantic

from sonde import experiments
from sonde.agents import history, plans, playing
from sonde.analysis import conditions
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.models import loading
from sonde.report import charts, page, wording
from sonde.store import schemas
from sonde.studies.twenty_questions import outcomes

Values = Mapping[str, float | None]
field = core_settings.field


class CompareSettings(core_settings.Settings):
    """What is to be compared."""

    environment: str = field(..., "A preset with selectors.", option="")
    models: tuple[str, ...] = field(..., "Names of two or more models.", option="--model")
    episodes: int = field(16, "Games per model.", ge=2)
    seed: int = field(0, "Fixes tasks and sampling.", ge=0)
    max_steps: int | None = field(None, "Stop a game after so many steps.", ge=1)
    generation: plans.JsonDict = field({}, "Sampling settings of the client.", option="")
    options: plans.JsonDict = field({}, "Options of the environment.", option="")
    wave: int = field(16, "Games that go together in one batch.", option="", ge=1)
    threads: int = plans.threads()

    @pydantic.field_validator("models")
    @classmethod
    def _different(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if len(models) < 2 or len(set(models)) < len(models):
            raise ValueError(f"give two or more different models to compare, got {list(models)}")
        return models


class _Values(pydantic.BaseModel):
    values: dict[str, dict[str, schemas.Number | None]]


class _Compared(pydantic.BaseModel):
    games: schemas.Count
    means: dict[str, dict[str, schemas.Data | None]]
    versus: dict[str, dict[str, schemas.Data | None]]


Context = experiments.Context[CompareSettings]


def _models(context: Context) -> list[dict[str, Any]]:
    return [{"number": number, "model": name} for number, name in enumerate(context.settings.models)]


async def _played(context: Context, item: Mapping[str, Any]) -> dict[str, Any]:
    """One model's games, and what counts of each."""
    settings, name = context.settings, item["model"]
    with loading.load(name, **context.experiment.placed) as model:
        played = await playing.play_async(
            settings.environment,
            model,
            episodes=settings.episodes,
            seed=settings.seed,
            max_steps=settings.max_steps,
            wave=settings.wave,
            generation=settings.generation,
            options=settings.options,
            run=f"model-{item['number']}",
            runs_dir=context.folder / "games",
            on_progress=lambda now: context.tell(name, now.done, now.total),
        )
        return {"values": {str(one.plan.episode): _values(one.trajectory) for one in played if one.error is None}}


def _compared(context: Context, made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    table = dict(zip(context.settings.models, (one["values"] for one in made), strict=True))
    common = sorted(set.intersection(*(set(held) for held in table.values())), key=int)
    if len(common) < 2:
        raise errors.AnalysisError(f"{len(common)} games were finished by all models, two are needed: play more")
    first = next(iter(table))
    names = list(table[first][common[0]])
    columns = {
        model: {name: [held[number].get(name) for number in common] for name in names} for model, held in table.items()
    }
    return {
        "games": len(common),
        "means": conditions.means(columns),
        "versus": conditions.versus(columns, first),
    }


class Compare(experiments.Experiment[CompareSettings]):
    """The experiment."""

    kind, verb = "compare", ("study", "compare")
    results_kind = schemas.register("results of a comparison", schemas.Data)
    settings_type = CompareSettings
    stages = (
        experiments.Items(
            "models",
            schemas.register("comparison of models", _Compared),
            _models,
            _played,
            schemas.register("outcomes of a model", _Values),
            _compared,
        ),
    )

    def __init__(self, *, device: str = "auto", dtype: str = "float32") -> None:
        """Says how models are loaded; see `sonde.load`."""
        super().__init__()
        self.placed = {"device": device, "dtype": dtype}

    def record(self) -> dict[str, Any]:
        """Device and dtype; the models' own records are in the runs of their games."""
        device, dtype = loading.device_of(self.placed["device"]), loading.dtype_of(self.placed["dtype"])
        return {"name": "several models", "device": device.type, "dtype": str(dtype).removeprefix("torch.")}

    def headline(self, settings: CompareSettings) -> str:
        """Sizes."""
        return f"{len(settings.models)} models play {settings.episodes} games of {settings.environment} each"

    def results(self, context: Context) -> dict[str, Any]:
        """Means, and differences from the first model; of the settings, what is seldom given only if it was."""
        settings = context.settings
        seldom = {"options": {}, "wave": 16, "threads": settings.threads}
        told = {name: one for name, one in settings.to_json().items() if name not in seldom or one != seldom[name]}
        return {"settings": told, "versions": context.run.manifest["versions"], **context.found("models")}

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """How many games were finished by all."""
        return {"games": results["games"]}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `report`."""
        return report(results)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The means."""
        return report(results).sections[0].tables[:1]

    def command(self, settings: CompareSettings) -> str:
        """The command that runs it again, as far as it has the options."""
        heat = settings.generation.get("temperature")
        typed = [] if heat is None else ["--temperature", str(heat)]
        return shlex.join(["sonde", *self.verb, settings.environment, *settings.typed(), *typed])


def report(found: Mapping[str, Any]) -> page.Report:
    """The page of what `results.json` holds."""
    models = found["settings"]["models"]
    names = [name for name in found["means"][models[0]] if any(found["means"][one][name] for one in models)]
    rows = tuple((one, *(_interval(found["means"][one][name]) for name in names)) for one in models)
    means = page.Table(("model", *names), rows, "Means over games with 95 % intervals.", folded=False)
    versus = tuple(
        (model, name, _interval(one["effect"]), one["p"], one["adjusted"], one["smallest"])
        for model, held in found["versus"].items()
        for name, one in held.items()
        if one is not None
    )
    columns = ("model", "outcome", "difference", "p", "p, corrected", "smallest effect in sight")
    against = page.Table(columns, versus, f"Against {models[0]}, paired by task and seed.", decimals=3, folded=False)
    settings = found["settings"]
    return page.Report(
        title=f"{len(models)} models on the same tasks",
        summary=tuple(_sentences(found)),
        sections=(page.Section("Outcomes", "", _charts(found, names), (means, against)),),
        settings=settings,
        versions={name: str(version) for name, version in found["versions"].items()},
    )


def _charts(found: Mapping[str, Any], names: Sequence[str]) -> tuple[charts.Chart, ...]:
    drawn: list[charts.Chart] = []
    for name in names:
        held = [found["means"][model][name] for model in found["settings"]["models"]]
        if name in ("invalid_rate", "win", "reward") and all(held):
            ends = [np.array([one[end] for one in held], dtype=float) for end in ("value", "low", "high")]
            drawn.append(
                charts.Bars(
                    key=name.replace("_", "-"),
                    title=f"{name.replace('_', ' ')} by model",
                    labels=tuple(found["settings"]["models"]),
                    series=(charts.Series(name.replace("_", " "), ends[0], ends[1], ends[2]),),
                    value_name=name.replace("_", " "),
                    caption=f"{found['games']} games each; 95 % intervals over games.",
                    points=True,
                )
            )
    return tuple(drawn)


def _sentences(found: Mapping[str, Any]) -> list[str]:
    first, *others = found["settings"]["models"]
    told = []
    for model in others:
        differing = [
            f"{name} {one['effect']['value']:+.2f} [{one['effect']['low']:+.2f}, {one['effect']['high']:+.2f}]"
            for name, one in found["versus"][model].items()
            if one is not None and one["adjusted"] <= 0.05
        ]
        verdict = "; ".join(differing) if differing else "no outcome differs after correction"
        told.append(f"{model} against {first}, {found['games']} games: {verdict}.")
    return told


def _interval(one: Mapping[str, Any] | None) -> wording.Cell:
    return None if one is None else wording.Interval(one["value"], one["low"], one["high"])


def _values(trajectory: Any) -> Values:
    moments = history.moments(trajectory)
    if moments and {"valid", "kind", "answer", "won"} <= set(moments[0].info):
        return outcomes.of_moments(moments).values()
    valid = [float(not moment.info["valid"]) for moment in moments if "valid" in moment.info]
    tokens = [float(len(moment.tokens)) for moment in moments]
    return {
        "reward": None if trajectory.reward is None else float(trajectory.reward),
        "steps": float(len(moments)),
        "length": float(np.mean(tokens)) if tokens else None,
        "invalid_rate": float(np.mean(valid)) if valid else None,
    }
