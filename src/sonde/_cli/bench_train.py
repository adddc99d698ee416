"""`sonde bench train`: models that learn a known circuit."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import launch, screens

TRAINING = (
    "Examples: sonde bench train iit -i 3 --epochs 30 -s 0.4 -iit 1 -b 1 --early-stop · sonde bench train ioi --early-stop · "
    "sonde bench train ioi --next-token --early-stop · "
    "sonde bench train core --seeds 0,1 --run core"
)

train = typer.Typer(help="Train models whose circuit is known.", no_args_is_help=True, epilog=TRAINING)

Case = Annotated[str, typer.Option("--indices", "-i", metavar="ID", help="A case; see sonde bench cases.")]
Strict = Annotated[float, typer.Option("-s", "--strict-weight", min=0, help="Weight of the strict loss.")]
Iit = Annotated[float, typer.Option("-iit", "--iit-weight", min=0, help="Weight of the IIT loss.")]
Behaviour = Annotated[float, typer.Option("-b", "--behaviour-weight", min=0, help="Weight of the plain loss.")]
Epochs = Annotated[int, typer.Option(min=1, help="At most so many.")]
Rate = Annotated[float, typer.Option("--lr", min=0, help="The learning rate at its highest.")]
Way = Annotated[str, typer.Option("--siit-sampling", help="Strict swaps: individual, sample_all, all, mixed.")]
Early = Annotated[bool, typer.Option("--early-stop", help="Stop a seed when all three accuracies reach --threshold.")]
Good = Annotated[float, typer.Option("--threshold", min=0, max=1, help="What is good enough.")]
Seeds = Annotated[str, typer.Option(help="Seeds, as 0,1,2 or 0:8; all are trained at once.")]
Separate = Annotated[bool, typer.Option("--separate-steps", help="A step of the optimiser for each loss.")]
SamePlace = Annotated[bool, typer.Option("--same-place", help="Nodes stand where they stand in the program.")]
Detached = Annotated[bool, typer.Option("--detached", help="No gradient through what is swapped in, as published.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Train in this folder, and go on with what is there; the run gets a copy."),
]
Batch = Annotated[int, typer.Option("--batch-size", min=1, help="Rows per step; an epoch has 96,000.")]
Pool = Annotated[
    int, typer.Option(min=1, help="Different batches, taken in turn; more, where a model learns them by heart.")
]
Begin = Annotated[
    str | None,
    typer.Option("--begin", metavar="DIR", help="Begin with weights that training put there; embedded: Sonde's own."),
]


def _recipe(*, seeds: str, early_stop: bool, threshold: float, **given: Any) -> dict[str, Any]:
    numbers = screens.whole_numbers(seeds, "--seeds") or [0]
    return {"seeds": tuple(numbers), "threshold": threshold if early_stop else None, **given}


@train.command("iit", epilog=TRAINING)
def train_iit(
    indices: Case,
    epochs: Epochs = 4,
    strict_weight: Strict = 0.4,
    iit_weight: Iit = 1.0,
    behaviour_weight: Behaviour = 1.0,
    early_stop: Early = False,
    threshold: Good = 0.999,
    lr: Rate = 1e-2,
    siit_sampling: Way = "mixed",
    seeds: Seeds = "0",
    separate_steps: Separate = False,
    same_place: SamePlace = False,
    detached: Detached = False,
    batch_size: Batch = 128,
    pool: Pool = 400,
    begin: Begin = None,
    out: Out = None,
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Train models to compute what a case's program computes, node by node, and nothing elsewhere."""
    _train(
        indices, (out, run, runs), seeds=seeds, early_stop=early_stop, threshold=threshold, epochs=epochs, strict=strict_weight,
        iit=iit_weight, behaviour=behaviour_weight, rate=lr, way=siit_sampling, separate=separate_steps,
        same_place=same_place, detached=detached,
        begin=begin, batch=batch_size, pool=pool,
    )  # fmt: skip


@train.command("ioi", epilog=TRAINING)
def train_ioi(
    next_token: Annotated[bool, typer.Option("--next-token", help="The model that says every next word.")] = False,
    epochs: Epochs = 4,
    strict_weight: Strict = 1.0,
    iit_weight: Iit = 1.0,
    behaviour_weight: Behaviour = 0.0,
    early_stop: Early = False,
    threshold: Good = 0.999,
    lr: Rate = 3e-3,
    siit_sampling: Way = "mixed",
    seeds: Seeds = "0",
    separate_steps: Separate = False,
    same_place: SamePlace = False,
    detached: Detached = False,
    batch_size: Batch = 128,
    pool: Pool = 400,
    begin: Begin = None,
    out: Out = None,
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Train models to solve indirect object identification with three known nodes.

    The plain loss has no weight here: swaps alone teach the task, and with it the way through the nodes was not found.
    """
    _train(
        "ioi_next_token" if next_token else "ioi", (out, run, runs), seeds=seeds, early_stop=early_stop, threshold=threshold, epochs=epochs, strict=strict_weight,
        iit=iit_weight, behaviour=behaviour_weight, rate=lr, way=siit_sampling, separate=separate_steps,
        same_place=same_place, detached=detached,
        begin=begin, batch=batch_size, pool=pool,
    )  # fmt: skip


@train.command("core", epilog=TRAINING)
def train_core(
    seeds: Seeds = "0,1",
    epochs: Epochs = 2,
    strict_weight: Strict = 1.0,
    threshold: Good = 0.999,
    lr: Rate = 1e-2,
    only: Annotated[str | None, typer.Option(help="Only these cases, as 3,7,14.")] = None,
    group: Annotated[str, typer.Option(help="Which cases: core, released, all.")] = "core",
    batch_size: Batch = 128,
    ship: Annotated[bool, typer.Option("--ship", help="Put models of 99.5 % or more into the package.")] = False,
    out: Out = None,
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Train the cases of a group, small ones first, with up to three tries each; resumable over days.

    Several processes, each with a run of its own, may be given the same --out: they share the work. With --ship every model that is
    good enough is put beside those that come with Sonde as soon as it is finished, in place of an outdated one.
    """
    from sonde.bench import cases, courses, shipped

    which: Any = group
    chosen = courses.BenchCoreSettings(
        **_recipe(seeds=seeds, early_stop=True, threshold=threshold, epochs=epochs, rate=lr, strict=strict_weight, batch=batch_size),
        cases=tuple(screens.whole_numbers(only, "--only") or cases.ids(which)),
    )  # fmt: skip

    def told(case: int, number: int, one: Any) -> None:
        share = ", ".join(f"{name} {100 * one.measured[name]:.2f} %" for name in ("accuracy", "iia", "strict"))
        _say(f"case {case}, try {number}, seed {one.seed} {one.status} at step {one.step:,}: {share}")

    made = launch.launch(courses.BenchCore(out=out, ship=ship, on_trained=told), chosen, run=run, runs=runs)
    found = [one for many in made.results["cases"].values() for one in many]
    _say(f"{sum(courses.lowest(one) >= courses.GOOD for one in found)} of {len(found)} models at 99.5 % or more.")
    if ship and (old := shipped.list_outdated()):
        named = ", ".join(f"case {case} seed {seed}" for case, seed in old)
        _say(f"Outdated in {shipped.EMBEDDED}, not listed and best removed: {named}")


def _train(case: str, where: tuple[Path | None, str | None, Path | None], **given: Any) -> None:
    from sonde.bench import courses

    (out, run, runs), begin = where, given.pop("begin")
    chosen = courses.BenchTrainSettings(case=case, begin=begin, **_recipe(**given))
    found = launch.launch(courses.BenchTrain(out=out), chosen, run=run, runs=runs).results["trained"]
    if lost := [str(one["seed"]) for one in found if one["status"] == "diverged"]:
        _say(
            f"Warning: the loss of seed {', '.join(lost)} was no number any more; the weights are the best before. Lower --lr."
        )
        raise typer.Exit(len(lost) == len(found))


def _say(text: str) -> None:
    screens.screen().print(text, soft_wrap=True, highlight=False, markup=False)


def register(app: typer.Typer) -> None:
    """Adds the commands of this file to `sonde bench`."""
    app.add_typer(train, name="train")
