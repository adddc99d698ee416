"""The stages of the study as work items: what is on disk is read, what is not is computed and written.

Costs what is missing. Every item depends on the settings alone, never on which items were computed before it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
import safetensors.numpy

from sonde.agents import playing, trajectories
from sonde.analysis import stats
from sonde.core import errors
from sonde.models import model as models_model
from sonde.store import damage, disk, documents, schemas, tensors
from sonde.studies.critical_steps import ablating, contexts, results, rollouts, screening
from sonde.studies.critical_steps import settings as study_settings

_Step = Annotated[str, pydantic.Field(pattern=r"^[0-9]{1,9}$")]
_Row = Annotated[list[schemas.strict(screening.Moved)], pydantic.Field(fail_fast=True)]
_Number = schemas.Number | pydantic.StrictBool | None
MOVED = schemas.register("screened episode", pydantic.create_model("Screened", moved=(dict[_Step, _Row], ...)))
OUTCOMES = schemas.register(
    "table of outcomes",
    pydantic.create_model("Played", outcomes=(dict[str, list[tuple[_Number, _Number, _Number]]], ...)),
)
Outcomes = Mapping[tuple[int, int], Mapping[str, Sequence[Sequence[Any]]]]


class Work:
    """A study under way."""

    def __init__(
        self,
        model: models_model.Model,
        settings: study_settings.Settings,
        folder: Path,
        on_progress: Callable[[study_settings.Progress], None] | None = None,
    ) -> None:
        """Starts with no episodes: see `take`."""
        self.model, self.settings, self.folder, self._on_progress = model, settings, folder, on_progress
        self.episodes: Sequence[playing.Episode] = ()
        self._contexts: dict[int, list[contexts.Context]] = {}
        self._means: dict[str, ablating.Means] = {}

    def tell(self, stage: str, done: int, total: int) -> None:
        """Tells how far it is."""
        if self._on_progress is not None:
            self._on_progress(study_settings.Progress(stage, done, total))

    async def take(self, episodes: Sequence[playing.Episode]) -> None:
        """Takes the episodes.

        Raises:
            AnalysisError: They are too short, or do not reach a step that is asked for.
        """
        self.episodes = episodes
        longest = max(one.steps for one in episodes)
        if longest < 2:
            raise errors.AnalysisError(
                "every episode has a single step: nothing comes later that a step could decide. Raise max_steps, or "
                "choose an environment with longer episodes"
            )
        for step in self.settings.steps or ():
            if step >= longest:
                raise errors.AnalysisError(
                    f"no episode reached step {step}: the longest has steps 0 to {longest - 1}. Play more or longer ones"
                )
            if (found := self._having(step + 1)) < 2:
                raise errors.AnalysisError(
                    f"step {step} has later steps in {found} of {len(episodes)} episodes, two are needed: leave it out, "
                    "or play more episodes"
                )

    @property
    def steps(self) -> list[int]:
        """The columns of the matrix: the steps asked for, or all that half of the episodes have."""
        longest = max(one.steps for one in self.episodes)
        common = [step for step in range(longest) if self._having(step) >= max(2, len(self.episodes) / 2)]
        return list(self.settings.steps or common)

    @property
    def decisive(self) -> list[int]:
        """The steps that have later ones."""
        return [step for step in self.steps if self.settings.steps or step + 1 in self.steps]

    def _having(self, step: int) -> int:
        return sum(one.steps > step for one in self.episodes)

    async def screened(self) -> results.Matrix:
        """The impact matrix."""
        targets = [ablating.layer_target(self.settings, layer) for layer in self.settings.layers]
        scores = await self._screen("screen", dict.fromkeys(self.steps, targets))
        return results.matrix_of(self.settings, self.steps, scores)

    async def _screen(
        self, stage: str, targets: Mapping[int, Sequence[ablating.Target]]
    ) -> list[dict[int, list[float]]]:
        """For each episode, by step, the scores of the sham and of each target."""
        plan = screening.Plan(targets, self.settings.ablation, self.settings.horizon, self.settings.wave)
        sites = sorted({site for held in targets.values() for target in held for site in target.sites})
        found = []
        for index in range(len(self.episodes)):
            path = self.folder / stage / f"{index:05d}.json"
            if not path.exists():
                means = await self._mean(stage, sites)
                moved = screening.screen(self.model, self._rebuilt(index), means, plan)
                told = {str(step): [dataclasses.asdict(one) for one in row] for step, row in moved.items()}
                documents.keep(path, {"moved": told})
            moved = documents.kept(path, MOVED)["moved"]
            if any(int(step) not in targets or len(row) != 1 + len(targets[int(step)]) for step, row in moved.items()):
                raise damage.Damage(path, "is of other steps, layers or heads").error()
            found.append({int(step): [screening.Moved(**one).score for one in row] for step, row in moved.items()})
            self.tell(stage, index + 1, len(self.episodes))
        return found

    async def _mean(self, stage: str, sites: Sequence[str]) -> ablating.Means:
        """What the targets of a stage are set to; nothing if they are set to zero."""
        if self.settings.ablation == "zero":
            return {}
        if stage not in self._means:
            path = self.folder / stage / "means.safetensors"
            if not path.exists():
                whole = [self._rebuilt(index) for index in range(len(self.episodes))]
                found = ablating.means_of(self.model, whole, sites)
                disk.make_dirs(path.parent)
                with disk.explained(path):
                    disk.write_atomic(path, safetensors.numpy.save(found))
            self._means[stage] = tensors.read_numpy(path)
            if not {*sites} <= self._means[stage].keys():
                raise damage.Damage(path, "is of other Sites").error()
        return self._means[stage]

    async def rolled_out(self, cells: Sequence[results.Cell]) -> Outcomes:
        """By episode and step, for the sham and each layer, the outcomes of the continuations."""
        steps = sorted({cell.step for cell in cells})
        items = [(index, step) for index, one in enumerate(self.episodes) for step in steps if step < one.steps]
        found = {}
        for number, (index, step) in enumerate(items):
            path = self.folder / "rollouts" / f"{index:05d}-{step:03d}.json"
            if not path.exists():
                conditions = await self._conditions(step, [cell.layer for cell in cells if cell.step == step])
                played = await rollouts.roll_out(
                    self._trajectory(index), step, conditions, n=self.settings.rollouts, wave=self.settings.wave
                )
                told = {name: [one.to_json() for one in row] for name, row in played.items()}
                documents.keep(path, {"outcomes": told})
            found[index, step] = documents.kept(path, OUTCOMES)["outcomes"]
            if found[index, step].keys() != {rollouts.SHAM, *(str(cell.layer) for cell in cells if cell.step == step)}:
                raise damage.Damage(path, "is of other layers").error()
            self.tell("rollouts", number + 1, len(items))
        return found

    async def _conditions(self, step: int, layers: Sequence[int]) -> dict[str, Any]:
        sites = sorted(site for layer in self.settings.layers for site in self.settings.sites(layer))
        means = await self._mean("screen", sites)
        targets = {layer: ablating.layer_target(self.settings, layer) for layer in sorted(layers)}
        sham = ablating.played(next(iter(targets.values())), "sham", means, step)
        ablated = {
            str(layer): ablating.played(target, self.settings.ablation, means, step)
            for layer, target in targets.items()
        }
        return {rollouts.SHAM: sham, **ablated}

    def compared(
        self, outcomes: Outcomes, matrix: results.Matrix, chosen: set[results.Cell]
    ) -> list[results.CellResult]:
        """Every cell against the sham, paired by episode; nothing is corrected yet."""
        layers = {step: {int(name) for name in held if name != rollouts.SHAM} for (_, step), held in outcomes.items()}
        found = []
        for cell in sorted(results.Cell(step, layer) for step, held in layers.items() for layer in held):
            rows = [held for (_, step), held in outcomes.items() if step == cell.step]
            pairs = [
                [[_average(held[name], field) for held in rows] for name in (str(cell.layer), rollouts.SHAM)]
                for field in range(3)
            ]
            own = results.compared(*pairs[0])
            found.append(
                results.CellResult(
                    cell=cell,
                    chosen=cell in chosen,
                    impact=float(matrix.value[matrix.layers.index(cell.layer), matrix.steps.index(cell.step)]),
                    own=None if own is None else own.effect.value,
                    later=results.compared(*pairs[1]),
                    reward=results.compared(*pairs[2]),
                    p=None,
                    critical=False,
                )
            )
        return found

    async def heads(self, cells: Sequence[results.CellResult]) -> tuple[results.HeadResult, ...]:
        """The heads of the cells that matter most: the critical ones, then those that stood out most."""
        if self.settings.part == "mlp" or not self.settings.heads:
            return ()
        wanted = sorted((one for one in cells if one.chosen or one.critical), key=_urgency)[: self.settings.heads]
        names = sorted((one.cell, head) for one in wanted for head in range(self.model.cfg.n_heads))
        targets: dict[int, list[ablating.Target]] = {}
        for cell, head in names:
            targets.setdefault(cell.step, []).append(ablating.head_target(cell.layer, head))
        scores = await self._screen("heads", targets)
        found = []
        for cell, head in names:
            row = 1 + [name for name in names if name[0].step == cell.step].index((cell, head))
            values = np.array([episode[cell.step][row] for episode in scores if cell.step in episode])
            found.append(results.HeadResult(cell, head, stats.mean_interval(values, np.arange(len(values)))))
        return tuple(found)

    def _trajectory(self, index: int) -> trajectories.EpisodeTrajectory:
        """An episode that goes on with the model at hand: the one it was played with may be closed."""
        found = self.episodes[index].trajectory
        assert found.origin is not None
        found.origin = dataclasses.replace(found.origin, model=self.model)
        return found

    def _rebuilt(self, index: int) -> list[contexts.Context]:
        if index not in self._contexts:
            self._contexts[index] = contexts.rebuilt(self._trajectory(index))
        return self._contexts[index]


def _urgency(one: results.CellResult) -> tuple[bool, float]:
    return (not one.critical, -one.impact)


def _average(outcomes: Sequence[Sequence[Any]], field: int) -> float | None:
    """Mean over the continuations that have it."""
    known = [float(row[field]) for row in outcomes if row[field] is not None]
    return float(np.mean(known)) if known else None
