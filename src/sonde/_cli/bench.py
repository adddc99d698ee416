"""`sonde bench`: models whose circuit is known, and how well methods find it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import bench_board, bench_run, bench_train

EXAMPLES = "Examples: sonde bench cases · sonde bench cases --group core · sonde bench cases 3 · sonde bench cases ioi --out case.svg"
FOLDER = Path("results") / "cases"

app = typer.Typer(
    name="bench", help="Models whose circuit is known, and methods measured against them.", no_args_is_help=True
)


@app.command(epilog=EXAMPLES)
def cases(
    which: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="A case to show, a number or ioi; none for the list.")
    ] = None,
    group: Annotated[str, typer.Option(help="Which to list: all, released, core, trajectory.")] = "all",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to draw the circuit, .svg or .png. results/cases/ID.svg.")
    ] = None,
) -> None:
    """List the cases, or show one: its task, program, examples and true circuit, which is drawn as well."""
    if which is None:
        if out is not None:
            raise typer.BadParameter("name a case to draw its circuit", param_hint="--out")
        _list_trajectories() if group == "trajectory" else _list(group)
    else:
        _show(which, out or FOLDER / f"{which}.svg")


def _list(group: str) -> None:
    from rich import console

    from sonde.bench import cases as bench_cases
    from sonde.bench import ioi, placing
    from sonde.report import page, terminal

    rows = []
    for case in map(bench_cases.get, bench_cases.ids(group)):
        marks = "core" if case.core else "released" if case.released else ""
        nodes = " ".join(placing.place(case.program).nodes)
        sizes = f"{len(case.vocabulary)} tokens, {case.max_length} long"
        rows.append(
            (str(case.id), case.name, marks, case.kind, "yes" if case.causal else "no", sizes, nodes, case.task)
        )
    columns = ("id", "case", "group", "kind", "causal", "input", "components", "task")
    caption = f"{len(rows)} cases{', and two of IOI' if group != 'core' else ''}. Lengths count BOS. One of them: sonde bench cases ID."
    if group != "core":
        rows += [
            (name, "ioi", "released", "cls", "yes", f"{len(ioi.WORDS)} tokens, {ioi.LENGTH + 1} long", " ".join(ioi.MEANINGS), task)
            for name, task in ioi.TASKS.items()
        ]  # fmt: skip
    console.Console().print(terminal.table(page.Table(columns, tuple(rows), caption)))


def _list_trajectories() -> None:
    from rich import console

    from sonde.bench import trajectories
    from sonde.report import page, terminal

    rows = []
    for case in trajectories.family():
        truth, nodes = case.truth, " ".join(case.compiled.components)
        rows.append(
            (case.name, str(case.steps), str(truth.step), f"{truth.rests[1]} on {truth.rests[0]}", truth.carrier, nodes)
        )
    columns = ("case", "steps", "decides", "rests", "carried by", "components")
    caption = (
        f"{len(rows)} games with a compiled player: sonde.bench.trajectories.Case(steps, key_step). Steps count from 0."
    )
    console.Console().print(terminal.table(page.Table(columns, tuple(rows), caption)))


def _show(which: str, out: Path) -> None:
    from rich import console

    from sonde.bench import ioi, shipped
    from sonde.circuits import picture

    task = shipped.task_of(which)
    save = _drawer(out, picture)
    title, lines, circuit = _ioi(which) if which in ioi.TASKS else _program(int(which))
    lines += ["\nTrue circuit", *(f"  {edge}" for edge in task.program.circuit.names)]
    save(circuit, out, title=title)
    screen = console.Console()
    for text in [*lines, f"\nCircuit: {out}"]:
        screen.print(text, soft_wrap=True, highlight=False, markup=False)


def _program(number: int) -> tuple[str, list[str], Any]:
    """Title, description and circuit of a case with a RASP program."""
    from sonde.bench import cases as bench_cases
    from sonde.bench import listing

    case = bench_cases.get(number)
    compiled = case.compiled()
    sizes = compiled.config
    lines = [
        f"Case {case.id}, {case.name}: {case.task}",
        f"{'Causal' if case.causal else 'Bidirectional'}, {case.kind}; {len(case.vocabulary)} tokens, "
        f"{case.min_length} to {case.max_length} positions with BOS; compiled: {sizes['num_hidden_layers']} layers, "
        f"{sizes['num_attention_heads']} heads, d_model {sizes['hidden_size']}, d_out {sizes['d_out']}.",
        "\nProgram",
        *(f"  {line}" for line in listing.lines(case.program)),
        "\nExamples",
        *(f"  {_words(given)}  ->  {_words(said)}" for given, said in case.examples),
    ]
    return f"Case {case.id}: {case.name}", lines, compiled.circuit


def _ioi(name: str) -> tuple[str, list[str], Any]:
    """Title, description and circuit of indirect object identification."""
    from sonde.bench import ioi

    lines = [
        f"Case {name}: {ioi.TASKS[name]}",
        f"Causal, cls; {len(ioi.WORDS)} tokens, {ioi.LENGTH + 1} positions with BOS; {ioi.SIZES.n_layers} layers, "
        f"{ioi.SIZES.n_heads} heads, d_model {ioi.SIZES.d_model}; trained only, as its program is no RASP.",
        "\nProgram",
        *(f"  {node}  {meaning}" for node, meaning in ioi.MEANINGS.items()),
        "\nExamples",
        *(f"  {given}  ->  {said}" for given, said in ioi.examples()),
    ]
    return f"Case {name}", lines, ioi.task(next_token=name == ioi.NEXT).program.circuit


def _drawer(out: Path, picture: Any) -> Any:
    kinds = {".svg": picture.save_svg, ".png": picture.save_png}
    if out.suffix not in kinds:
        raise typer.BadParameter(f"{out.name!r} is no {' or '.join(kinds)} file", param_hint="--out")
    return kinds[out.suffix]


def _words(values: tuple[Any, ...]) -> str:
    return " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)


bench_train.register(app)
bench_run.register(app)
bench_board.register(app)
