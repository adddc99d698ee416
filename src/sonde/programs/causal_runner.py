"""The causal trace of programs as an experiment, and the runners that make one in a call.

    runner = CausalExperimentRunner(template=prompts.VARIABLE_BINDING)
    result = runner.run_intervention_experiment(
        model_id="./my-model", programs=programs, intervention_type="residual_stream"
    )
    result.traces["residual_stream"].by_role("success")

    results/full_token_layer_patching/{run}/
        intervention_results.json      one row per component and pair: every patched run
        patch_results.json             by component, role and layer: success and recovery, intervals, n, controls

1. Open the model, make the pairs, ask them all; refuse if the model cannot do the task (`causal`).
2. A stage for each component: patch it, a few pairs at a time; each few are an item.
3. Put the pairs together by role.

The run holds everything; `sonde runs` lists it. Costs the sweeps, and asking the pairs each time it is resumed.
"""

import contextlib
import dataclasses
import functools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from sonde import experiments
from sonde.core import errors, progress
from sonde.models import model as models_model
from sonde.programs import causal, causal_asking, causal_pairs, causal_settings, causal_traces
from sonde.report import page
from sonde.store import disk, plain, schemas

FOLDER = Path("results") / "full_token_layer_patching"
INTERVENTIONS, PATCHES = "intervention_results.json", "patch_results.json"
SMALL_MODEL = 5_000_000
_Context = experiments.Context[Any]


class _Row(pydantic.BaseModel):
    """A traced pair, as far as it is used again."""

    intervention_type: schemas.Text
    program: schemas.Text
    counterfactual_program: schemas.Text
    layers: list[schemas.Count]
    heads: list[schemas.Count]
    grid: schemas.Data
    all_tokens: pydantic.StrictBool


class _Rows(pydantic.BaseModel):
    """The rows of a few pairs, or of a component."""

    rows: Annotated[list[_Row], pydantic.Field(min_length=1)]


ROWS = schemas.register("batch of traces", _Rows)
RESULTS = schemas.register("results of a causal trace", schemas.Data)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class InterventionResult:
    """A finished causal experiment.

    Attributes:
        model_id: The model's name.
        traces: What was found, by component.
        prepared: The pairs, what was dropped and why, and how well the model does the task.
        settings: How it was traced.
        folder: Where its files are: those of the seed's names, if they are wanted, else its run.
    """

    model_id: str
    traces: dict[str, causal_traces.Trace]
    prepared: causal_asking.Prepared
    settings: causal_settings.TraceSettings
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """As in patch_results.json."""
        return {
            "model_id": self.model_id,
            "ability": self.prepared.ability.to_json(),
            "repeated": self.prepared.repeated(),
            "dropped": self.prepared.reasons("root"),
            "dropped_controls": self.prepared.reasons("distractor"),
            "components": {name: trace.to_json() for name, trace in self.traces.items()},
        }


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """A few pairs to be patched together: the unit that is kept."""

    tasks: tuple[causal_pairs.Task, ...]
    everywhere: bool = False


class ProgramsTrace(experiments.Experiment[causal_settings.TraceSettings]):
    """The experiment: some programs, and a stage for each component."""

    kind, verb, results_kind = "trace", ("trace", "programs"), RESULTS
    settings_type = causal_settings.TraceSettings
    model: models_model.Model

    def __init__(
        self,
        model: models_model.Model,
        programs: Sequence[causal.Program],
        components: Sequence[causal_settings.Component] = causal_settings.PARTS,
        *,
        drawn: Sequence[str] = (),
        output_dir: str | Path | None = None,
    ) -> None:
        """Asks nothing yet.

        Args:
            model: The model.
            programs: Texts, (text, answer), (text, answer, metadata), or Pairs.
            components: What to patch.
            drawn: The command-line options that give these programs.
            output_dir: Where the files of the seed's names are written as well.
        """
        super().__init__(model)
        self.programs, self.components, self.drawn, self.output_dir = programs, tuple(components), drawn, output_dir
        self.found: InterventionResult
        self._prepared: tuple[causal.CausalTracer, causal_asking.Prepared] | None = None
        self.stages = tuple(
            experiments.Items(
                name, ROWS, functools.partial(_items, name), functools.partial(_swept, name), ROWS, _joined
            )
            for name in components
        )

    def settings(self, **options: Any) -> causal_settings.TraceSettings:
        """Settings for the model, these programs and components."""
        texts = causal_asking.texts(self.programs)
        name = self.model.cfg.model_name
        return causal_settings.TraceSettings(model=name, components=self.components, programs=texts, **options)

    def prepare(
        self, settings: causal_settings.TraceSettings, *, tell: progress.Tell = progress.silent
    ) -> tuple[causal.CausalTracer, causal_asking.Prepared]:
        """Makes the pairs and asks the model all of them, once.

        Raises:
            RequestError: A program, role, layer or component is no good, or the model cannot do the task.
        """
        if self._prepared is None or self._prepared[0].settings != settings:
            tracer = causal.CausalTracer.of(self.model, settings)
            tracer.check(self.components)
            self._prepared = tracer, tracer.prepare(self.programs, tell=tell)
        return self._prepared

    def works(self, settings: causal_settings.TraceSettings, component: causal_settings.Component) -> list[_Work]:
        """All that is to be patched in one component, in a fixed order: the example first, then pairs, then controls."""
        _, prepared = self.prepare(settings)
        size = 16 if sum(one.numel() for one in self.model.hf.parameters()) < SMALL_MODEL else 2
        works = []
        if component not in causal_settings.WITHOUT_EXAMPLE and settings.positions != "all":
            works.append(_Work(prepared.tasks[:1], everywhere=True))
        for tasks in (prepared.tasks, () if component == causal_settings.KNOCKOUT else prepared.controls):
            works += [_Work(tasks[at : at + size]) for at in range(0, len(tasks), size)]
        return works

    def check(self, settings: causal_settings.TraceSettings) -> None:
        """Refuses what cannot be traced."""
        self.prepare(settings)

    def headline(self, settings: causal_settings.TraceSettings) -> str:
        """How well the model does."""
        _, prepared = self.prepare(settings)
        return f"{prepared.ability}. Tracing {len(prepared.tasks)} pairs and {len(prepared.controls)} controls"

    def estimate(self, settings: causal_settings.TraceSettings) -> dict[str, float]:
        """At most; judged by a few cells."""
        tracer, prepared = self.prepare(settings)
        return {name: tracer.estimate(prepared, name) for name in self.components}

    def results(self, context: _Context) -> dict[str, Any]:
        """All metrics by role and layer."""
        tracer, prepared = self.prepare(context.settings)
        traces = {name: self._trace(context, name) for name in self.components}
        base = Path(self.output_dir) / context.run.id if self.output_dir is not None else context.folder
        self.found = InterventionResult(tracer.model.cfg.model_name, traces, prepared, context.settings, base)
        return self.found.summary

    def save(self, context: _Context, results: Mapping[str, Any]) -> None:
        """The files of the seed's names, where they are wanted."""
        if self.output_dir is None:
            return
        rows = [row for name in self.components for row in context.found(name)["rows"]]
        _write(self.found.folder / INTERVENTIONS, [{"model_id": self.found.model_id, **row} for row in rows])
        _write(self.found.folder / PATCHES, self.found.summary)

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """How well the model does."""
        return {"ability": results["ability"]}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `tracing_report`."""
        from sonde.programs import tracing_report

        return tracing_report.report(self.found)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The strongest cells of each role, and routes."""
        from sonde.programs import tracing_report

        return tracing_report.tables(self.found)

    def command(self, settings: causal_settings.TraceSettings) -> str:
        """With the programs, where they were drawn."""
        return shlex.join([*shlex.split(super().command(settings)), *self.drawn])

    def _trace(self, context: _Context, component: causal_settings.Component) -> causal_traces.Trace:
        """All pairs of a component put together."""
        (tracer, prepared), rows = self.prepare(context.settings), iter(context.found(component)["rows"])
        parts: dict[str, list[Any]] = {"example": [], "root": [], "distractor": []}
        for work in self.works(context.settings, component):
            mine = [next(rows, {}) for _ in work.tasks]
            pairs = [(one.pair.clean, one.pair.counterfactual) for one in work.tasks]
            if [(row.get("program"), row.get("counterfactual_program")) for row in mine] != pairs:
                raise errors.RequestError(
                    f"run {context.run.id} was begun with other pairs: the model answered other programs right then, or "
                    "their counterfactuals were drawn otherwise; give it another name"
                )
            kind = "example" if work.everywhere else work.tasks[0].kind
            parts[kind].append(causal_traces.sweep_of(work.tasks, mine))
        sweep, controls, example = (causal_traces.joined(parts[kind]) for kind in ("root", "distractor", "example"))
        assert sweep is not None
        if example is None and component not in causal_settings.WITHOUT_EXAMPLE:
            example = sweep.select([0])
        tried = () if component == causal_settings.KNOCKOUT else prepared.controls
        return causal_traces.Trace(component, prepared.tasks, tried, sweep, controls, example, tracer.settings)


class CausalExperimentRunner:
    """Runs causal experiments."""

    def __init__(self, output_dir: str | Path | None = FOLDER, **options: Any) -> None:
        """Loads nothing yet.

        Args:
            output_dir: Where results are written beside the run, each in a folder of the run's name; None for the run alone.
            **options: Fields of `TraceSettings`: template, systematic, min_pairs, controls, seed, positions, …
        """
        causal_settings.TraceSettings(**options)
        self.output_dir, self.options = output_dir, options

    def run_intervention_experiment(
        self,
        model_id: Any,
        programs: Sequence[causal.Program],
        intervention_type: str | Sequence[str] = "residual_stream",
        **place: Any,
    ) -> InterventionResult:
        """Runs an experiment, or resumes it.

        Args:
            model_id: A zoo name, a folder, a GGUF file, a hub id, or a loaded `sonde.Model`.
            programs: Texts, (text, answer), (text, answer, metadata), or Pairs.
            intervention_type: `residual_stream`, `attention_heads`, `attention`, `mlp`, `knockout`, or several of them.
            **place: Of `experiments.run`: `run`, `runs_dir`, `engine`, `on_progress`.

        Raises:
            RequestError: A program, role, layer or component is no good, the model cannot do the task, or the run has
                other settings.
        """
        wanted = causal_settings.components(intervention_type)
        with opened(model_id) as model:
            trace = ProgramsTrace(model, programs, wanted, output_dir=self.output_dir)
            experiments.run(trace, trace.settings(**self.options), **place)
            return trace.found


def run_causal_tracing_experiment(
    model_id: Any,
    programs: Sequence[causal.Program],
    *,
    intervention_types: Sequence[str] = causal_settings.PARTS,
    output_dir: str | Path | None = FOLDER,
    **options: Any,
) -> InterventionResult:
    """Traces residual stream, heads and MLPs through programs, in one call.

    Args:
        model_id: A name for `sonde.load`, or a loaded model.
        programs: Texts, (text, answer), (text, answer, metadata), or Pairs.
        intervention_types: What to patch.
        output_dir: Where results are written beside the run.
        **options: Fields of `TraceSettings`; `run`, `runs_dir`, `engine` and `on_progress` of `experiments.run`.
    """
    place = {name: options.pop(name) for name in ("run", "runs_dir", "engine", "on_progress") if name in options}
    runner = CausalExperimentRunner(output_dir, **options)
    return runner.run_intervention_experiment(model_id, programs, intervention_types, **place)


@contextlib.contextmanager
def opened(model: Any) -> Iterator[Any]:
    """A model by name, freed after the block; one that is loaded already stays."""
    if not isinstance(model, str | Path):
        yield model
        return
    from sonde.models import loading

    with loading.load(model) as loaded:
        yield loaded


def _items(component: causal_settings.Component, context: _Context) -> list[dict[str, Any]]:
    """The places of the works."""
    return [{"work": at} for at in range(len(context.experiment.works(context.settings, component)))]


def _swept(component: causal_settings.Component, context: _Context, item: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of one work."""
    tracer, _ = context.experiment.prepare(context.settings)
    work = context.experiment.works(context.settings, component)[item["work"]]
    sweep = tracer.sweep(work.tasks, component, everywhere=work.everywhere)
    rows = []
    for task, grid in zip(work.tasks, sweep.grids, strict=True):
        more = {} if work.everywhere else tracer.told(task, component)
        rows.append({**causal_traces.row_of(task, sweep, grid), "all_tokens": work.everywhere, **more})
    return {"rows": rows}


def _joined(context: _Context, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"rows": [row for part in parts for row in part["rows"]]}


def _write(path: Path, content: Any) -> None:
    with disk.explained(path):
        disk.make_dirs(path.parent)
        disk.write_atomic(path, (json.dumps(plain.jsonable(content), allow_nan=False) + "\n").encode())
