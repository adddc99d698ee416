"""`sonde study binding`: how a small transformer learns to follow variables, and which way a value takes in it."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

EXAMPLES = (
    "Examples: sonde study binding · sonde study binding --model seed-0 --pairs 400 --run mine · "
    "sonde study binding train --seed 3 --run three · sonde study binding --train --seed 3 --run three"
)


def binding(
    stage: Annotated[
        str, typer.Argument(help="all (trace and report), or one of: train, trace, report. Report needs --run.")
    ] = "all",
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="A model that comes with Sonde or a folder; all that come if left out."),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Train a model first, and study that one: an hour.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Train without the helps; expect the plateau.")] = False,
    told: Annotated[
        int,
        typer.Option(
            min=0, help="A help: after so many layers ask each right-hand side for its line's value; 0: do not."
        ),
    ] = 0,
    start: Annotated[
        str, typer.Option(help="Begin with a model that comes with Sonde and a step, such as seed-0@1500.")
    ] = "",
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model to train.")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 5000,
    pairs: Annotated[int, typer.Option(min=10, help="Held-out pairs per number of hops.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Fixes training; and which programs are traced.")] = 0,
    run: Annotated[str | None, typer.Option(help="A name for the run; one that is there is taken up.")] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Where to keep runs; $SONDE_RUNS or ./runs.")
    ] = None,
) -> None:
    """How does a small transformer learn to follow variables, and which way does a value take in it?

    Programs such as `a3b5cahc#h:` ask what a letter stands for. Models that were trained on them come with Sonde: their
    learning is shown (chance, then a heuristic, then the systematic answer), the value is followed from its line to the
    answer by patching (trace), and a report is written. Training one anew takes about an hour and can be stopped and
    taken up.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.store import names
    from sonde.studies.binding import network, shipped, study

    screen = screens.screen()
    if stage not in ("all", *study.STAGES):
        raise typer.BadParameter(f"choose all, {', '.join(study.STAGES)}; got {stage!r}", param_hint="STAGE")
    if stage == "report" and not run:
        raise typer.BadParameter("say which run to report: --run NAME", param_hint="--run")
    run = run or names.new_run_id()
    with screens.stopped(screen, f"the same command and --run {run}"), screens.bars(screen) as tell:
        chosen = list(model or shipped.names())
        if train or stage == "train":
            shape = network.Shape(layers=layers)
            options = {"seed": seed, "steps": steps, "shape": shape, "told": told, "start": start}
            chosen = [str(_trained(run, runs, options, plain=plain, tell=tell))]
        found = None
        if stage != "train":
            found = study.run(chosen, pairs=pairs, seed=seed, run=run, runs_dir=runs, tell=tell)
    if found is None:
        screen.print(f"Trained: {chosen[0]}", soft_wrap=True, highlight=False, markup=False)
    elif stage == "trace":
        screen.print(f"Traced: {found.folder / study.RESULTS}", soft_wrap=True, highlight=False, markup=False)
    else:
        _show(screen, found)


def _trained(run: str, runs: Path | None, options: dict[str, Any], *, plain: bool, tell: Any) -> Path:
    """Trains a model, or goes on with it; returns the folder of the training run."""
    from sonde import store
    from sonde.studies.binding import training

    helps: Any = {"easy": 0.0, "every": False, "batch": 128} if plain else {}
    recipe = training.Recipe(**options, **helps)
    folder = Path(runs if runs is not None else store.default_runs_dir()) / f"{run}-training" / f"seed-{recipe.seed}"
    training.train(recipe, folder, tell=tell)
    return folder


def _show(screen: Any, found: Any) -> None:
    from sonde.report import page, terminal
    from sonde.studies.binding import pages

    report = pages.report(found.results, shlex.join(["sonde", *sys.argv[1:]]))
    written = page.write(report, found.folder)
    screen.print(terminal.summary(report))
    screen.print(f"Report: {written}", soft_wrap=True, highlight=False, markup=False)
    screen.print(
        f"Run: {found.folder}   (sonde runs show {found.folder.name})", soft_wrap=True, highlight=False, markup=False
    )
