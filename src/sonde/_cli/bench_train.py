"""`sonde bench train`: models that learn a known circuit."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

TRAINING = (
    "Examples: sonde bench train iit -i 3 --epochs 30 -s 0.4 -iit 1 -b 1 --early-stop · sonde bench train ioi --early-stop · "
    "sonde bench train ioi --next-token --early-stop · "
    "sonde bench train core --seeds 0,1 --out DIR"
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
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where; a run that is there goes on. results/bench.")]
Batch = Annotated[int, typer.Option("--batch-size", min=1, help="Rows per step; an epoch has 96,000.")]
Pool = Annotated[
    int, typer.Option(min=1, help="Different batches, taken in turn; more, where a model learns them by heart.")
]
Begin = Annotated[
    str | None,
    typer.Option("--begin", metavar="DIR", help="Begin with weights that training put there; embedded: Sonde's own."),
]


def _recipe(*, seeds: str, early_stop: bool, threshold: float, **given: Any) -> Any:
    from sonde.bench import siit, training
    from sonde.core import errors

    if given["way"] not in siit.WAYS:
        raise typer.BadParameter(
            f"{given['way']!r} is none of {', '.join(siit.WAYS)}{errors.suggest(given['way'], siit.WAYS)}",
            param_hint="--siit-sampling",
        )
    numbers = screens.whole_numbers(seeds, "--seeds") or [0]
    return training.Recipe(seeds=tuple(numbers), threshold=threshold if early_stop else None, **given)


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
) -> None:
    """Train models to compute what a case's program computes, node by node, and nothing elsewhere."""
    _train(
        indices, out, seeds=seeds, early_stop=early_stop, threshold=threshold, epochs=epochs, strict=strict_weight,
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
) -> None:
    """Train models to solve indirect object identification with three known nodes.

    The plain loss has no weight here: swaps alone teach the task, and with it the way through the nodes was not found.
    """
    _train(
        "ioi_next_token" if next_token else "ioi", out, seeds=seeds, early_stop=early_stop, threshold=threshold, epochs=epochs, strict=strict_weight,
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
) -> None:
    """Train the cases of a group, small ones first, with up to three tries each; resumable over days.

    Several processes may be given the same folder: they share the work. With --ship every model that is good enough is
    put beside those that come with Sonde as soon as it is finished, in place of an outdated one.
    """
    from rich import console

    from sonde.bench import cases, shipped, suite

    which: Any = group
    ids = screens.whole_numbers(only, "--only") or cases.ids(which)
    recipe = _recipe(
        seeds=seeds, early_stop=True, threshold=threshold, epochs=epochs, rate=lr, way="mixed", strict=strict_weight,
        batch=batch_size,
    )  # fmt: skip
    screen, folder = console.Console(), out or shipped.RESULTS / "suite"

    def told(case: int, number: int, one: Any) -> None:
        _say(screen, f"case {case}, try {number}, {_line(one)}")
        if ship:
            shipped.collect(folder, seeds=recipe.seeds, only=[str(case)])

    with screens.stopped(screen, f"the same command and --out {folder}"), screens.bars(screen, single=True) as bar:
        found = suite.train(ids, recipe, folder, report=told, tell=bar)
    good = sum(suite.score(one) >= 0.995 for many in found.values() for one in many)
    _say(screen, f"{good} of {sum(map(len, found.values()))} models at 99.5 % or more: {folder}")
    if ship and (old := shipped.list_outdated()):
        named = ", ".join(f"case {case} seed {seed}" for case, seed in old)
        _say(screen, f"Outdated in {shipped.EMBEDDED}, not listed and best removed: {named}")


def _train(case: str, out: Path | None, *, begin: str | None, **given: Any) -> None:
    from rich import console

    from sonde.bench import shipped, training

    recipe, task = _recipe(**given), shipped.task_of(case)
    folder = out or shipped.folder_of(case, recipe.weight_id)
    start = [] if begin is None else shipped.earlier(case, begin, recipe.seeds)
    screen = console.Console()
    with screens.stopped(screen, f"the same command and --out {folder}"), screens.bars(screen) as told:
        shape = training.shape_of(task, shipped.sizes_of(case))
        found = training.train(
            task, shape, recipe, folder, start=start, tell=lambda doing, done, of: told(task.name, done, of)
        )
    for one in found:
        _say(screen, _line(one))
    _say(screen, f"Weights {recipe.weight_id}: {folder}")
    if lost := [str(one.seed) for one in found if one.status == "diverged"]:
        screen.print(
            f"Warning: the loss of seed {', '.join(lost)} was no number any more; the weights are the best before. Lower --lr.",
            style="yellow", highlight=False, soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(len(lost) == len(found))


def _line(one: Any) -> str:
    share = {name: f"{100 * one.measured[name]:.2f} %" for name in ("accuracy", "iia", "strict")}
    return (
        f"seed {one.seed} {one.status} at step {one.step:,}: accuracy {share['accuracy']}, IIA {share['iia']}, "
        f"strict {share['strict']}"
    )


def _say(screen: Any, text: str) -> None:
    screen.print(text, soft_wrap=True, highlight=False, markup=False)


def register(app: typer.Typer) -> None:
    """Adds the commands of this file to `sonde bench`."""
    app.add_typer(train, name="train")
