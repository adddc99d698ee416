"""`sonde bench run` and `eval`: circuit finders on models whose circuit is known, and evaluations of such models."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

RUNNING = (
    "Examples: sonde bench run acdc -i 3 --tracr --threshold 0.71 · sonde bench run sp -i 1 --siit-weights 510 --lambda-reg 0.5 · "
    "sonde bench run sp --interp-bench --edgewise · sonde bench run eap -i ioi --siit-weights 510 --integrated-grad-steps=5"
)
EVALUATING = (
    "Examples: sonde bench eval iit -i 3 --siit-weights 510 · sonde bench eval iit_acdc -i 3 --interp-bench --threshold 0.01 · "
    "sonde bench eval node_realism -i 3 --siit-weights 510 --circuit results/run/acdc/case-3-510-seed-0/circuit.json"
)

run = typer.Typer(help="Run a circuit finder on models whose circuit is known.", no_args_is_help=True, epilog=RUNNING)

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
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Of the trained model and of the pairs; 0, or the first that comes with Sonde."),
]
Pairs = Annotated[int, typer.Option(min=2, help="Pairs of inputs.")]
Metric = Annotated[str | None, typer.Option(help="kl, mse, mae, answer_diff …; kl, or mse for numbers.")]
Where = Annotated[Path, typer.Option(metavar="DIR", help="Where the output goes.")]
RUNS, EVALS = Path("results") / "run", Path("results") / "eval"


def _subjects(
    index: str | None, tracr: bool, weights: int | None, embedded: bool, folder: Path | None, seed: int | None
) -> Any:
    """The models that were asked for, one after the other; what cannot be loaded of a folder is said."""
    from sonde.bench import roster, shipped

    if tracr + (weights is not None) + embedded + (folder is not None) != 1:
        raise typer.BadParameter(
            "give one of --tracr, --siit-weights, --interp-bench and --folder", param_hint="--siit-weights"
        )
    if folder is not None:
        found, broken = roster.folder_of(folder, cases=None if index is None else [index])
        _warn_of({f"case {name}": why for name, why in broken.items()})
        yield from (entry.subject() for entry in found)
    elif index is None and not embedded:
        raise typer.BadParameter("name a case with -i (only --interp-bench and --folder run all)", param_hint="-i")
    elif embedded:
        there = shipped.list_embedded()
        named = dict.fromkeys(case for case, number in there if seed in (None, number)) if index is None else [index]
        for case in named:
            first = min((number for one, number in there if one == case), default=0)
            yield shipped.embedded(case, seed=first if seed is None else seed)
        if not named:
            shipped.embedded("3", seed=seed or 0)  # says what there is and how to train
    elif tracr:
        yield shipped.compiled(index or "")
    else:
        yield shipped.trained(index or "", weights or 0, seed=seed or 0)


def _run(method: str, subjects: Any, out: Path, *, pairs: int, threshold: float | None = None, **options: Any) -> None:
    from rich import console

    from sonde.bench import finding
    from sonde.core import errors

    screen, rows, failed = console.Console(), [], []
    found: dict[str, dict[str, Any]] = {}
    how = {"pairs": pairs, "threshold": threshold, **options}
    with screens.stopped(screen, "the same command"), screens.bars(screen, single=True) as told:
        for subject in subjects:
            with subject.model as _:
                folder, name = out / method / subject.name, subject.name
                try:
                    found[name] = (
                        finding.known(subject, method, folder, **how)
                        or finding.run(
                            subject, method, folder, tell=lambda doing, done, of, name=name: told(name, done, of), **how
                        ).judged
                    )
                except errors.AnalysisError as error:  # of this model and its pairs; others may do
                    failed.append((name, error))
    if failed and not found:
        raise failed[0][1]
    names = ("node_auroc", "edge_auroc", "edges", "node_tpr", "node_fpr", "edge_tpr", "edge_fpr", "seconds")
    rows = [(name, *(_number(one.get(key)) for key in names)) for name, one in found.items()]
    _show_found(screen, rows, f"{method}; output in {out / method}")
    _warn_of({name: str(why) for name, why in failed})
    for name, one in found.items():
        if one.get("edges") == 0:
            _warn(f"the circuit of {name} is empty; thresholds {_range(*one['usable'])} keep some edges.")
    for note in dict.fromkeys(one["note"] for one in found.values() if "note" in one):
        of = [name for name, one in found.items() if one.get("note") == note]
        _warn(f"{', '.join(of)}: {note}.")


def _show_found(screen: Any, rows: list[tuple[str, ...]], where: str) -> None:
    from sonde.report import page, terminal

    shown = ("model", "nodes", "edges", "kept", "ntpr", "nfpr", "etpr", "efpr", "s")
    about = "nodes, edges: AUROC; kept: edges of the circuit; its true and false positive rates of nodes and edges; s: seconds."
    screen.print(terminal.table(page.Table(shown, tuple(rows), about)))
    _say(screen, where)


def _warn_of(left_out: dict[str, str]) -> None:
    """Says what is left out, and why."""
    for name, why in left_out.items():
        _warn(f"{name} is left out: {why}")


def _warn(text: str) -> None:
    from rich import console

    console.Console().print(f"Warning: {text}", style="yellow", highlight=False, soft_wrap=True, markup=False)


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
    seed: Seed = None,
    out: Where = RUNS,
) -> None:
    """Run ACDC: cut edges one by one and leave cut what is not missed."""
    subjects = _subjects(indices, tracr, siit_weights, interp_bench, folder, seed)
    _run("acdc", subjects, out, pairs=pairs, tau=threshold, metric=metric, seed=seed or 0)


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
    seed: Seed = None,
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
        seed=seed or 0,
    )


@run.command("eap", epilog=RUNNING)
def run_eap(
    indices: Index = None,
    tracr: Tracr = False,
    siit_weights: Weights = None,
    interp_bench: Embedded = False,
    folder: Published = None,
    integrated_grad_steps: Annotated[int, typer.Option(min=0, help="Inputs to average over; 0 for plain EAP.")] = 0,
    steps_from: Annotated[
        int, typer.Option(min=0, max=1, help="1 for steps 1/m … m/m, 0 for 0 … (m-1)/m as in the authors' code.")
    ] = 1,
    threshold: Annotated[float | None, typer.Option(help="Edges that score at least this make a circuit.")] = None,
    metric: Metric = None,
    pairs: Pairs = 200,
    seed: Seed = None,
    out: Where = RUNS,
) -> None:
    """Run edge attribution patching, with integrated gradients if asked for."""
    subjects = _subjects(indices, tracr, siit_weights, interp_bench, folder, seed)
    if steps_from == 0 and not integrated_grad_steps:
        raise typer.BadParameter("plain EAP has no steps: give --integrated-grad-steps", param_hint="--steps-from")
    method, own = "eap", {}
    if integrated_grad_steps:
        method, own = "eap-ig", {"steps": integrated_grad_steps, "steps_from": steps_from}
    metric = metric or (None if integrated_grad_steps else "answer_diff")  # plain EAP needs a slope at the clean run
    _run(method, subjects, out, pairs=pairs, threshold=threshold, metric=metric, seed=seed or 0, **own)


def evaluate(
    what: Annotated[str, typer.Argument(help="iit, iit_acdc, node_realism, gt_node_realism, ioi, ioi_acdc.")],
    indices: Index = None,
    siit_weights: Weights = None,
    interp_bench: Embedded = False,
    folder: Published = None,
    threshold: Annotated[float, typer.Option(help="ACDC's, for iit_acdc and ioi_acdc.")] = 0.01,
    circuit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For node_realism: a circuit.json, or a file of MIB.")
    ] = None,
    ablation: Annotated[str, typer.Option(help="What stands for nodes outside: mean, zero.")] = "mean",
    rows: Annotated[int, typer.Option(min=2, help="Inputs.")] = 1000,
    pairs: Pairs = 200,
    seed: Seed = None,
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
    if what == "node_realism" and circuit is None:
        raise typer.BadParameter(
            "node_realism needs a circuit that was found: --circuit FILE, a circuit.json of sonde bench run or sonde circuits find, or a "
            "file of MIB; for the true circuit use gt_node_realism",
            param_hint="--circuit",
        )
    if what != "node_realism" and circuit is not None:
        raise typer.BadParameter(f"only node_realism takes a --circuit, {what} does not", param_hint="--circuit")
    index, screen = indices or ("ioi" if what.startswith("ioi") else None), console.Console()
    for subject in _subjects(index, False, siit_weights, interp_bench, folder, seed):
        with subject.model as _:
            if what.endswith("acdc"):
                found = finding.run(
                    subject, "acdc", out / what / subject.name, pairs=pairs, tau=threshold, seed=seed or 0
                )
                result = found.judged
            elif what.endswith("realism"):
                given = None if circuit is None else _circuit(circuit, subject.truth.graph)
                result = evaluating.realism(subject, given, ablation=ablation, rows=rows, seed=seed or 0)
            else:
                result = evaluating.iit(subject, rows=rows, seed=seed or 0)
        path = out / what / subject.name / "result.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1))
        _show(screen, result, path)


def _circuit(path: Path, whole: Any) -> Any:
    from sonde.circuits import graph, mib
    from sonde.core import errors

    try:
        data = json.loads(path.read_text())
        if isinstance(data, dict) and "cfg" in data:
            return mib.read(path, whole)[1]
        return graph.Circuit.from_json(data)
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
    app.add_typer(run, name="run")
    app.command("eval", epilog=EVALUATING)(evaluate)
