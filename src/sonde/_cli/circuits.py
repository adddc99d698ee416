"""`sonde circuits`: which edges of a model carry a behaviour, by which method, and how much of it."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

EXAMPLES = (
    "Examples: sonde circuits find --task ioi --method eap-ig --edges 100 · sonde circuits find --task mine.jsonl --share 0.01 "
    "--out DIR · sonde circuits compare --methods eap,eap-ig,random · sonde circuits methods · sonde circuits tasks"
)
MODEL = "smollm2-135m-instruct"
VIEWS = ("split", "merged")

app = typer.Typer(
    name="circuits",
    help="Find the edges of a model that carry a behaviour.",
    epilog=EXAMPLES,
    no_args_is_help=True,
)

ModelName = Annotated[str, typer.Option("--model", "-m", help="A zoo name, a folder, a GGUF file or a hub id.")]
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
Seed = Annotated[int, typer.Option(min=0, help="Fixes pairs, halves and methods.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where; a search that is there goes on. circuits/TASK-TIME.")
]


@app.command(epilog=EXAMPLES)
def find(
    model: ModelName = MODEL,
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
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Find the circuit of a task by one method, run it alone, and draw it.

    Half of the pairs give the scores. On the others the best edges run alone, from 0.1 % to all of them: how much of the
    behaviour do they carry? The circuit is kept as JSON, GraphML, SVG and PNG, beside a report.

    Everything finished is on disk: the same command with --out DIR goes on where it was stopped, and another --edges,
    --share or --threshold there takes another circuit of the same scores.
    """
    from sonde.core import errors

    if sum(given is not None for given in (edges, share, threshold)) > 1:
        raise typer.BadParameter("give one of --edges, --share and --threshold", param_hint="--edges")
    if view not in VIEWS:
        raise typer.BadParameter(
            f"{view!r} is none of {', '.join(VIEWS)}{errors.suggest(view, VIEWS)}", param_hint="--view"
        )
    settings = _settings(
        task=task, pairs=pairs, metric=metric, ablation=ablation, steps=steps, steps_from=steps_from,
        sizes=sizes, option=option, holdout=holdout, signed=signed, batch_size=batch_size, seed=seed,
    )  # fmt: skip
    _load(method_file)
    how = {"n_edges": edges, "share": share, "threshold": threshold}
    _search(model, [method], settings, out, how=how, view=view, checks=(minimality, completeness))


@app.command(epilog=EXAMPLES)
def compare(
    model: ModelName = MODEL,
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
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Compare circuit finders on one task: one table, and one figure of faithfulness curves.

    All methods score the same pairs and are judged on the same others; intervals are over clusters of pairs (templates). A method of
    your own joins them with --method-file.

    Everything finished is on disk: the same command with --out DIR goes on where it was stopped, and more methods there
    are added to those that are done.
    """
    names = [*(name.strip() for name in methods.split(",")), *_load(method_file)]
    settings = _settings(
        task=task, pairs=pairs, metric=metric, ablation=ablation, steps=steps, steps_from=steps_from,
        sizes=sizes, option=option, holdout=holdout, signed=signed, batch_size=batch_size, seed=seed,
    )  # fmt: skip
    _search(model, names, settings, out)


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


def _settings(
    *, steps: int | None, steps_from: int | None, option: list[str] | None, signed: bool, **given: Any
) -> Any:
    """Settings of a search; names that make no sense are refused before a model is loaded."""
    from sonde.circuits import experiment, metrics, running, tasks
    from sonde.core import errors

    tasks.get(given["task"])
    metrics.get(given["metric"])
    known, ablation = running.ABLATIONS, given["ablation"]
    if ablation not in known:
        raise errors.RequestError(
            f"no ablation {ablation!r}; there are {', '.join(known)}{errors.suggest(ablation, known)}"
        )
    options = dict(screens.pair(text) for text in option or [])
    options |= {name: one for name, one in (("steps", steps), ("steps_from", steps_from)) if one is not None}
    return experiment.Settings(**given, absolute=not signed, options=options)


def _search(
    model: str,
    methods: list[str],
    settings: Any,
    out: Path | None,
    *,
    how: dict[str, Any] | None = None,
    view: str = "split",
    checks: tuple[int, int] = (0, 0),
) -> None:
    """Runs a search, or takes it up, and shows what it found; `how` chooses a circuit of the only method."""
    from sonde.circuits import experiment, registry, report
    from sonde.models import loading

    screen, folder = screens.screen(), out or _new_folder(experiment.FOLDER, settings.task)
    for name in methods:
        registry.get(name)
    with screens.stopped(screen, f"the same command and --out {folder}"), loading.load(model) as loaded:
        search = experiment.Search(loaded, settings)
        _check_edges((how or {}).get("n_edges"), search.graph.n_edges)
        _estimate(screen, search, search.prepare(folder, methods))
        with screens.bars(screen) as told:
            found = search.run(methods, folder=folder, tell=told)
        chosen = None if how is None else found.chosen(methods[0], **how)
        view_of: Any = view
        path = report.write(found, chosen=chosen, view=view_of, command=shlex.join(["sonde", *sys.argv[1:]]))
        said = _checked(screen, search, chosen, folder, checks) if any(checks) and search.judge.ends.enough else []
    _show(screen, found, chosen, path)
    for text in said:
        _say(screen, text)


def _checked(screen: Any, search: Any, chosen: Any, folder: Path, checks: tuple[int, int]) -> list[str]:
    """Minimality and completeness of the circuit, in words; written to checks.json."""
    import dataclasses
    import json

    if chosen is None or not len(chosen.circuit):
        return []
    judge, found, said = search.judge, {}, []
    with screens.bars(screen) as told:
        if checks[0]:
            one = judge.minimality(chosen.circuit, most=checks[0], seed=search.settings.seed, tell=told)
            found["minimality"] = dataclasses.asdict(one)
            most = ", ".join(f"{name} {fall:.3g}" for name, fall in list(one.falls.items())[:3])
            said.append(
                f"Minimality: {len(one.falls)} of {one.n_edges} edges taken out one at a time; for {one.idle():.0%} of them f changes by "
                f"less than 0.001. f falls most without {most}."
            )
        if checks[1]:
            two = judge.completeness(chosen.circuit, parts=checks[1], seed=search.settings.seed, tell=told)
            found["completeness"] = dataclasses.asdict(two) | {"gaps": list(two.gaps)}
            said.append(
                f"Completeness: over {len(two.gaps)} random halves, circuit and model without them differ in f by "
                f"{sum(two.gaps) / len(two.gaps):.3g} on average, {max(two.gaps):.3g} at most; the model without the whole circuit "
                f"has f = {two.without:.3g}."
            )
    (folder / "checks.json").write_text(json.dumps(found, indent=1))
    return [*said, f"Checks: {folder / 'checks.json'}"]


def _check_edges(wanted: int | None, there: int) -> None:
    if wanted is not None and wanted > there:
        raise typer.BadParameter(f"the model has {there:,} edges; asked for {wanted:,}", param_hint="--edges")


def _estimate(screen: Any, search: Any, seconds: dict[str, float | None]) -> None:
    """Says what will be done and how long it will take, from the time of one circuit run alone."""
    _say(screen, f"{search.report}")
    known = [one for one in seconds.values() if one is not None]
    each = ", ".join(f"{name} {'?' if one is None else screens.span(one)}" for name, one in seconds.items())
    _say(
        screen,
        f"{search.graph.n_edges:,} edges; {len(search.scoring)} pairs score, {len(search.judging)} judge. About "
        f"{screens.span(float(sum(known)))} to go ({each}).",
    )


def _show(screen: Any, found: Any, chosen: Any, path: Path) -> None:
    from sonde.circuits import report
    from sonde.report import page, terminal

    title = f"Circuits of {found.model_id}: {found.search.settings.task}"
    tables = (report.table(found),) if found.search.judge.ends.enough else ()
    screen.print(terminal.summary(page.Report(title, report.sentences(found, chosen=chosen), ()), *tables))
    if chosen is not None and not len(chosen.circuit):
        low, high = chosen.thresholds
        screen.print(
            f"Warning: the circuit is empty, so none was written. Thresholds from {low:.4g} to {high:.4g} keep some edges; "
            "or give --edges.",
            style="yellow",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    _say(screen, f"Report: {path}")
    if chosen is not None and len(chosen.circuit):
        _say(screen, f"Circuit: {found.folder / 'circuit.svg'}, circuit.json, circuit.graphml, mib.json")


def _new_folder(base: Path, task: str) -> Path:
    """A folder named after task and time that is not there yet."""
    import datetime

    now = datetime.datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
    name = f"{Path(task).stem}-{now}"
    tries = (base / f"{name}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
    return next(folder for folder in tries if not folder.exists())


def _say(screen: Any, text: str) -> None:
    screen.print(text, soft_wrap=True, highlight=False, markup=False)


def _print_table(table: Any) -> None:

    from sonde.report import terminal

    screens.screen().print(terminal.table(table))
