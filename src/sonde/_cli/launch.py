"""The one launcher of everything that runs: shared options, estimate, bars, Ctrl-C, summary and closing lines."""

import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

MODEL = "smollm2-135m-instruct"
Model = Annotated[str, typer.Option("--model", "-m", help="A zoo name, a folder, a GGUF file or a hub id.")]
#: As `Model`, where a later stage may take the run's.
ModelOrRun = Annotated[
    str | None, typer.Option("--model", "-m", help=f"A zoo name, a folder, a GGUF file or a hub id; {MODEL}.")
]
Device = Annotated[
    str, typer.Option(help="Where the model runs: auto, cpu, cuda, mps; auto takes the first that is there.")
]
Dtype = Annotated[str, typer.Option(help="Type of the weights: float32, bfloat16 or float16.")]
Seed = Annotated[int, typer.Option(min=0, help="Fixes everything that is drawn.")]
RunName = Annotated[str | None, typer.Option("--run", help="Run name. An existing run is resumed.")]
RunsDir = Annotated[
    Path | None, typer.Option("--runs", metavar="DIR", help="Where to keep runs; $SONDE_RUNS or ./runs.")
]
Engine = Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")]


def stages_of(kind: Any, stage: str, run: str | None, *, before: Sequence[str] = ()) -> tuple[str, ...] | None:
    """The stages that a word asks for: `all`, a stage's name, or `report`; the later ones go on with a run.

    `before` are words that have a meaning of their own.
    """
    names = [one.name for one in kind.stages]
    every = ("all", *before, *names, "report")
    if stage not in every:
        raise typer.BadParameter(f"choose {', '.join(every)}; got {stage!r}", param_hint="STAGE")
    if stage in (*names[1:], "report") and not run:
        raise typer.BadParameter("say which run to go on with: --run NAME", param_hint="--run")
    return (stage,) if stage in names else () if stage == "report" else None


def recorded(kind: Any, stages: Sequence[str] | None, run: str | None, runs: Path | None) -> tuple[Any, Any] | None:
    """Settings and model record of the run that a later stage goes on with; None for all stages, and for the first."""
    from sonde import experiments

    if stages is None or run is None or kind.stages[0].name in stages:
        return None
    return experiments.recorded(kind, run, runs)


def launch(
    experiment: Any,
    settings: Any,
    *,
    run: str | None,
    runs: Path | None,
    engine: str = "local",
    stages: Sequence[str] | None = None,
    again: str | None = None,
    bars: bool = True,
) -> Any:  # the one launcher
    """Runs an experiment in front of a person; returns its result.

    `again` is what --run must be to go on, if not `run`. No bars where something else is asked meanwhile.
    """
    from sonde import experiments
    from sonde.core import progress
    from sonde.store import names

    screen, name = screens.screen(), run or names.new_run_id()
    experiment.check(settings)
    todo = [one for one in experiments.pending(experiment, run, runs) if stages is None or one in stages]
    by_stage = {one: took for one, took in experiment.estimate(settings).items() if one in todo} if todo else {}
    screen.print(f"{_model(experiment)}{experiment.headline(settings)}. {_about(todo, by_stage)}", highlight=False)
    shown = screens.bars(screen) if bars else contextlib.nullcontext(progress.silent)
    with screens.stopped(screen, _again(again or name)), shown as told:
        result = experiments.run(
            experiment,
            settings,
            run=name,
            runs_dir=runs,
            engine=engine,
            stages=stages,
            on_progress=lambda now: told(now.what, now.done, now.total, **now.counts),
        )
    show(screen, result)
    return result


def show(screen: Any, result: Any) -> None:
    """The summary, the tables, and where everything is."""
    from sonde.report import terminal

    if result.report is None:
        for table in result.highlights:
            screen.print(terminal.table(table))
    else:
        screen.print(terminal.summary(result.report, *result.highlights))
        screen.print(f"Report: {result.html}", soft_wrap=True, highlight=False, markup=False)
    folder = result.folder
    screen.print(f"Run: {folder}   (sonde runs show {folder.name})", soft_wrap=True, highlight=False, markup=False)


def _about(todo: Sequence[str], by_stage: Mapping[str, float]) -> str:
    if not todo:
        return "Everything is on disk."
    if not by_stage:
        return ""
    parts = ", ".join(f"{stage} {screens.span(took)}" for stage, took in by_stage.items())
    return f"About {screens.span(sum(by_stage.values()))} ({parts})."


def _model(experiment: Any) -> str:
    model = experiment.model
    if model is None:
        return ""
    dtype = str(next(model.hf.parameters()).dtype).removeprefix("torch.")
    return f"[bold]{model.cfg.model_name}[/] on {model.device} in {dtype}: "


def _again(name: str) -> str:
    """The command that goes on: what was typed, with the run's name."""
    words = sys.argv[1:]
    named = any(word == "--run" or word.startswith("--run=") for word in words)
    return shlex.join(["sonde", *words, *(() if named else ("--run", name))])
