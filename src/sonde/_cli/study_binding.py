"""`sonde study binding`: how a small transformer learns to follow variables, and which way a value takes in it."""

from typing import Annotated, Any

import typer

from sonde._cli import launch

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
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    engine: launch.Engine = "local",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """How does a small transformer learn to follow variables, and which way does a value take in it?

    Programs such as `a3b5cahc#h:` ask what a letter stands for. Models that were trained on them come with Sonde: their
    learning is shown (chance, then a heuristic, then the systematic answer), the value is followed from its line to the
    answer by patching (trace), and a report is written. Training one anew takes about an hour on the CPU and is a run of
    its own, NAME-training.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.store import names
    from sonde.studies.binding import network, shipped, study, training

    stages = launch.stages_of(study.Binding, stage, run, before=("train",))
    known = launch.recorded(study.Binding, stages, run, runs)
    run, chosen = run or names.new_run_id(), list(model or shipped.names())
    if train or stage == "train":
        helps: dict[str, Any] = training.PLAIN if plain else {}
        recipe = training.BindingTrainingSettings(
            seed=seed, steps=steps, shape=network.Shape(layers=layers), told=told, start=start, **helps
        )
        made = launch.launch(study.BindingTraining(), recipe, run=f"{run}-training", runs=runs, again=run)
        chosen = [str(made.folder)]
    if stage == "train":
        return
    if known and not model and (pairs, seed) == (200, 0):  # nothing was typed: the run's
        settings, device, dtype = known[0], known[1]["device"], known[1]["dtype"]
    else:
        settings = study.BindingSettings(models=tuple(chosen), pairs=pairs, seed=seed)
    experiment = study.Binding(settings.models, device=device, dtype=dtype)
    launch.launch(experiment, settings, run=run, runs=runs, engine=engine, stages=stages)
