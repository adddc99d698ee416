"""`sonde lab run`, `fork`, `replay`, `approve`, `verdict`, `mcp`: research under rules that keep it honest."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import lab_log, launch, screens

RUN_EXAMPLES = (
    "Examples: sonde lab run --task arithmetic --budget 30 · sonde lab run --task capitals --seed 1 --approve · "
    "sonde lab run --task copying --planner openai --planner-model NAME --server http://127.0.0.1:8000/v1"
)
Task = Annotated[str, typer.Option(help="What the model is asked; sonde lab tasks check lists the tasks.")]
Tasks = Annotated[Path | None, typer.Option("--tasks", metavar="FILE", help="A task file of your own.")]
Budget = Annotated[int, typer.Option(min=0, help="Experiments at most, controls included.")]
Tokens = Annotated[int | None, typer.Option(min=0, help="Tokens of the planner's model at most.")]
Seconds = Annotated[float | None, typer.Option(min=0, help="Seconds of measuring and planning at most.")]
Examples = Annotated[int, typer.Option(min=6, help="Examples to explore with at most, and as many held out.")]
Planner = Annotated[str, typer.Option(help="Who decides: search (no language model needed) or openai.")]
PlannerModel = Annotated[str | None, typer.Option(help="With --planner openai: the server's name for its model.")]
Server = Annotated[str | None, typer.Option(help="With --planner openai: the server's address, ending in /v1.")]
Approve = Annotated[
    bool, typer.Option("--approve", help="Ask before each experiment; without a terminal, wait for sonde lab approve.")
]
Resume = Annotated[str | None, typer.Option("--resume", hidden=True, help="The same as --run.")]


def register(app: typer.Typer) -> None:
    """Puts the commands into `sonde lab`."""
    app.command(epilog=RUN_EXAMPLES)(run)
    app.command()(fork)
    app.command()(replay)
    app.command()(approve)
    app.command()(verdict)
    app.command()(mcp)
    app.add_typer(lab_log.app, name="log")


def run(
    task: Task = "arithmetic",
    model: launch.Model = launch.MODEL,
    budget: Budget = 30,
    tokens: Tokens = None,
    seconds: Seconds = None,
    planner: Planner = "search",
    planner_model: PlannerModel = None,
    server: Server = None,
    layers: Annotated[
        str | None, typer.Option(help="Layers that may be left out, such as 0,5,10 or 8:24; all if left out.")
    ] = None,
    examples: Examples = 12,
    seed: launch.Seed = 0,
    approve: Approve = False,
    tasks: Tasks = None,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
    resume: Resume = None,
) -> None:
    """Find out which layers a task needs: a planner experiments, the lab keeps it honest.

    The model is corrupted and measured on some examples. What the planner then believes it must predict, on examples
    that it has not seen, beside random controls; the lab decides whether that holds. Everything is in the log, and the
    results become a page.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.lab import research

    _check_budget(budget, tokens, seconds)
    decides = _planner(planner, planner_model, server)
    chosen = {"planner": planner, "planner_model": planner_model, "server": server, "approve": approve, "seed": seed}
    chosen |= {"budget": budget, "tokens": tokens, "seconds": seconds, "examples": examples}
    chosen |= {"tasks": str(tasks) if tasks else None, "layers": screens.whole_numbers(layers, "--layers")}
    with lab_log.opened(runs) as book, _bench(task, tasks, model=model, device=device, dtype=dtype) as bench:
        _launched(book, bench, decides, research.settings_of(bench, **chosen), run or resume)


def fork(
    inquiry: Annotated[str, typer.Argument(help="The inquiry to branch off from, such as q1, or last.")],
    at: Annotated[int, typer.Option(min=0, help="How many of its calls to take over.")],
    budget: Budget = 30,
    planner: Planner = "search",
    planner_model: PlannerModel = None,
    server: Server = None,
    approve: Approve = False,
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Begin a new inquiry with the first calls of another, and go on differently from there; with the same model."""
    from sonde.lab import inquiries, research

    _check_budget(budget)
    with lab_log.opened(runs) as book:
        parent = inquiries.opened(book, inquiry, but=run)
        inquiries.forkable(book, parent.id, at)
        decides = _planner(planner, planner_model, server)
        chosen = {"planner": planner, "planner_model": planner_model, "server": server, "approve": approve}
        chosen |= {"budget": budget, "parent": parent.id, "at": at, **_inherited(parent)}
        with _bench_of(parent) as bench:
            _launched(book, bench, decides, research.settings_of(bench, **chosen), run)


def replay(
    inquiry: Annotated[str, typer.Argument(help="The inquiry to make again, such as q1, or last.")],
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Make all calls of an inquiry again, and say what comes out differently; exit code 1 if anything does."""
    from sonde.lab import inquiries, loop, research
    from sonde.report import page, terminal

    with lab_log.opened(runs) as book:
        old = inquiries.opened(book, inquiry, but=run)
        limits = old.settings.limits
        chosen = {"planner": old.settings.planner, "replay_of": old.id, **_inherited(old)}
        chosen |= {"budget": limits.experiments, "tokens": limits.tokens, "seconds": limits.seconds}
        with _bench_of(old) as bench:
            result = _launched(book, bench, loop.Repeater(old), research.settings_of(bench, **chosen), run)
        fresh = inquiries.opened(book, result.results["inquiry"])
        rows = loop.compared(old, fresh)
    cells = tuple(
        (row.number, row.tool, ", ".join(row.before), ", ".join(row.after), row.difference, row.same) for row in rows
    )
    columns = ("call", "tool", "made then", "made now", "largest difference", "same")
    different = [row for row in rows if not row.same]
    caption = f"{old.id} again as {fresh.id}: {len(rows) - len(different)} of {len(rows)} calls came out the same."
    screens.screen().print(terminal.table(page.Table(columns, cells, caption, decimals=6)))
    raise typer.Exit(1 if different else 0)


def approve(
    request: Annotated[str | None, typer.Argument(help="What to answer, such as a12; none lists what waits.")] = None,
    no: Annotated[bool, typer.Option("--no", help="Say no.")] = False,
    runs: lab_log.Runs = None,
) -> None:
    """Say yes, or no, to an experiment that waits for it; from any terminal."""
    from sonde.lab import desk, inquiries
    from sonde.report import page, terminal

    screen = screens.screen()
    with lab_log.opened(runs) as book:
        if request is not None:
            desk.answer(book, request, yes=not no)
            screen.print(f"{request}: {'no' if no else 'yes'}.", highlight=False)
            return
        waiting = [
            one
            for one in book.entries("request")
            if desk.answer_to(inquiries.opened(book, str(one.inquiry)), one.id) is None
        ]
        rows = tuple((one.id, str(one.inquiry), one["corruption"], one["split"], one.time) for one in waiting)
    caption = "Say yes with: sonde lab approve ID" if rows else "Nothing waits for a yes."
    screen.print(terminal.table(page.Table(("request", "inquiry", "corruption", "examples", "since"), rows, caption)))


def verdict(
    inquiry: Annotated[list[str], typer.Argument(help="Inquiries on the same model and task: q1 q90 q177.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    runs: lab_log.Runs = None,
) -> None:
    """Combine several inquiries into one verdict: a claim stands if more than half of them support it."""
    from sonde.lab import inquiries, verdicts
    from sonde.report import page, terminal, wording

    with lab_log.opened(runs) as book:
        found = verdicts.combine([inquiries.opened(book, one) for one in inquiry])
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
        return
    rows = tuple(
        (
            one.corruption,
            one.expects,
            one.verdict,
            f"{len(one.supported)} of {len(found.votes)}",
            f"{len(one.refuted)} of {len(found.votes)}",
            wording.Interval(*one.kept[:3]) if one.kept else None,
        )
        for one in found.claims
    )
    needed = ", ".join(map(str, found.needed)) or "none"
    caption = (
        f"{found.model} on {found.task!r}, {len(found.votes)} inquiries. Layers that more than half need: {needed}."
    )
    caption += "" if rows else " None of them supported or refuted anything."
    columns = ("corruption", "expected", "verdict", "support", "refute", "kept, held-out examples of all")
    screens.screen().print(terminal.table(page.Table(columns, rows, caption)))


def mcp(
    task: Task = "arithmetic",
    model: launch.Model = launch.MODEL,
    budget: Budget = 30,
    seconds: Seconds = None,
    examples: Examples = 12,
    seed: launch.Seed = 0,
    approve: Approve = False,
    tasks: Tasks = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP on this machine instead of stdio.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --http: the port; 0 takes a free one.")] = 8765,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
    resume: Resume = None,
) -> None:
    """Serve the lab's tools to any assistant, over the Model Context Protocol.

    On standard input and output, or with --http on 127.0.0.1 only; set SONDE_LAB_KEY to ask for a key there as well. The
    inquiry is a run: the same command with --run NAME serves it again, and it goes on.
    """
    from sonde import experiments
    from sonde.lab import research, serving

    serving.check_installed()
    _check_budget(budget, None, seconds)
    screen = screens.screen(stderr=True)  # standard output belongs to the protocol
    chosen = {"planner": "mcp", "budget": budget, "seconds": seconds, "examples": examples, "seed": seed}
    chosen |= {"approve": approve, "tasks": str(tasks) if tasks else None}

    def serve(at: Any, tell: Any) -> None:
        screen.print(f"Inquiry {at.inquiry.id} in {at.inquiry.book.path}", highlight=False, soft_wrap=True)
        if http:
            serving.serve_http(at, port=port, on_ready=lambda url: screen.print(f"Serving {url}", highlight=False))
        else:
            serving.serve_stdio(at)

    with lab_log.opened(runs) as book, _bench(task, tasks, model=model, device=device, dtype=dtype) as bench:
        served, settings = research.Served(bench, book, serve), research.settings_of(bench, **chosen)
        made = experiments.run(served, settings, run=run or resume, runs_dir=runs)
        screen.print(f"Report: {made.html}", soft_wrap=True, highlight=False, markup=False)


def _check_budget(experiments: int, tokens: int | None = None, seconds: float | None = None) -> None:
    """Refuses to begin with nothing to spend, before a model is loaded."""
    from sonde.lab import budget

    budget.check(budget.Limits(experiments, tokens, seconds), budget.Spent())


@contextlib.contextmanager
def _bench(task: str, path: Path | None, **placed: str) -> Iterator[Any]:
    """Model and task, ready to be measured."""
    from sonde.lab import experiments
    from sonde.lab import tasks as lab_tasks
    from sonde.models import loading

    chosen = lab_tasks.get(lab_tasks.load(path), task)
    with loading.load(placed.pop("model"), **placed) as loaded:
        yield experiments.Experiments(loaded, chosen)


@contextlib.contextmanager
def _bench_of(old: Any) -> Iterator[Any]:
    """Model and task of an inquiry: the model that the log recorded, where and as what it was."""
    from sonde.lab import experiments
    from sonde.lab import tasks as lab_tasks
    from sonde.models import identity

    chosen = lab_tasks.get(lab_tasks.load(old.settings.more.get("tasks")), old.settings.task)
    with identity.rebuilt(old.settings.held or {"name": old.settings.model}) as loaded:
        yield experiments.Experiments(loaded, chosen)


def _inherited(old: Any) -> dict[str, Any]:
    """What a fork or a replay has from its inquiry."""
    more = old.settings.more
    return {"seed": old.settings.seed, "tasks": more.get("tasks"), "layers": more.get("layers")}


def _planner(name: str, model: str | None, server: str | None) -> Any:
    if name == "search":
        from sonde.lab.planners import search

        return search.SearchPlanner()
    if name != "openai":
        from sonde.core import errors

        raise errors.RequestError(
            f"no planner {name!r}{errors.suggest(name, ['search', 'openai'])}; there are: search, openai"
        )
    if model is None:
        raise typer.BadParameter("say which model plans: --planner-model NAME", param_hint="--planner-model")
    from sonde.lab.planners import openai

    return openai.OpenAIPlanner(model, server=server)


def _launched(book: Any, bench: Any, planner: Any, settings: Any, run: str | None) -> Any:
    """Runs an inquiry and shows what came of it."""
    from sonde.lab import research

    asking = settings.approve and sys.stdin.isatty()
    asked = research.Research(bench, book, research.planned(planner, _asked if asking else None))
    result = launch.launch(asked, settings, run=run, runs=book.path.parent, bars=not asking)
    id = result.results["inquiry"]
    screens.screen().print(f"Inquiry: {id}   (sonde lab log show {id})", soft_wrap=True, highlight=False)
    return result


def _asked(request: Any) -> bool:
    return typer.confirm(f"{request.id}: measure {request['corruption']} on the {request['split']} examples?")
