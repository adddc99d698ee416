"""How is a causal trace run so that nothing is lost? The experiment: everything finished is on disk, and goes on.

    runner = CausalExperimentRunner(template=prompts.VARIABLE_BINDING)
    result = runner.run_intervention_experiment(
        model_id="./my-model", programs=programs, intervention_type="residual_stream"
    )
    result.traces["residual_stream"].by_role("success")

    results/full_token_layer_patching/{timestamp}/
        settings.json                  what was asked
        rows.jsonl                     one checksummed line per few pairs, durable as soon as it is written
        intervention_results.json      one row per component and pair: every patched run
        patch_results.json             by component, role and layer: success and recovery, intervals, n, controls

1. Open the model, make the pairs, ask them all; refuse if the model cannot do the task (`causal`).
2. Patch component by component, a few pairs at a time; each is on disk before the next begins.
3. Put the pairs together by role.

The same settings and folder go on where it was stopped; other settings are refused. Costs the sweeps.
"""

import contextlib
import dataclasses
import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from sonde.core import errors
from sonde.models import identity
from sonde.programs import causal, causal_asking, causal_pairs, causal_settings, causal_traces, results
from sonde.store import disk, plain, schemas

FOLDER = Path("results") / "full_token_layer_patching"
INTERVENTIONS, PATCHES = "intervention_results.json", "patch_results.json"


class _Row(pydantic.BaseModel):
    """A traced pair, as far as it is used again."""

    intervention_type: schemas.Text
    program: schemas.Text
    layers: list[schemas.Count]
    heads: list[schemas.Count]
    grid: schemas.Data
    all_tokens: pydantic.StrictBool


class _Batch(pydantic.BaseModel):
    """A line of rows.jsonl."""

    rows: Annotated[list[_Row], pydantic.Field(min_length=1)]


BATCH_KIND = schemas.register("batch of traces", _Batch)
SMALL_MODEL = 5_000_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class InterventionResult:
    """A finished causal experiment.

    Attributes:
        model_id: The model's name.
        traces: What was found, by component.
        prepared: The pairs, what was dropped and why, and how well the model does the task.
        settings: How it was traced.
        folder: Where it is kept.
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

    component: causal_settings.Component
    tasks: tuple[causal_pairs.Task, ...]
    everywhere: bool = False


class CausalExperimentRunner:
    """Runs causal experiments."""

    def __init__(self, output_dir: str | Path = FOLDER, **options: Any) -> None:
        """Loads nothing yet.

        Args:
            output_dir: Where experiments are kept, each in a folder named after the time.
            **options: Fields of `TraceSettings`: template, systematic, min_pairs, controls, seed, positions, …
        """
        self.output_dir = Path(output_dir)
        self.settings = causal_settings.of_options(options)

    def run_intervention_experiment(
        self,
        model_id: Any,
        programs: Sequence[causal.Program],
        intervention_type: str | Sequence[str] = "residual_stream",
        *,
        folder: str | Path | None = None,
        tell: causal.Tell = lambda doing, done, of: None,
    ) -> InterventionResult:
        """Runs an experiment, or takes it up.

        Args:
            model_id: A zoo name, a folder, a GGUF file, a hub id, or a loaded `sonde.Model`.
            programs: Texts, (text, answer), (text, answer, metadata), or Pairs.
            intervention_type: `residual_stream`, `attention_heads`, `attention`, `mlp`, `knockout`, or several of them.
            folder: Where to keep it; an experiment that is there is taken up. A new one if left out.
            tell: Told what is being done, how much, and of how much.

        Raises:
            RequestError: A program, role, layer or component is no good, the model cannot do the task, or the folder
                holds an experiment with other settings.
        """
        wanted = causal_settings.components(intervention_type)
        with opened(model_id) as model:
            tracer = causal.CausalTracer(model, **self.settings.to_json())
            tracer.check(wanted)
            prepared = tracer.prepare(programs, tell=tell)
            return self.run_prepared(tracer, prepared, wanted, folder=folder, tell=tell)

    def run_prepared(
        self,
        tracer: causal.CausalTracer,
        prepared: causal_asking.Prepared,
        components: Sequence[causal_settings.Component],
        *,
        folder: str | Path | None = None,
        tell: causal.Tell = lambda doing, done, of: None,
    ) -> InterventionResult:
        """Runs an experiment whose pairs are made and asked already."""
        tracer.check(components)
        where = Path(folder) if folder is not None else new_folder(self.output_dir)
        works = [work for name in components for work in _works(tracer, prepared, name)]
        kept = results.Kept(where, _told(tracer, prepared, components), BATCH_KIND)
        try:
            kept.check_model(identity.of(tracer.model))
            batches = _run(tracer, works, kept, tell)
        finally:
            kept.close()
        traces = {name: _trace(tracer, prepared, name, list(zip(works, batches, strict=True))) for name in components}
        model_id = tracer.model.cfg.model_name
        found = InterventionResult(model_id, traces, prepared, tracer.settings, where)
        _write(where / INTERVENTIONS, [{"model_id": model_id, **row} for batch in batches for row in batch])
        _write(where / PATCHES, found.summary)
        return found


def run_causal_tracing_experiment(
    model_id: Any,
    programs: Sequence[causal.Program],
    *,
    intervention_types: Sequence[str] = ("residual_stream", "attention_heads", "mlp"),
    output_dir: str | Path = FOLDER,
    **options: Any,
) -> InterventionResult:
    """Traces residual stream, heads and MLPs through programs, in one call.

    Args:
        model_id: A name for `sonde.load`, or a loaded model.
        programs: Texts, (text, answer), (text, answer, metadata), or Pairs.
        intervention_types: What to patch.
        output_dir: Where experiments are kept.
        **options: Fields of `TraceSettings`, and `folder` and `tell` of `run_intervention_experiment`.
    """
    how = {name: options.pop(name) for name in ("folder", "tell") if name in options}
    runner = CausalExperimentRunner(output_dir, **options)
    return runner.run_intervention_experiment(model_id, programs, intervention_types, **how)


@contextlib.contextmanager
def opened(model: Any) -> Iterator[Any]:
    """A model by name, freed after the block; one that is loaded already stays."""
    if not isinstance(model, str | Path):
        yield model
        return
    from sonde.models import loading

    with loading.load(model) as loaded:
        yield loaded


def new_folder(base: Path) -> Path:
    """A folder named after the time that is not there yet."""
    now = datetime.datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
    tries = (base / f"{now}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
    return next(folder for folder in tries if not folder.exists())


def _works(
    tracer: causal.CausalTracer, prepared: causal_asking.Prepared, component: causal_settings.Component
) -> list[_Work]:
    """All that is to be patched in one component, in a fixed order: the example first, then pairs, then controls."""
    size = 16 if sum(one.numel() for one in tracer.model.hf.parameters()) < SMALL_MODEL else 2
    works = []
    if component not in causal_settings.WITHOUT_EXAMPLE and tracer.settings.positions != "all":
        works.append(_Work(component, prepared.tasks[:1], everywhere=True))
    for tasks in (prepared.tasks, () if component == causal_settings.KNOCKOUT else prepared.controls):
        works += [_Work(component, tasks[at : at + size]) for at in range(0, len(tasks), size)]
    return works


def _run(
    tracer: causal.CausalTracer, works: Sequence[_Work], kept: results.Kept, tell: causal.Tell
) -> list[Sequence[results.Row]]:
    """The rows of each work, those on disk first."""
    done: list[Sequence[results.Row]] = list(kept.batches)
    for at, work in enumerate(works):
        of = [one for one in works if one.component == work.component]
        if at >= len(done):
            sweep = tracer.sweep(work.tasks, work.component, everywhere=work.everywhere)
            rows = [
                causal_traces.row_of(*one)
                for one in zip(work.tasks, [sweep] * len(work.tasks), sweep.grids, strict=True)
            ]
            told = [{} if work.everywhere else tracer.told(task, work.component) for task in work.tasks]
            rows = [{**row, "all_tokens": work.everywhere, **more} for row, more in zip(rows, told, strict=True)]
            done.append(kept.add(rows))
        elif [_pair(row) for row in done[at]] != [(one.pair.clean, one.pair.counterfactual) for one in work.tasks]:
            raise errors.RequestError(
                f"{kept.folder} was begun with other pairs: the model answered other programs right then, or their "
                "counterfactuals were drawn otherwise; trace into a new folder"
            )
        finished = sum(len(one.tasks) for one in works[: at + 1] if one.component == work.component)
        tell(work.component, finished, sum(len(one.tasks) for one in of))
    return done


def _pair(row: results.Row) -> tuple[str, str]:
    """Both programs of a row."""
    return row["program"], row["counterfactual_program"]


def _trace(
    tracer: causal.CausalTracer,
    prepared: causal_asking.Prepared,
    component: causal_settings.Component,
    done: Sequence[tuple[_Work, Sequence[results.Row]]],
) -> causal_traces.Trace:
    """All works of a component put together."""
    mine = [(work, causal_traces.sweep_of(work.tasks, rows)) for work, rows in done if work.component == component]
    parts = {"example": [sweep for work, sweep in mine if work.everywhere]}
    for kind in ("root", "distractor"):
        parts[kind] = [sweep for work, sweep in mine if not work.everywhere and work.tasks[0].kind == kind]
    sweep, controls = (causal_traces.joined(parts[kind]) for kind in ("root", "distractor"))
    assert sweep is not None
    example = causal_traces.joined(parts["example"])
    if example is None and component not in causal_settings.WITHOUT_EXAMPLE:
        example = sweep.select([0])
    tried = () if component == causal_settings.KNOCKOUT else prepared.controls
    return causal_traces.Trace(component, prepared.tasks, tried, sweep, controls, example, tracer.settings)


def _told(
    tracer: causal.CausalTracer, prepared: causal_asking.Prepared, components: Sequence[causal_settings.Component]
) -> dict[str, Any]:
    """What fixes the results."""
    told = {"model_id": tracer.model.cfg.model_name, "intervention_types": list(components)}
    return {**told, **tracer.settings.to_json(), "programs": list(prepared.programs)}


def _write(path: Path, content: Any) -> None:
    with disk.explained(path):
        disk.write_atomic(path, (json.dumps(plain.jsonable(content), allow_nan=False) + "\n").encode())
