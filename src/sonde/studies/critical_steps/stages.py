"""The stages of the study: what is computed for an episode, or for a step of one, and how that is joined.

1. `play`: the episodes, and how many steps each has.
2. `means`: what is put in place of what layers add, as a file of tensors.
3. `screen`, by episode: the impact of every layer at every step; joined, the matrix.
4. `rollouts`, by episode and step: continuations under the sham and under each ablation; joined, the cells and their claims.
5. `head-means` and `heads`, by episode: as 2 and 3, for the heads of the cells that matter most.

Every item depends on the settings and on earlier stages alone, never on which items were computed before it.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pydantic
import safetensors.numpy

from sonde import experiments
from sonde.agents import playing
from sonde.analysis import stats
from sonde.core import errors
from sonde.store import damage, disk, schemas, tensors
from sonde.studies.critical_steps import ablations, contexts, results, rollouts, screening

Context = experiments.Context[Any]
Rows = Sequence[Mapping[str, Any]]
_Step = Annotated[str, pydantic.Field(pattern=r"^[0-9]{1,9}$")]
_Row = Annotated[list[schemas.strict(screening.Moved)], pydantic.Field(fail_fast=True)]
_Outcome = tuple[pydantic.StrictBool | None, schemas.Number | None, schemas.Number]
_Values = list[list[schemas.Number | None]]


class _Steps(pydantic.BaseModel):
    steps: Annotated[list[schemas.Count], pydantic.Field(min_length=2)]


class _Sites(pydantic.BaseModel):
    sites: list[schemas.Text]


class _Moved(pydantic.BaseModel):
    moved: dict[_Step, _Row]


class _Matrix(pydantic.BaseModel):
    layers: list[schemas.Count]
    steps: list[schemas.Count]
    n: list[schemas.Count]
    sham: schemas.Number
    value: _Values
    low: _Values
    high: _Values


class _Outcomes(pydantic.BaseModel):
    outcomes: dict[str, Annotated[list[_Outcome], pydantic.Field(min_length=1)]]


class _Claims(pydantic.BaseModel):
    outcome: Annotated[str, pydantic.Field(pattern="^(later|reward)$")]
    cells: list[schemas.Data]


class _Heads(pydantic.BaseModel):
    heads: list[schemas.Data]


MOVED = schemas.register("screened episode", _Moved)
SITES = schemas.register("means of Sites", _Sites)


class Bench:
    """The episodes, with what is read of them once for all items."""

    def __init__(self, context: Context, episodes: Sequence[playing.Episode]) -> None:
        """Starts with nothing read."""
        self.folder, self.episodes = context.folder, episodes
        self.model = context.experiment.model
        self._contexts: dict[int, list[contexts.Context]] = {}
        self._means: dict[str, ablations.Means] = {}

    def trajectory(self, index: int) -> Any:
        """An episode that goes on with the model at hand: the one it was played with may be closed."""
        found = self.episodes[index].trajectory
        assert found.origin is not None
        found.origin = dataclasses.replace(found.origin, model=self.model)
        return found

    def rebuilt(self, index: int) -> list[contexts.Context]:
        """The contexts of an episode."""
        if index not in self._contexts:
            self._contexts[index] = contexts.rebuilt(self.trajectory(index))
        return self._contexts[index]

    def means(self, context: Context, stage: str) -> ablations.Means:
        """What a stage of means has written; nothing where ablations set to zero."""
        if stage not in self._means:
            sites, path = context.found(stage)["sites"], context.path(stage).with_suffix(".safetensors")
            self._means[stage] = tensors.read_numpy(path) if sites else {}
            if not {*sites} <= self._means[stage].keys():
                raise damage.Damage(path, "is of other Sites").error()
        return self._means[stage]


async def play(context: Context) -> dict[str, Any]:
    """Plays, or takes, the episodes.

    Raises:
        AnalysisError: They are too short, or do not reach a step that is asked for.
    """
    bench = await context.experiment.bench(context)
    steps = [one.steps for one in bench.episodes]
    longest = max(steps)
    if longest < 2:
        raise errors.AnalysisError(
            "every episode has a single step: nothing comes later that a step could decide. Raise max_steps, or "
            "choose an environment with longer episodes"
        )
    for step in context.settings.steps or ():
        if step >= longest:
            raise errors.AnalysisError(
                f"no episode reached step {step}: the longest has steps 0 to {longest - 1}. Play more or longer ones"
            )
        if (found := _having(steps, step + 1)) < 2:
            raise errors.AnalysisError(
                f"step {step} has later steps in {found} of {len(steps)} episodes, two are needed: leave it out, "
                "or play more episodes"
            )
    return {"steps": steps}


async def _write_means(context: Context, stage: str, targets: Mapping[int, Sequence[ablations.Target]]) -> Any:
    sites = sorted({site for held in targets.values() for target in held for site in target.sites})
    if context.settings.ablation == "zero" or not sites:
        return {"sites": []}
    bench = await context.experiment.bench(context)
    found = ablations.means_of(bench.model, [bench.rebuilt(index) for index in range(len(bench.episodes))], sites)
    path = context.path(stage).with_suffix(".safetensors")
    disk.make_dirs(path.parent)
    with disk.explained(path):
        disk.write_atomic(path, safetensors.numpy.save(found))
    return {"sites": sites}


async def _screen(context: Context, index: int, means: str, targets: Mapping[int, Sequence[ablations.Target]]) -> Any:
    bench, settings = await context.experiment.bench(context), context.settings
    plan = screening.Plan(targets, settings.ablation, settings.horizon, settings.wave)
    moved = screening.screen(bench.model, bench.rebuilt(index), bench.means(context, means), plan)
    return {"moved": {str(step): [dataclasses.asdict(one) for one in row] for step, row in moved.items()}}


def _scores(context: Context, made: Rows, targets: Mapping[int, Sequence[ablations.Target]]) -> list[dict[int, Any]]:
    """For each episode, by step, the scores of the sham and of each target."""
    found = []
    for item in made:
        moved = {int(step): [screening.Moved(**one).score for one in row] for step, row in item["moved"].items()}
        if any(step not in targets or len(row) != 1 + len(targets[step]) for step, row in moved.items()):
            raise damage.Damage(context.folder / "stages", "is of other steps, layers or heads").error()
        found.append(moved)
    return found


def _episodes(context: Context) -> list[dict[str, int]]:
    return [{"episode": index} for index in range(len(context.found("play")["steps"]))]


def _having(steps: Sequence[int], step: int) -> int:
    return sum(count > step for count in steps)


def _columns(context: Context) -> list[int]:
    """The steps asked for, or all that half of the episodes have."""
    steps = context.found("play")["steps"]
    common = [step for step in range(max(steps)) if _having(steps, step) >= max(2, len(steps) / 2)]
    return list(context.settings.steps or common)


def _layers(context: Context) -> dict[int, list[ablations.Target]]:
    """What is screened first: every layer at every step."""
    targets = [ablations.layer_target(context.settings, layer) for layer in context.settings.layers]
    return dict.fromkeys(_columns(context), targets)


def _matrix(context: Context, made: Rows) -> dict[str, Any]:
    return results.matrix_of(context.settings, _columns(context), _scores(context, made, _layers(context)))


def _chosen(context: Context) -> tuple[list[results.Cell], list[results.Cell]]:
    """Cells that stood out, and random ones, among the steps that have later ones."""
    columns, settings = _columns(context), context.settings
    decisive = [step for step in columns if settings.steps or step + 1 in columns]
    return results.choose(context.found("screen"), decisive, settings.cells, settings.seed)


def _continued(context: Context) -> list[dict[str, int]]:
    steps = sorted({cell.step for half in _chosen(context) for cell in half})
    counts = context.found("play")["steps"]
    return [{"episode": at, "step": step} for at, count in enumerate(counts) for step in steps if step < count]


async def _roll_out(context: Context, item: Mapping[str, Any]) -> dict[str, Any]:
    bench, settings, step = await context.experiment.bench(context), context.settings, item["step"]
    means = bench.means(context, "means")
    layers = sorted(cell.layer for half in _chosen(context) for cell in half if cell.step == step)
    targets = {layer: ablations.layer_target(settings, layer) for layer in layers}
    sham = ablations.played(next(iter(targets.values())), "sham", means, step)
    ablated = {
        str(layer): ablations.played(target, settings.ablation, means, step) for layer, target in targets.items()
    }
    conditions = {rollouts.SHAM: sham, **ablated}
    found = await rollouts.roll_out(
        bench.trajectory(item["episode"]), step, conditions, n=settings.rollouts, wave=settings.wave
    )
    return {"outcomes": {name: [one.to_json() for one in row] for name, row in found.items()}}


def _claims(context: Context, made: Rows) -> dict[str, Any]:
    """Every cell against the sham, paired by episode."""
    matrix, (chosen, random) = context.found("screen"), _chosen(context)
    outcomes = [(item["step"], one["outcomes"]) for item, one in zip(_continued(context), made, strict=True)]
    value, found = results.numbers(matrix, "value"), []
    for cell in sorted([*chosen, *random]):
        rows = [held for step, held in outcomes if step == cell.step]
        if any(not {str(cell.layer), rollouts.SHAM} <= held.keys() for held in rows):
            raise damage.Damage(context.folder / "stages" / "rollouts", "is of other layers").error()
        ablated, sham = ([held[name] for held in rows] for name in (str(cell.layer), rollouts.SHAM))
        pairs = [
            ([_average(row, field) for row in ablated], [_average(row, field) for row in sham]) for field in range(3)
        ]
        impact = float(value[matrix["layers"].index(cell.layer), matrix["steps"].index(cell.step)])
        found.append(results.cell_of(cell, impact, pairs, chosen=cell in chosen))
    return results.claims(found, context.settings.alpha)


def _average(outcomes: Sequence[Sequence[Any]], field: int) -> float | None:
    """Mean over the continuations that have it."""
    known = [float(row[field]) for row in outcomes if row[field] is not None]
    return float(np.mean(known)) if known else None


def _heads(context: Context) -> dict[int, list[ablations.Target]]:
    """The heads of the cells that matter most: the critical ones, then those that stood out most."""
    settings, targets = context.settings, {}
    wanted = [one for one in context.found("rollouts")["cells"] if one["chosen"] or one["critical"]]
    wanted = sorted(wanted, key=lambda one: (not one["critical"], -one["impact"]))[: settings.heads]
    for one in sorted(wanted, key=lambda one: (one["step"], one["layer"])) if settings.part != "mlp" else ():
        for head in range(context.experiment.model.cfg.n_heads):
            targets.setdefault(one["step"], []).append(ablations.head_target(one["layer"], head))
    return targets


def _judged(context: Context, made: Rows) -> dict[str, Any]:
    targets, found = _heads(context), []
    scores = _scores(context, made, targets)
    for step, row, target in _listed(targets):
        values = np.array([episode[step][row] for episode in scores if step in episode])
        impact = stats.mean_interval(values, np.arange(len(values))).to_json()
        assert target.heads is not None
        layer = int(target.sites[0].split(".")[1])
        found.append({"step": step, "layer": layer, "head": target.heads[0], "impact": impact})
    return {"heads": found}


def _listed(targets: Mapping[int, Sequence[ablations.Target]]) -> Iterator[tuple[int, int, ablations.Target]]:
    """Each target with its step and its row, where the sham is row 0."""
    return ((step, row, target) for step, held in targets.items() for row, target in enumerate(held, start=1))


STAGES = (
    experiments.Stage("play", play, schemas.register("episodes of critical steps", _Steps)),
    experiments.Stage("means", lambda context: _write_means(context, "means", _layers(context)), SITES),
    experiments.Items(
        "screen",
        schemas.register("impact matrix", _Matrix),
        _episodes,
        lambda context, item: _screen(context, item["episode"], "means", _layers(context)),
        MOVED,
        _matrix,
    ),
    experiments.Items(
        "rollouts",
        schemas.register("claims of critical steps", _Claims),
        _continued,
        _roll_out,
        schemas.register("table of outcomes", _Outcomes),
        _claims,
    ),
    experiments.Stage("head-means", lambda context: _write_means(context, "head-means", _heads(context)), SITES),
    experiments.Items(
        "heads",
        schemas.register("heads of critical steps", _Heads),
        lambda context: _episodes(context) if _heads(context) else [],
        lambda context, item: _screen(context, item["episode"], "head-means", _heads(context)),
        MOVED,
        _judged,
    ),
)
