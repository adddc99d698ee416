"""`sonde bench run` and `eval`: circuit finders on models whose circuit is known, and evaluations of such models."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import launch

RUNNING = (
    "Examples: sonde bench run acdc -i 3 --tracr --threshold 0.71 · sonde bench run sp -i 1 --siit-weights 510 --lambda-reg 0.5 · "
    "sonde bench run sp --interp-bench --edgewise · sonde bench run eap -i ioi --siit-weights 510 --integrated-grad-steps=5"
)
EVALUATING = (
    "Examples: sonde bench eval iit -i 3 --siit-weights 510 · sonde bench eval iit_acdc -i 3 --interp-bench --threshold 0.01 · "
    "sonde bench eval node_realism -i 3 --siit-weights 510 --circuit runs/NAME/acdc/case-3-510-seed-0/circuit.json"
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
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Also put what is found there, as METHOD/MODEL/result.json ….")
]


def _models(settings: Any, runs: Path | None) -> Any:
    from sonde.bench import roster

    return roster.models_of(settings, runs)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


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
    out: Out = None,
    engine: launch.Engine = "local",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Run ACDC: cut edges one by one and leave cut what is not missed."""
    from sonde.bench import trials

    chosen = trials.BenchRunSettings(
        method="acdc", indices=indices, tracr=tracr, siit_weights=siit_weights, interp_bench=interp_bench,
        folder=_text(folder), threshold=threshold, metric=metric, pairs=pairs, seed=seed,
    )  # fmt: skip
    launch.launch(trials.BenchRun(*_models(chosen, runs), out=out), chosen, run=run, runs=runs, engine=engine)


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
    out: Out = None,
    engine: launch.Engine = "local",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Run subnetwork probing: learn which nodes or edges can be masked."""
    from sonde.bench import trials

    chosen = trials.BenchRunSettings(
        method="sp", indices=indices, tracr=tracr, siit_weights=siit_weights, interp_bench=interp_bench,
        folder=_text(folder), edgewise=edgewise, lambda_reg=lambda_reg, epochs=epochs, metric=metric, pairs=pairs, seed=seed,
    )  # fmt: skip
    launch.launch(trials.BenchRun(*_models(chosen, runs), out=out), chosen, run=run, runs=runs, engine=engine)


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
    out: Out = None,
    engine: launch.Engine = "local",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Run edge attribution patching, with integrated gradients if asked for."""
    from sonde.bench import trials

    chosen = trials.BenchRunSettings(
        method="eap", indices=indices, tracr=tracr, siit_weights=siit_weights, interp_bench=interp_bench,
        folder=_text(folder), integrated_grad_steps=integrated_grad_steps, steps_from=steps_from, threshold=threshold,
        metric=metric, pairs=pairs, seed=seed,
    )  # fmt: skip
    launch.launch(trials.BenchRun(*_models(chosen, runs), out=out), chosen, run=run, runs=runs, engine=engine)


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
    out: Out = None,
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Evaluate a trained model, or a circuit found in one."""
    from sonde.bench import trials

    asked: Any = what
    chosen = trials.BenchEvalSettings(
        what=asked, indices=indices or ("ioi" if what.startswith("ioi") else None), siit_weights=siit_weights,
        interp_bench=interp_bench, folder=_text(folder), threshold=threshold, circuit=_text(circuit),
        circuit_digest=None if circuit is None else trials.digest_of(circuit), ablation=ablation, rows=rows, pairs=pairs,
        seed=seed,
    )  # fmt: skip
    launch.launch(trials.BenchEval(*_models(chosen, runs), out=out), chosen, run=run, runs=runs)


def register(app: typer.Typer) -> None:
    """Adds the commands of this file to `sonde bench`."""
    app.add_typer(run, name="run")
    app.command("eval", epilog=EVALUATING)(evaluate)
