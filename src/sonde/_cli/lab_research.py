"""`sonde lab run`, `fork`, `replay`, `approve`, `verdict`, `mcp`: research under rules that keep it honest."""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import lab_log, screens

MODEL = "smollm2-135m-instruct"
RUN_EXAMPLES = (
    "Examples: sonde lab run --task arithmetic --budget 30 · sonde lab run --task capitals --seed 1 --approve · "
    "sonde lab run --task copying --planner openai --planner-model NAME --server http://127.0.0.1:8000/v1"
)
Task = Annotated[str, typer.Option(help="What the model is asked; sonde lab tasks check lists the tasks.")]
Tasks = Annotated[Path | None, typer.Option("--tasks", metavar="FILE", help="A task file of your own.")]
Model = Annotated[str, typer.Option("--model", "-m", help="A zoo name, a folder, a GGUF file or a hub id.")]
Budget = Annotated[int, typer.Option(min=0, help="Experiments at most, controls included.")]
Tokens = Annotated[int | None, typer.Option(min=0, help="Tokens of the planner's model at most.")]
Seconds = Annotated[float | None, typer.Option(min=0, help="Seconds of measuring and planning at most.")]
Seed = Annotated[int, typer.Option(min=0, help="Draws the held-out examples and the controls.")]
Examples = Annotated[int, typer.Option(min=6, help="Examples to explore with at most, and as many held out.")]
Planner = Annotated[str, typer.Option(help="Who decides: search (no language model needed) or openai.")]
PlannerModel = Annotated[str | None, typer.Option(help="With --planner openai: the server's name for its model.")]
Server = Annotated[str | None, typer.Option(help="With --planner openai: the server's address, ending in /v1.")]
Approve = Annotated[
    bool, typer.Option("--approve", help="Ask before each experiment; without a terminal, wait for sonde lab approve.")
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Where the page goes; lab/INQUIRY beside the runs.")]


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
    model: Model = MODEL,
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
    seed: Seed = 0,
    approve: Approve = False,
    tasks: Tasks = None,
    resume: Annotated[str | None, typer.Option(metavar="ID", help="Go on with an inquiry that was stopped.")] = None,
    out: Out = None,
    runs: lab_log.Runs = None,
) -> None:
    """Find out which layers a task needs: a planner experiments, the lab keeps it honest.

    The model is corrupted and measured on some examples. What the planner then believes it must predict, on examples
    that it has not seen, beside random controls; the lab decides whether that holds. Everything is in the log, and the
    results become a page. With Ctrl-C nothing is lost: go on with --resume.
    """
    from sonde.core import errors
    from sonde.lab import budget as lab_budget
    from sonde.lab import inquiries, loop

    screen = screens.screen()
    limits = lab_budget.Limits(budget, tokens, seconds)
    if resume is None:
        lab_budget.check(limits, lab_budget.Spent())
    with lab_log.opened(runs) as book:
        found = inquiries.opened(book, resume) if resume else None
        if found is not None:
            model, task, planner = found.settings.model, found.settings.task, found.settings.planner
            tasks = Path(found.settings.more["tasks"]) if found.settings.more.get("tasks") else None
            planner_model = planner_model or found.settings.more.get("planner_model")
            server = server or found.settings.more.get("server")
        decides = _planner(planner, planner_model, server)
        with _bench(model, task, tasks) as bench:
            if found is None:
                more = {"planner_model": planner_model, "server": server, "tasks": str(tasks) if tasks else None}
                free = screens.whole_numbers(layers, "--layers")
                if free is not None and not set(free) <= set(range(bench.n_layers)):
                    raise errors.RequestError(f"--layers {layers}: {model} has layers 0 to {bench.n_layers - 1}")
                more |= {"layers": free} if free else {}
                fields: Any = {"planner": planner, "seed": seed, "limits": limits, "approve": approve, "more": more}
                found = loop.begin(book, bench, most=examples, **fields)
            _conducted(screen, bench, found, decides, out)


def fork(
    inquiry: Annotated[str, typer.Argument(help="The inquiry to branch off from, such as q1, or last.")],
    at: Annotated[int, typer.Option(min=0, help="How many of its calls to take over.")],
    budget: Budget = 30,
    planner: Planner = "search",
    planner_model: PlannerModel = None,
    server: Server = None,
    approve: Approve = False,
    out: Out = None,
    runs: lab_log.Runs = None,
) -> None:
    """Begin a new inquiry with the first calls of another, and go on differently from there."""
    from sonde.lab import budget as lab_budget
    from sonde.lab import inquiries

    limits = lab_budget.Limits(budget)
    lab_budget.check(limits, lab_budget.Spent())
    with lab_log.opened(runs) as book:
        parent = inquiries.opened(book, inquiry)
        old = parent.settings
        more = {**old.more, "planner_model": planner_model, "server": server}
        fields = old.to_json() | {"planner": planner, "approve": approve, "more": more}
        settings = inquiries.Settings.read(fields | {"limits": {"experiments": budget}})
        decides = _planner(planner, planner_model, server)
        with _bench(old.model, old.task, Path(old.more["tasks"]) if old.more.get("tasks") else None) as bench:
            bench.check(old.held, what=parent.id)
            made = inquiries.begin(book, settings, parent=parent.id, at=at)
            _conducted(screens.screen(), bench, made, decides, out)


def replay(
    inquiry: Annotated[str, typer.Argument(help="The inquiry to make again, such as q1, or last.")],
    runs: lab_log.Runs = None,
) -> None:
    """Make all calls of an inquiry again, and say what comes out differently; exit code 1 if anything does."""
    from sonde.lab import inquiries, loop
    from sonde.report import page, terminal

    screen = screens.screen()
    with lab_log.opened(runs) as book:
        old = inquiries.opened(book, inquiry)
        settings = old.settings
        tasks = Path(settings.more["tasks"]) if settings.more.get("tasks") else None
        with _bench(settings.model, settings.task, tasks) as bench, screen.status(f"replaying {old.id}"):
            fresh, rows = loop.replay(bench, old)
    cells = tuple(
        (row.number, row.tool, ", ".join(row.before), ", ".join(row.after), row.difference, row.same) for row in rows
    )
    columns = ("call", "tool", "made then", "made now", "largest difference", "same")
    different = [row for row in rows if not row.same]
    caption = f"{old.id} again as {fresh.id}: {len(rows) - len(different)} of {len(rows)} calls came out the same."
    screen.print(terminal.table(page.Table(columns, cells, caption, decimals=6)))
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
    model: Model = MODEL,
    budget: Budget = 30,
    seconds: Seconds = None,
    examples: Examples = 12,
    seed: Seed = 0,
    approve: Approve = False,
    tasks: Tasks = None,
    resume: Annotated[str | None, typer.Option(metavar="ID", help="Serve an inquiry that is there.")] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP on this machine instead of stdio.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --http: the port; 0 takes a free one.")] = 8765,
    runs: lab_log.Runs = None,
) -> None:
    """Serve the lab's tools to any assistant, over the Model Context Protocol.

    On standard input and output, or with --http on 127.0.0.1 only; set SONDE_LAB_KEY to ask for a key there as well.
    """
    from sonde.lab import budget as lab_budget
    from sonde.lab import desk, inquiries, loop, serving

    serving.check_installed()
    screen = screens.screen(stderr=True)  # standard output belongs to the protocol
    limits = lab_budget.Limits(budget, None, seconds)
    with lab_log.opened(runs) as book:
        found = inquiries.opened(book, resume) if resume else None
        if found is not None:
            model, task = found.settings.model, found.settings.task
        with _bench(model, task, tasks) as bench:
            if found is None:
                fields: Any = {"planner": "mcp", "seed": seed, "limits": limits, "approve": approve}
                found = loop.begin(book, bench, most=examples, **fields)
            at = desk.Desk(bench, found)
            screen.print(f"Inquiry {found.id} in {book.path}", highlight=False, soft_wrap=True)
            if http:
                serving.serve_http(at, port=port, on_ready=lambda url: screen.print(f"Serving {url}", highlight=False))
            else:
                serving.serve_stdio(at)


@contextlib.contextmanager
def _bench(model: str, task: str, path: Path | None) -> Iterator[Any]:
    """Model and task, ready to be measured."""
    from sonde.lab import experiments
    from sonde.lab import tasks as lab_tasks
    from sonde.models import loading

    chosen = lab_tasks.get(lab_tasks.load(path), task)
    with loading.load(model) as loaded:
        yield experiments.Experiments(loaded, chosen)


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


def _conducted(screen: Any, bench: Any, inquiry: Any, planner: Any, out: Path | None) -> None:
    """Runs an inquiry and writes its page."""
    from sonde.core import errors
    from sonde.lab import desk, loop
    from sonde.report import terminal

    settings = inquiry.settings
    _estimate(screen, inquiry)
    again = f"sonde lab run --resume {inquiry.id}"
    asking = settings.approve and sys.stdin.isatty()
    waiting = contextlib.nullcontext() if asking else screens.bars(screen)
    with screens.stopped(screen, again), waiting as told:

        def on_call(call: Any, reply: Any, used: Any) -> None:
            if told is not None:
                told("experiments", used.experiments, settings.limits.experiments)

        try:
            end = loop.conduct(desk.Desk(bench, inquiry), planner, approver=_asked if asking else None, on_call=on_call)
        except errors.ServerError as error:
            said = str(error) if str(error).endswith(("?", ".")) else f"{error}."
            raise errors.ServerError(f"{said} The log is whole; go on with: {again}") from error
    if end is None:
        screen.print(f"An experiment waits for a yes. Then go on with: {again}", highlight=False)
        return
    from sonde.lab import results

    place = out or inquiry.book.path.parent / "lab" / inquiry.id
    page = results.write(inquiry, place, command=shlex.join(["sonde", *sys.argv[1:]]))
    report = results.report(inquiry)
    screen.print(terminal.summary(report))
    screen.print(f"Results: {page}", soft_wrap=True, highlight=False, markup=False)
    screen.print(f"Inquiry: {inquiry.id}   (sonde lab log show {inquiry.id})", soft_wrap=True, highlight=False)


def _asked(request: Any) -> bool:
    return typer.confirm(f"{request.id}: measure {request['corruption']} on the {request['split']} examples?")


def _estimate(screen: Any, inquiry: Any) -> None:
    """Says how long it will take, from what the intact model took."""
    settings = inquiry.settings
    whole = [one for one in inquiry.entries("run") if one["split"] == "all"]
    left = settings.limits.experiments - inquiry.spent().experiments
    told = (
        f"[bold]{inquiry.id}[/]: {settings.model} on {settings.task!r}, planner {settings.planner}, at most {left} more "
        f"experiments of {len(settings.explore)} examples"
    )
    if whole:
        told += f"; the intact model solves {whole[0]['accuracy']:.0%} of {whole[0]['n']}"
        if whole[0]["intact_seconds"]:
            each = whole[0]["intact_seconds"] / whole[0]["n"] * len(settings.explore)
            told += f"; about {screens.span(each * left)}"
    screen.print(f"{told}.", highlight=False)
