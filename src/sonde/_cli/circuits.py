"""`sonde circuits`: which edges of a model carry a behaviour, by which method, and how much of it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import launch, screens

EXAMPLES = (
    "Examples: sonde circuits find --task ioi --method eap-ig --edges 100 · sonde circuits find --task mine.jsonl --share 0.01 "
    "--run mine · sonde circuits compare --methods eap,eap-ig,random · sonde circuits methods · sonde circuits tasks"
)
VIEWS = ("split", "merged")

app = typer.Typer(
    name="circuits",
    help="Find the edges of a model that carry a behaviour.",
    epilog=EXAMPLES,
    no_args_is_help=True,
)

Task = Annotated[str, typer.Option(help="A task (see sonde circuits tasks), or a .jsonl file of pairs.")]
Pairs = Annotated[int | None, typer.Option(min=2, help="Pairs: half score, half judge. 64, or all of a file.")]
Metric = Annotated[str, typer.Option(help="logit_diff, kl, prob_diff, cross_entropy, mse, mae.")]
Ablation = Annotated[str, typer.Option(help="What a cut edge carries: resample, mean, zero.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Steps of methods that have any, such as eap-ig.")]
StepsFrom = Annotated[
    int | None,
    typer.Option(min=0, max=1, help="Of eap-ig: 1 for steps 1/m … m/m, 0 for 0 … (m-1)/m as in its authors' code."),
]
Sizes = Annotated[str, typer.Option(help="Numbers of edges: round, or floor as in MIB's evaluation.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Another option of the method, such as tau=0.01."),
]
MethodFile = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="A Python file that registers a method of your own.")
]
Holdout = Annotated[bool, typer.Option(help="Judge on other pairs than those that gave the scores.")]
Signed = Annotated[bool, typer.Option("--signed", help="Keep high scores, not high absolute ones: harmful edges go.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Pairs that go through the model together.")]


@app.command(epilog=EXAMPLES)
def find(
    model: launch.Model = launch.MODEL,
    task: Task = "ioi",
    method: Annotated[str, typer.Option(help="A circuit finder; see sonde circuits methods.")] = "eap-ig",
    edges: Annotated[int | None, typer.Option(min=0, help="Keep so many edges; 100 if nothing is said.")] = None,
    share: Annotated[float | None, typer.Option(min=0, max=1, help="Keep this part of all edges.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Keep edges that score at least this.")] = None,
    pairs: Pairs = None,
    metric: Metric = "logit_diff",
    ablation: Ablation = "resample",
    steps: Steps = None,
    steps_from: StepsFrom = None,
    sizes: Sizes = "round",
    option: Options = None,
    holdout: Holdout = True,
    signed: Signed = False,
    batch_size: BatchSize = None,
    view: Annotated[
        str, typer.Option(help="How the circuit is drawn: split or merged queries, keys, values.")
    ] = "split",
    minimality: Annotated[
        int, typer.Option(min=0, help="Take so many edges out of the circuit, one at a time: is each one needed?")
    ] = 0,
    completeness: Annotated[
        int, typer.Option(min=0, help="Take so many random halves out of circuit and model: do both lose alike?")
    ] = 0,
    method_file: MethodFile = None,
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
    engine: launch.Engine = "local",
) -> None:
    """Find the circuit of a task by one method, run it alone, and draw it.

    Half of the pairs give the scores. On the others the best edges run alone, from 0.1 % to all of them: how much of the
    behaviour do they carry? The circuit is kept as JSON, GraphML, SVG and PNG, beside a report.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped, and another --edges, --share
    or --threshold with it takes another circuit of the same scores.
    """
    from sonde.core import errors

    if sum(given is not None for given in (edges, share, threshold)) > 1:
        raise typer.BadParameter("give one of --edges, --share and --threshold", param_hint="--edges")
    if view not in VIEWS:
        raise typer.BadParameter(
            f"{view!r} is none of {', '.join(VIEWS)}{errors.suggest(view, VIEWS)}", param_hint="--view"
        )
    _load(method_file)
    choice = {
        "n_edges": edges, "share": share, "threshold": threshold, "view": view, "minimality": minimality,
        "completeness": completeness,
    }  # fmt: skip
    _search(
        [method],
        {
            "model": model, "task": task, "pairs": pairs, "metric": metric, "ablation": ablation, "steps": steps,
            "steps_from": steps_from, "sizes": sizes, "option": option, "holdout": holdout, "signed": signed,
            "batch_size": batch_size, "seed": seed,
        },
        {"device": device, "dtype": dtype, "run": run, "runs": runs, "engine": engine},
        choice,
    )  # fmt: skip


@app.command(epilog=EXAMPLES)
def compare(
    model: launch.Model = launch.MODEL,
    task: Task = "ioi",
    methods: Annotated[
        str, typer.Option(help="Circuit finders, with commas; random is the control.")
    ] = "eap,eap-ig,random",
    pairs: Pairs = None,
    metric: Metric = "logit_diff",
    ablation: Ablation = "resample",
    steps: Steps = None,
    steps_from: StepsFrom = None,
    sizes: Sizes = "round",
    option: Options = None,
    holdout: Holdout = True,
    signed: Signed = False,
    batch_size: BatchSize = None,
    method_file: MethodFile = None,
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
    engine: launch.Engine = "local",
) -> None:
    """Compare circuit finders on one task: one table, and one figure of faithfulness curves.

    All methods score the same pairs and are judged on the same others; intervals are over clusters of pairs (templates). A method of
    your own joins them with --method-file.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped, and other methods with it
    join those that are done.
    """
    names = [*(name.strip() for name in methods.split(",")), *_load(method_file)]
    _search(
        names,
        {
            "model": model, "task": task, "pairs": pairs, "metric": metric, "ablation": ablation, "steps": steps,
            "steps_from": steps_from, "sizes": sizes, "option": option, "holdout": holdout, "signed": signed,
            "batch_size": batch_size, "seed": seed,
        },
        {"device": device, "dtype": dtype, "run": run, "runs": runs, "engine": engine},
    )  # fmt: skip


@app.command("methods")
def list_methods(method_file: MethodFile = None) -> None:
    """List the circuit finders."""
    from sonde.circuits import registry
    from sonde.report import page

    _load(method_file)
    rows = tuple(registry.methods().items())
    caption = "Your own: sonde.circuits.registry.register in a file, and --method-file FILE."
    _print_table(page.Table(("method", "what it does"), rows, caption))


@app.command("tasks")
def list_tasks() -> None:
    """List the tasks that make pairs of clean and corrupt inputs."""
    from sonde.circuits import tasks
    from sonde.report import page

    rows = tuple((name, (make.__doc__ or "").strip().splitlines()[0]) for name, make in tasks.TASKS.items())
    caption = 'Your own: --task FILE.jsonl, a line {"clean": …, "corrupt": …, "answer": …, "wrong": …} per pair.'
    _print_table(page.Table(("task", "what it asks"), rows, caption))


def _load(files: list[Path] | None) -> list[str]:
    """Registers the methods of files; their names."""
    from sonde.circuits import method_files

    return list(method_files.load_all(files or ()))


def _search(
    methods: list[str], given: dict[str, Any], place: dict[str, Any], choice: dict[str, Any] | None = None
) -> None:
    """Runs a search; names that make no sense are refused before a model is loaded."""
    from sonde.circuits import experiment, registry
    from sonde.models import loading

    for name in methods:
        registry.get(name)
    steps = {name: given.pop(name) for name in ("steps", "steps_from")}
    options = dict(screens.pair(text) for text in given.pop("option") or [])
    options |= {name: one for name, one in steps.items() if one is not None}
    signed, how = given.pop("signed"), {name: place.pop(name) for name in ("device", "dtype")}
    asked = {**given, "absolute": not signed, "method_options": options}
    experiment.CircuitsSettings(**asked)
    with loading.load(given["model"], **how) as loaded:
        settings = experiment.CircuitsSettings(**{**asked, "model": loaded.cfg.model_name})
        taken = None if choice is None else experiment.Choice(**choice)
        launch.launch(experiment.Circuits(loaded, methods, choice=taken), settings, **place)


def _print_table(table: Any) -> None:
    from sonde.report import terminal

    screens.screen().print(terminal.table(table))
