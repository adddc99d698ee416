"""The one way to run an experiment.

1. The run of that name is opened, or made. One of another kind, with other settings, or of another model is refused.
2. The run is locked: it is `running`, and a second process is refused.
3. Each stage that is not on disk yet is computed and kept as a sealed document, with torch's threads pinned. A stage of items
   keeps each item as it is finished.
4. `results.json`, `report.html` and the figures are written from what is on disk, and sealed with every other file of the run.
5. The manifest says finished, or failed and why; what was killed or stopped is `interrupted`, and the same call resumes it.

Costs two durable writes a stage, and one read of everything at the end, to seal it.
"""

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Awaitable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from sonde import store
from sonde.core import errors, progress
from sonde.experiments import experiment as experiments
from sonde.models import identity
from sonde.report import page
from sonde.store import documents, layout, names, plain, schemas, seals

RESULTS = "results.json"
ENGINES = ("local", "ray")
#: What a stage took, by name: beside its document, because it is never the same twice.
TIMES = schemas.register("times of stages", dict[str, schemas.Number | schemas.Text | int])
_Steps = Generator[Awaitable[Any], Any, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A finished experiment.

    Attributes:
        run: Its run.
        results: What `results.json` holds.
        html: The page's file, if there is one.
        report: What is on the page.
        highlights: The tables that a terminal shows.
    """

    run: store.Run
    results: dict[str, Any]
    html: Path | None = None
    report: page.Report | None = None
    highlights: tuple[page.Table, ...] = ()

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run.folder


def run(  # noqa: PLR0913  # the one door
    experiment: experiments.Experiment[Any],
    settings: Any,
    *,
    run: str | None = None,
    runs_dir: Path | str | None = None,
    engine: str = "local",
    stages: Sequence[str] | None = None,
    on_progress: progress.OnProgress | None = None,
) -> Result:
    """Runs what is not on disk yet; not from inside an event loop (there: `run_async`).

    Args:
        experiment: What to run.
        settings: What fixes its result.
        run: Run name. An existing run is resumed.
        runs_dir: The folder of all runs; $SONDE_RUNS or ./runs.
        engine: `local`, or `ray` for a Ray cluster.
        stages: Only these, in order; results and report follow when all stages are there. None of them: the report alone.
        on_progress: Called with a Progress as work is finished.

    Raises:
        RequestError: Impossible settings, or a run of that name with other settings or of another model.
        StoreError: The folder cannot be written, or another process is at work on the run.
    """
    steps, answer = _steps(experiment, settings, (run, runs_dir, engine, stages, on_progress)), None
    while True:
        try:
            waiting = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        try:
            answer = asyncio.run(_awaited(waiting))
        except BaseException as error:
            try:
                steps.throw(error)
            except StopIteration as stop:
                return stop.value


async def run_async(experiment: experiments.Experiment[Any], settings: Any, **options: Any) -> Result:
    """As `run`, to be awaited."""
    order = ("run", "runs_dir", "engine", "stages", "on_progress")
    unknown = sorted(set(options) - set(order))
    if unknown:
        raise TypeError(f"run_async has no option {unknown[0]!r}{errors.suggest(unknown[0], order)}")
    options = {"engine": "local", **options}
    steps, answer = _steps(experiment, settings, tuple(options.get(name) for name in order)), None
    while True:
        try:
            waiting = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        try:
            answer = await waiting
        except BaseException as error:
            try:
                steps.throw(error)
            except StopIteration as stop:
                return stop.value


def pending(experiment: experiments.Experiment[Any], run: str | None, runs_dir: Path | str | None = None) -> list[str]:
    """The stages that a run of this name does not have yet."""
    every = [stage.name for stage in experiment.stages]
    if run is None:
        return every
    folder = Path(runs_dir if runs_dir is not None else names.default_runs_dir()) / run
    here = {
        one.name
        for one in experiment.stages
        if not _is_open(one) and experiments.stage_path(folder, one.name).is_file()
    }
    return [name for name in every if name not in here]


def recorded(
    kind: type[experiments.Experiment[Any]], run: str, runs_dir: Path | str | None = None
) -> tuple[Any, dict[str, Any]]:
    """The settings that a run was started with, and the record of its model.

    Raises:
        RequestError: There is no run of that name, or it is of another kind.
    """
    parent = Path(runs_dir if runs_dir is not None else names.default_runs_dir())
    if run not in layout.list_runs(parent):
        raise errors.RequestError(
            f"there is no run {run!r} at {parent}: start one with sonde {' '.join(kind.verb)} --run {run}"
        )
    manifest = store.Run.open(parent / run).manifest
    if manifest["kind"] != kind.kind:
        raise errors.RequestError(f"run {run} is of kind {manifest['kind']!r}, not {kind.kind!r}: give another one")
    return kind.settings_type.from_json(manifest["settings"]), manifest["model"]


@contextlib.contextmanager
def pinned(threads: int | None) -> Iterator[None]:
    """A fixed number of torch's threads for a block: it is part of what fixes the last bits. None changes nothing."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _steps(experiment: experiments.Experiment[Any], settings: Any, options: tuple[Any, ...]) -> _Steps:
    name, runs_dir, engine, stages, on_progress = options
    if engine not in ENGINES:
        raise errors.RequestError(
            f"no engine {engine!r}: choose {' or '.join(ENGINES)}{errors.suggest(engine, ENGINES)}"
        )
    chosen = [experiment.stage(stage) for stage in stages] if stages is not None else list(experiment.stages)
    experiment.check(settings)
    held = experiment.record()
    kept = store.Run.take_up(
        runs_dir,
        kind=experiment.kind,
        model=held,
        settings=settings.to_json(),
        seed=getattr(settings, "seed", None),
        id=name,
    )
    if held:
        identity.check(kept.manifest["model"], held, what=f"run {kept.id}")
    context = experiments.Context(experiment, settings, kept, on_progress, engine)
    for stage in () if chosen else experiment.stages:
        context.found(stage.name)  # the report alone needs them all
    with kept.lock():
        try:
            with pinned(getattr(settings, "threads", None)), experiment.around():
                for stage in chosen:
                    if _is_open(stage) or not context.path(stage.name).exists():
                        yield from _computed(context, stage)
            return _finished(context)
        except Exception as error:
            with contextlib.suppress(errors.StoreError):  # a full disk has the last word
                kept.fail(f"{type(error).__name__}: {error}")
            raise


def _computed(context: experiments.Context[Any], stage: experiments.Stage | experiments.Items) -> _Steps:
    """Computes a stage and keeps it; how long that took is kept beside it."""
    start = time.monotonic()
    if isinstance(stage, experiments.Items):
        content = stage.join(context, (yield from _worked(context, stage)))
    else:
        content = yield from _value(stage.compute(context))
    times = _times(context) | {stage.name: _times(context).get(stage.name, 0) + time.monotonic() - start}
    documents.keep(context.path("times"), times)
    documents.keep(context.path(stage.name), content)


def _is_open(stage: experiments.Stage | experiments.Items) -> bool:
    return isinstance(stage, experiments.Stage) and stage.open


def _worked(context: experiments.Context[Any], stage: experiments.Items) -> _Steps:
    """Works what is not on disk yet of a stage's items; returns what all of them gave, in order."""
    items = stage.items(context)
    paths = [context.folder / "stages" / stage.name / f"{number:05d}.json" for number in range(len(items))]
    todo = {number: item for number, item in enumerate(items) if not paths[number].exists()}
    first = len(items) - len(todo) + 1
    if context.engine == "ray":
        from sonde.experiments import cluster

        for done, (number, content) in enumerate(cluster.results(context, stage.name, todo), start=first):
            documents.keep(paths[number], content)
            context.tell(stage.name, done, len(items))
    else:
        for done, (number, item) in enumerate(todo.items(), start=first):
            documents.keep(paths[number], (yield from _value(stage.work(context, item))))
            context.tell(stage.name, done, len(items))
    return [documents.kept(path, stage.item_schema) for path in paths]


def _value(given: Any) -> _Steps:
    return (yield given) if isinstance(given, Awaitable) else given


def _times(context: experiments.Context[Any]) -> dict[str, Any]:
    path = context.path("times")
    return documents.kept(path, TIMES) if path.exists() else {}


def _finished(context: experiments.Context[Any]) -> Result:
    """Writes and seals results, report and figures; nothing while a stage is missing."""
    kept, experiment = context.run, context.experiment
    if any(not context.path(stage.name).exists() for stage in experiment.stages):
        return Result(kept, {})
    path = kept.folder / RESULTS
    documents.write_results(path, experiment.results(context) | {"timing": _times(context)})
    results = documents.read_results(path, experiment.results_kind)
    experiment.save(context, results)
    report = experiment.report(results, kept.id)
    written = None
    if report is not None:
        report = dataclasses.replace(
            report,
            command=report.command or experiment.command(context.settings),
            settings=report.settings or context.settings.to_json(),
        )
        written = page.write(report, kept.folder)
    kept.seal(_loose(kept.folder))
    summary = plain.jsonable(experiment.summary(results))
    if kept.manifest["status"] != "finished" or kept.manifest.get("summary") != summary:
        kept.finish(summary)
    return Result(kept, results, written, report, experiment.highlights(results))


def _loose(folder: Path) -> list[Path]:
    """The files of a run that carry no checksum themselves."""
    found: list[Path] = []
    for place, inner, names_there in os.walk(folder):
        here = Path(place)
        if here != folder and (here / layout.MANIFEST).exists():  # a run within it seals its own
            inner.clear()
            continue
        inner[:] = [name for name in inner if not name.startswith(".") and name != layout.EPISODES]
        found += [here / name for name in names_there if not name.startswith(".") and not _sealed(here / name)]
    return sorted(found)


def _sealed(path: Path) -> bool:
    return (
        path.name in (layout.MANIFEST, seals.NAME)
        or path.suffix == ".jsonl"
        or (path.suffix == ".json" and documents.is_document(path))
    )


async def _awaited(waiting: Awaitable[Any]) -> Any:
    return await waiting
