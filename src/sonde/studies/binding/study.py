"""The whole study: look into trained models, and write what was found.

    found = study.run(("seed-0",), pairs=200, run="binding")
    found.results["models"]["seed-0"]["hops"]["2"]["success"]

Stages: `train` (see `training`; only if asked for), `trace`, a model at a time, and `report`. The result of each model
is a JSON file in the run's folder, written as a whole: the same run goes on where it was stopped. Costs about three
minutes a model on one core.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from sonde import experiments, store
from sonde.analysis import stats
from sonde.core import errors
from sonde.models import loading
from sonde.models import model as models_model
from sonde.programs import heuristics
from sonde.store import documents, schemas
from sonde.studies.binding import language, patching, shipped, spaces, training

KIND = "binding"
STAGES = ("train", "trace", "report")
RESULTS = "results.json"
ENOUGH, LITTLE, CONTROL = 0.6, 0.2, 0.05
TWINS = "a digit that occurs nowhere in the program"
ANY = "any right-hand side between"
PLACES = (("number", "rhs_2"), ("number", "final"), ("variable", "query"), ("variable", "final"))
Tell = Callable[[str, int, int], None]


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


TRACE = schemas.register("trace of a model", _Trace)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What fixes the study: which models, held-out pairs per number of hops, and the seed that draws them."""

    models: tuple[str, ...]
    pairs: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks that there is something to look at."""
        if not self.models or self.pairs < 10:
            raise errors.RequestError(
                f"the study needs a model and at least 10 pairs, got {len(self.models)} models and {self.pairs} pairs"
            )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A finished study: the run's folder, and all that was measured."""

    folder: Path
    results: dict[str, Any]


def run(
    models: Sequence[str],
    *,
    pairs: int = 200,
    seed: int = 0,
    run: str | None = None,
    runs_dir: Path | str | None = None,
    tell: Tell | None = None,
) -> Found:
    """Traces models and writes `results.json`; what is on disk is not done again.

    Args:
        models: Names of shipped models, or folders of trained ones.
        pairs: Held-out pairs per number of hops.
        seed: Draws them.
        run: A name for the run; one that is there is taken up.
        runs_dir: Where runs are kept.
        tell: Called with what is done, how much of it, and of how much.

    Raises:
        RequestError: A model that is not there, impossible settings, or a run of that name with other settings.
    """
    settings = Settings(tuple(models), pairs, seed)
    for name in settings.models:
        shipped.folder(name)
    told = {**dataclasses.asdict(settings), "twins": TWINS}
    kept = store.Run.take_up(runs_dir, kind=KIND, settings=told, seed=seed, id=run)
    traces = {Path(name).name: _traced(name, kept.folder, settings, tell) for name in settings.models}
    results = {"study": KIND, "settings": told, "models": traces}
    documents.write_results(kept.folder / RESULTS, results)
    if kept.status != "finished":
        kept.finish({name: one["verdict"] for name, one in traces.items()})
    return Found(kept.folder, results)


def trace(name: str, *, pairs: int, seed: int, tell: Tell | None = None) -> dict[str, Any]:
    """Everything that is measured of one model, as JSON data."""
    recipe = shipped.recipe(name)
    with experiments.pinned(1), loading.load(shipped.folder(name)) as model:
        found: dict[str, Any] = {
            "recipe": dataclasses.asdict(recipe),
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
        found["spaces"] = _spaces(model, recipe.grammar, pairs, seed, tell)
    return {**found, "verdict": verdict(found)}


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


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    """Is there a stop between root and answer? For each number of hops the clearest one, and what the control says.

    A stop is one right-hand side above the root (with one hop the query). Where there are several, `together` is the same
    for at least one of them.
    """
    stops = {}
    for hops, table in found["hops"].items():
        rates, names = table["success"]["value"], table["roles"]
        between = [name for name in names if name.startswith("rhs_") and name != "rhs_1"] or ["query"]
        stop = _clearest(table, {name: rates[names.index(name)] for name in between})
        if len(between) > 1:
            stop["together"] = _clearest(table, {ANY: [one["value"] for one in table["middle"]]})
        stops[hops] = stop
    largest = found["control"]["largest"]["value"]
    return {
        "systematic": found["accuracy"]["rates"]["root after line 2"]["value"],
        "stops": stops,
        "control": largest,
        "control_met": largest <= CONTROL,
    }


def _clearest(table: dict[str, Any], by_name: dict[str, list[float]]) -> dict[str, Any]:
    """The layer and token that meet the bar, or, if none does, where the root is furthest behind."""
    root = table["success"]["value"][table["roles"].index("rhs_1")]
    cells = [
        {"role": name, "layer": layer, "success": rates[at], "root": root[at], "n": table["n"]}
        for name, rates in by_name.items()
        for at, layer in enumerate(table["layers"])
    ]
    for cell in cells:
        cell["met"] = cell["success"] >= ENOUGH and cell["root"] <= LITTLE
    return max(cells, key=lambda cell: (cell["met"], cell["success"] - cell["root"]))


def _spaces(
    model: models_model.Model, grammar: language.Grammar, pairs: int, seed: int, tell: Tell | None
) -> list[dict[str, Any]]:
    found = []
    for at, (what, role) in enumerate(PLACES):
        measure = spaces.number if what == "number" else spaces.variable
        found.append(measure(model, grammar, role=role, pairs=pairs, seed=seed))
        if tell is not None:
            tell("subspaces", at + 1, len(PLACES))
    return found


def _traced(name: str, folder: Path, settings: Settings, tell: Tell | None) -> dict[str, Any]:
    """One model's part, from disk if it is there."""
    path = folder / "stages" / f"trace-{Path(name).name}.json"
    if not path.is_file():
        documents.keep(path, trace(name, pairs=settings.pairs, seed=settings.seed, tell=tell))
    return documents.kept(path, TRACE)


def _said(tell: Tell | None, doing: str) -> Tell | None:
    return None if tell is None else lambda _, done, of: tell(doing, done, of)
