"""The same tasks on several models, side by side: who keeps the rules, who wins, who talks more?

    found = comparing.compare("20q:0:40", ["smollm2-135m-instruct", "other"], episodes=32)

Every model plays the same tasks with the same seeds. Outcomes are compared game by game with the first model: paired
differences with intervals, sign-flip tests, Holm over models, and the smallest effect that the design could have seen.
Games of Twenty Questions have all its outcomes; other environments have reward, steps, tokens and, where a verdict says
`valid`, the share of invalid messages. One model is in memory at a time. Costs the games.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde import store
from sonde.agents import history, playing
from sonde.analysis import conditions
from sonde.core import errors
from sonde.models import loading
from sonde.report import charts, page, wording
from sonde.store import documents
from sonde.studies.twenty_questions import outcomes

KIND = "compare"
Values = Mapping[str, float | None]


def compare(
    environment: str,
    models: Sequence[str],
    *,
    run: str | None = None,
    runs_dir: Path | str | None = None,
    tell: Callable[[str, int, int], Any] = lambda doing, done, of: None,
    **options: Any,
) -> dict[str, Any]:
    """Plays and compares; writes `results.json` and `report.html`.

    Args:
        environment: A preset with selectors.
        models: Names of at least two models.
        run: A name; a run of that name and these settings is taken up.
        runs_dir: Where runs are kept.
        tell: Told what is being done, how much, and of how much.
        **options: Options of `sonde.play`: episodes, seed, max_steps, wave, generation, options.

    Raises:
        RequestError: Fewer than two models, one twice, or a run of that name with other settings.
    """
    if len(models) < 2 or len(set(models)) < len(models):
        raise errors.RequestError(f"give two or more different models to compare, got {list(models)}")
    if options.get("episodes", 1) < 2:
        raise errors.RequestError(f"a comparison needs two or more episodes, got {options.get('episodes', 1)}")
    told = store.jsonable({"environment": environment, "models": list(models), **options})
    kept = store.Run.take_up(runs_dir, kind=KIND, settings=told, seed=told.get("seed", 0), id=run)
    table: dict[str, dict[int, Values]] = {}
    for number, name in enumerate(models):
        with loading.load(name) as model:
            played = playing.play(
                environment,
                model,
                run=f"model-{number}",
                runs_dir=kept.folder / "games",
                on_progress=lambda now, name=name: tell(name, now.done, now.episodes),
                **options,
            )
            table[name] = {one.plan.episode: _values(one.trajectory) for one in played if one.error is None}
    found = {"settings": told, "versions": kept.manifest["versions"], **_compared(table)}
    documents.write_results(kept.folder / "results.json", found)
    page.write(report(found), kept.folder)
    if kept.status != "finished":
        kept.finish({"games": found["games"]})
    return {**found, "folder": kept.folder}


def report(found: Mapping[str, Any]) -> page.Report:
    """The page."""
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
        command=command(settings),
    )


def command(settings: Mapping[str, Any]) -> str:
    """The command that gives the same results again, as far as a command has the options."""
    parts = ["sonde", "study", "compare", settings["environment"]]
    for name in settings["models"]:
        parts += ["--model", name]
    options = {name: settings.get(name) for name in ("episodes", "seed", "max_steps")}
    options["temperature"] = (settings.get("generation") or {}).get("temperature")
    for name, value in options.items():
        parts += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(parts)


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


def _compared(table: Mapping[str, Mapping[int, Values]]) -> dict[str, Any]:
    common = sorted(set.intersection(*(set(held) for held in table.values())))
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
