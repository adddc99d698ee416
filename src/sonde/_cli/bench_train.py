"""`sonde bench train`, `run` and `eval`: models that learn a known circuit, finders run on them, and evaluations."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

TRAINING = (
    "Examples: sonde bench train iit -i 3 --epochs 30 -s 0.4 -iit 1 -b 1 --early-stop · sonde bench train ioi --early-stop · "
    "sonde bench train ioi --next-token --early-stop · "
    "sonde bench train core --seeds 0,1 --out DIR"
)
RUNNING = (
    "Examples: sonde bench run acdc -i 3 --tracr --threshold 0.71 · sonde bench run sp -i 1 --siit-weights 510 --lambda-reg 0.5 · "
    "sonde bench run sp --interp-bench --edgewise · sonde bench run eap -i ioi --siit-weights 510 --integrated-grad-steps=5"
)
EVALUATING = (
    "Examples: sonde bench eval iit -i 3 --siit-weights 510 · sonde bench eval iit_acdc -i 3 --interp-bench --threshold 0.01 · "
    "sonde bench eval node_realism -i 3 --siit-weights 510 --circuit results/run/acdc/case-3-510-seed-0/circuit.json"
)

train = typer.Typer(help="Train models whose circuit is known.", no_args_is_help=True, epilog=TRAINING)
run = typer.Typer(help="Run a circuit finder on models whose circuit is known.", no_args_is_help=True, epilog=RUNNING)

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
    begin: Begin = None,
    out: Out = None,
) -> None:
    """Train models to compute what a case's program computes, node by node, and nothing elsewhere."""
    _train(
        indices, out, seeds=seeds, early_stop=early_stop, threshold=threshold, epochs=epochs, strict=strict_weight,
        iit=iit_weight, behaviour=behaviour_weight, rate=lr, way=siit_sampling, separate=separate_steps,
        same_place=same_place, detached=detached,
        begin=begin, batch=batch_size,
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
        begin=begin, batch=batch_size,
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
    out: Out = None,
) -> None:
    """Train the cases of a group, small ones first, with up to three tries each; resumable over days."""
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

    with screens.stopped(screen, f"the same command and --out {folder}"):
        found = suite.train(ids, recipe, folder, report=told)
    good = sum(suite.score(one) >= 0.995 for many in found.values() for one in many)
    _say(screen, f"{good} of {sum(map(len, found.values()))} models at 99.5 % or more: {folder}")


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


def _line(one: Any) -> str:
    share = {name: f"{100 * one.measured[name]:.2f} %" for name in ("accuracy", "iia", "strict")}
    return (
        f"seed {one.seed} {one.status} at step {one.step:,}: accuracy {share['accuracy']}, IIA {share['iia']}, "
        f"strict {share['strict']}"
    )


# ------------------------------------------------------------------------------------------------ subjects

Index = Annotated[
    str | None,
    typer.Option("--indices", "-i", metavar="ID", help="A case, ioi or ioi_next_token; none for all embedded."),
]
Tracr = Annotated[bool, typer.Option("--tracr", help="The compiled model.")]
Weights = Annotated[int | None, typer.Option("--siit-weights", help="A model trained here: 10 iit + 100 b + 1000 s.")]
Embedded = Annotated[bool, typer.Option("--interp-bench", help="The models that come with Sonde.")]
Published = Annotated[
    Path | None, typer.Option("--folder", metavar="DIR", help="Published InterpBench models; see docs, Experiments.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the trained model and of the pairs.")]
Pairs = Annotated[int, typer.Option(min=2, help="Pairs of inputs.")]
Metric = Annotated[str | None, typer.Option(help="kl, mse, mae, answer_diff …; kl, or mse for numbers.")]
Where = Annotated[Path, typer.Option(metavar="DIR", help="Where the output goes.")]
RUNS, EVALS = Path("results") / "run", Path("results") / "eval"


def _subjects(
    index: str | None, tracr: bool, weights: int | None, embedded: bool, folder: Path | None, seed: int
) -> Any:
    """The models that were asked for, one after the other."""
    from sonde.bench import roster, shipped

    if tracr + (weights is not None) + embedded + (folder is not None) != 1:
        raise typer.BadParameter(
            "give one of --tracr, --siit-weights, --interp-bench and --folder", param_hint="--siit-weights"
        )
    if folder is not None:
        yield from (entry.subject() for entry in roster.folder_of(folder, cases=None if index is None else [index]))
    elif index is None and not embedded:
        raise typer.BadParameter("name a case with -i (only --interp-bench and --folder run all)", param_hint="-i")
    elif index is None:
        chosen = [case for case, number in shipped.list_embedded() if number == seed]
        if not chosen:
            shipped.embedded("3", seed=seed)  # says what there is and how to train
        yield from (shipped.embedded(case, seed=seed) for case in chosen)
    elif tracr:
        yield shipped.compiled(index)
    elif embedded:
        yield shipped.embedded(index, seed=seed)
    else:
        yield shipped.trained(index, weights or 0, seed=seed)


def _run(method: str, subjects: Any, out: Path, *, pairs: int, threshold: float | None = None, **options: Any) -> None:
    from rich import console

    from sonde.bench import finding
    from sonde.report import page, terminal

    screen, rows, empty = console.Console(), [], []
    names = ("node_auroc", "edge_auroc", "edges", "node_tpr", "node_fpr", "edge_tpr", "edge_fpr", "seconds")
    shown = ("model", "nodes", "edges", "kept", "ntpr", "nfpr", "etpr", "efpr", "s")
    about = "nodes, edges: AUROC; kept: edges of the circuit; its true and false positive rates of nodes and edges; s: seconds."
    for subject in subjects:
        with subject.model as _:
            folder = out / method / subject.name
            found = finding.run(subject, method, folder, pairs=pairs, threshold=threshold, **options)
        rows.append((subject.name, *(_number(found.judged.get(name)) for name in names)))
        if found.circuit is not None and not len(found.circuit):
            empty.append((subject.name, found.usable))
    screen.print(terminal.table(page.Table(shown, tuple(rows), about)))
    _say(screen, f"{method}; output in {out / method}")
    for name, (low, high) in empty:
        screen.print(
            f"Warning: the circuit of {name} is empty; thresholds {_range(low, high)} keep some edges.",
            style="yellow", highlight=False, soft_wrap=True,
        )  # fmt: skip


def _range(low: float, high: float) -> str:
    return f"from {low:.4g} to {high:.4g}" if low < high else f"above 0 and up to {high:.4g}"


@run.command("acdc", epilog=RUNNING)
def run_acdc(
    indices: Index = None,
    tracr: Tracr = False,
    siit_weights: Weights = None,
    interp_bench: Embedded = False,
    folder: Published = None,
    threshold: Annotated[float, typer.Option(help="The rise of the loss from which on an edge is kept.")] = 0.01,
    metric: Metric = None,
    pairs: Pairs = 200,
    seed: Seed = 0,
    out: Where = RUNS,
) -> None:
    """Run ACDC: cut edges one by one and leave cut what is not missed."""
    subjects = _subjects(indices, tracr, siit_weights, interp_bench, folder, seed)
    _run("acdc", subjects, out, pairs=pairs, tau=threshold, metric=metric, seed=seed)


@run.command("sp", epilog=RUNNING)
def run_sp(
    indices: Index = None,
    tracr: Tracr = False,
    siit_weights: Weights = None,
    interp_bench: Embedded = False,
    folder: Published = None,
    edgewise: Annotated[bool, typer.Option("--edgewise", help="A mask for every edge, not every node.")] = False,
    lambda_reg: Annotated[float, typer.Option(min=0, help="How much a kept part costs.")] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, help="Steps of learning the masks.")] = 200,
    metric: Metric = None,
    pairs: Pairs = 200,
    seed: Seed = 0,
    out: Where = RUNS,
) -> None:
    """Run subnetwork probing: learn which nodes or edges can be masked."""
    subjects = _subjects(indices, tracr, siit_weights, interp_bench, folder, seed)
    _run(
        "sp-edges" if edgewise else "sp",
        subjects,
        out,
        pairs=pairs,
        penalty=lambda_reg,
        steps=epochs,
        metric=metric,
        seed=seed,
    )


@run.command("eap", epilog=RUNNING)
def run_eap(
    indices: Index = None,
    tracr: Tracr = False,
    siit_weights: Weights = None,
    interp_bench: Embedded = False,
    folder: Published = None,
    integrated_grad_steps: Annotated[int, typer.Option(min=0, help="Inputs to average over; 0 for plain EAP.")] = 0,
    threshold: Annotated[float | None, typer.Option(help="Edges that score at least this make a circuit.")] = None,
    metric: Metric = None,
    pairs: Pairs = 200,
    seed: Seed = 0,
    out: Where = RUNS,
) -> None:
    """Run edge attribution patching, with integrated gradients if asked for."""
    subjects = _subjects(indices, tracr, siit_weights, interp_bench, folder, seed)
    method, own = ("eap-ig", {"steps": integrated_grad_steps}) if integrated_grad_steps else ("eap", {})
    metric = metric or (None if integrated_grad_steps else "answer_diff")  # plain EAP needs a slope at the clean run
    _run(method, subjects, out, pairs=pairs, threshold=threshold, metric=metric, seed=seed, **own)


def evaluate(
    what: Annotated[str, typer.Argument(help="iit, iit_acdc, node_realism, gt_node_realism, ioi, ioi_acdc.")],
    indices: Index = None,
    siit_weights: Weights = None,
    interp_bench: Embedded = False,
    folder: Published = None,
    threshold: Annotated[float, typer.Option(help="ACDC's, for iit_acdc and ioi_acdc.")] = 0.01,
    circuit: Annotated[Path | None, typer.Option(metavar="FILE", help="A circuit.json, for node_realism.")] = None,
    ablation: Annotated[str, typer.Option(help="What stands for nodes outside: mean, zero.")] = "mean",
    rows: Annotated[int, typer.Option(min=2, help="Inputs.")] = 1000,
    pairs: Pairs = 200,
    seed: Seed = 0,
    out: Where = EVALS,
) -> None:
    """Evaluate a trained model, or a circuit found in one."""
    from rich import console

    from sonde.bench import evaluating, finding
    from sonde.core import errors

    kinds = ("iit", "iit_acdc", "node_realism", "gt_node_realism", "ioi", "ioi_acdc")
    if what not in kinds:
        raise typer.BadParameter(
            f"{what!r} is none of {', '.join(kinds)}{errors.suggest(what, kinds)}", param_hint="WHAT"
        )
    if (what == "node_realism") != (circuit is not None):
        raise typer.BadParameter("node_realism, and only that, takes a --circuit", param_hint="--circuit")
    index, screen = indices or ("ioi" if what.startswith("ioi") else None), console.Console()
    for subject in _subjects(index, False, siit_weights, interp_bench, folder, seed):
        with subject.model as _:
            if what.endswith("acdc"):
                found = finding.run(subject, "acdc", out / what / subject.name, pairs=pairs, tau=threshold, seed=seed)
                result = found.judged
            elif what.endswith("realism"):
                given = None if circuit is None else _circuit(circuit)
                result = evaluating.realism(subject, given, ablation=ablation, rows=rows, seed=seed)
            else:
                result = evaluating.iit(subject, rows=rows, seed=seed)
        path = out / what / subject.name / "result.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1))
        _show(screen, result, path)


def _circuit(path: Path) -> Any:
    from sonde.circuits import graph
    from sonde.core import errors

    try:
        return graph.Circuit.from_json(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise errors.RequestError(f"{path} is no circuit that can be read: {error}") from error


def _show(screen: Any, result: dict[str, Any], path: Path) -> None:
    from sonde.report import page, terminal

    for name, value in result.items():
        if isinstance(value, int | float | str):
            _say(screen, f"{name}: {_number(value)}")
    if effects := result.get("effects"):
        columns = ("node", "program", "resample", "kl", "mean", "zero")
        columns = tuple(name for name in columns if any(row[name] is not None for row in effects))  # numbers have no kl
        rows = tuple(tuple(_number(row[name]) for name in columns) for row in effects)
        screen.print(terminal.table(page.Table(columns, rows, "Shares of answers that change; kl in nats.")))
    _say(screen, f"Output: {path}")


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _say(screen: Any, text: str) -> None:
    screen.print(text, soft_wrap=True, highlight=False, markup=False)


def register(app: typer.Typer) -> None:
    """Adds the commands of this file to `sonde bench`."""
    app.add_typer(train, name="train")
    app.add_typer(run, name="run")
    app.command("eval", epilog=EVALUATING)(evaluate)
