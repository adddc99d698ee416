"""`sonde lab log`: what was tried, expected and found, searched by any field."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

EXAMPLES = (
    "Examples: sonde lab log query run --where layers~11 --where 'kept<0.5' · sonde lab log query run --by corruption "
    "--show kept · sonde lab log query example --where completion~Paris --show completion --show corruption"
)
Runs = Annotated[Path | None, typer.Option("--runs", metavar="DIR", help="Where the log is; $SONDE_RUNS or ./runs.")]

app = typer.Typer(help="The log: inquiries, runs, hypotheses, predictions, notes, findings.", no_args_is_help=True)


@app.command("ls")
def ls(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    runs: Runs = None,
) -> None:
    """List the inquiries."""
    from sonde.lab import inquiries
    from sonde.report import page, terminal

    rows = []
    with opened(runs) as book:
        for one in inquiries.listed(book):
            states = list(one.states().values())
            settings, end = one.settings, one.ended()
            rows.append(
                {
                    "inquiry": one.id,
                    "run": book.get(one.id)["run"],
                    "model": settings.model,
                    "task": settings.task,
                    "planner": settings.planner,
                    "seed": settings.seed,
                    "experiments": f"{one.spent().experiments} of {settings.limits.experiments}",
                    "supported": states.count("supported"),
                    "refuted": states.count("refuted"),
                    "open": states.count("open"),
                    "ended": end is not None,
                }
            )
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    caption = "" if rows else "No inquiry yet; begin one with: sonde lab run --task arithmetic"
    screens.screen().print(terminal.table(page.Table(_LISTED, tuple(_line(row) for row in rows), caption)))


@app.command("query", epilog=EXAMPLES)
def query(
    kind: Annotated[
        str, typer.Argument(help="run, sweep, example, hypothesis, prediction, note, finding, call, inquiry …")
    ] = "run",
    where: Annotated[
        list[str] | None,
        typer.Option("--where", "-w", help="field=value, !=, <, <=, >, >= or ~ (contains); may be repeated."),
    ] = None,
    by: Annotated[list[str] | None, typer.Option("--by", help="Group by this field; may be repeated.")] = None,
    show: Annotated[
        list[str] | None, typer.Option("--show", "-s", help="Fields to show, or to average with --by.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most, the newest.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    runs: Runs = None,
) -> None:
    """Search the log by any field, or group it."""
    from sonde.lab import log_query
    from sonde.report import page, terminal

    shown = show or _SHOWN.get(kind, ["time"])
    with opened(runs) as book:
        if by:
            rows = log_query.group(book, kind, by=by, of=show or [], where=where or [])
        else:
            fields = ("id", *shown)
            rows = log_query.select(book, kind, where=where or [], fields=fields, newest=True, limit=limit)[::-1]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    columns = tuple(rows[0]) if rows else ("nothing",)
    cells = tuple(tuple(_cell(value) for value in row.values()) for row in rows)
    caption = f"{len(rows)} rows." if rows else "Nothing in the log is like that."
    screens.screen().print(terminal.table(page.Table(columns, cells, caption)))


@app.command("show")
def show(
    id: Annotated[str, typer.Argument(help="Any id, such as r12, h3 or q1; last is the newest inquiry.")],
    runs: Runs = None,
) -> None:
    """Show one entry with all it says; of an inquiry, everything in it."""
    from sonde.lab import exporting, inquiries

    with opened(runs) as book:
        if id == "last" or id.startswith("q"):
            typer.echo(exporting.markdown(inquiries.opened(book, id)), nl=False)
            return
        entry = book.get(id)
        rows = {"rows": book.examples(id)} if entry.kind == "run" else {}
        typer.echo(json.dumps(entry.to_json() | rows, indent=1))


@app.command("export")
def export(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; .md or .json.")],
    inquiry: Annotated[str, typer.Option(help="Which inquiry; the newest if left out.")] = "last",
    runs: Runs = None,
) -> None:
    """Write an inquiry as Markdown or JSON."""
    from sonde.lab import exporting, inquiries

    with opened(runs) as book:
        typer.echo(str(exporting.write(inquiries.opened(book, inquiry), to)))


_LISTED = ("inquiry", "task", "model", "planner, seed", "experiments", "hypotheses")
_SHOWN = {
    "run": ["inquiry", "corruption", "task", "split", "prediction", "kept", "loss_delta", "n"],
    "example": ["corruption", "prompt", "answer", "completion", "correct"],
    "hypothesis": ["inquiry", "statement"],
    "prediction": ["hypothesis", "corruption", "measure", "relation", "value"],
    "note": ["inquiry", "text", "cites"],
    "finding": ["inquiry", "status", "claim", "evidence"],
    "sweep": ["inquiry", "tool", "arguments", "summary"],
    "inquiry": ["run", "model", "task", "planner", "seed"],
    "call": ["inquiry", "tool", "outcome", "arguments"],
}


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    """An inquiry in a line that fits a terminal."""
    said = ", ".join(f"{row[state]} {state}" for state in ("supported", "refuted", "open") if row[state]) or "none"
    planner, spent = f"{row['planner']}, {row['seed']}", row["experiments"] + ("" if row["ended"] else ", not ended")
    return row["inquiry"], row["task"], row["model"], planner, spent, said


def _cell(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value) if isinstance(value, dict) else value


@contextlib.contextmanager
def opened(runs: Path | None) -> Iterator[Any]:
    """The log beside the runs, for a while."""
    from sonde.lab import log

    with log.Log.of(runs) as book:
        yield book
