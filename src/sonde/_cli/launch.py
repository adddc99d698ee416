"""The one launcher of everything that runs: shared options, estimate, bars, Ctrl-C, summary and closing lines."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

MODEL = "smollm2-135m-instruct"
Model = Annotated[str, typer.Option("--model", "-m", help="A zoo name, a folder, a GGUF file or a hub id.")]
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


def launch(
    experiment: Any,
    settings: Any,
    *,
    run: str | None,
    runs: Path | None,
    engine: str = "local",
    stages: Sequence[str] | None = None,
    again: str | None = None,
) -> Any:
    """Runs an experiment in front of a person; returns its result.

    `again` is what `--run` must be given to go on, where that is not the name of the run.
    """
    from sonde import experiments
    from sonde.store import names

    screen, name = screens.screen(), run or names.new_run_id()
    experiment.check(settings)
    todo = [one for one in experiments.pending(experiment, run, runs) if stages is None or one in stages]
    by_stage = {one: took for one, took in experiment.estimate(settings).items() if one in todo} if todo else {}
    screen.print(f"{_model(experiment)}{experiment.headline(settings)}. {_about(todo, by_stage)}", highlight=False)
    with screens.stopped(screen, _again(again or name)), screens.bars(screen) as told:
        result = experiments.run(
            experiment,
            settings,
            run=name,
            runs_dir=runs,
            engine=engine,
            stages=stages,
            on_progress=lambda now: told(now.what, now.done, now.total),
        )
    show(screen, result)
    return result


def show(screen: Any, result: Any) -> None:
    """The summary, the tables, and where everything is."""
    from sonde.report import terminal

    if result.report is not None:
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
