"""`sonde bench leaderboard`: all circuit finders on models whose circuit is known."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

EXAMPLES = (
    "Examples: sonde bench leaderboard · sonde bench leaderboard --tracr --methods eap-ig,acdc,exact-node,random · "
    "sonde bench leaderboard --from runs/core --method-file my_method.py"
)
FOLDER = Path("results") / "leaderboard"
CORE = "core"
WIDE = 120


def leaderboard(
    tracr: Annotated[bool, typer.Option("--tracr", help="Compiled models instead of trained ones.")] = False,
    suite: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Models that sonde bench train core put there.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Published InterpBench models; see docs, Experiments.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Circuit finders, with commas; all if left out.")] = None,
    method_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A Python file that registers a method of your own.")
    ] = None,
    cases: Annotated[
        str | None,
        typer.Option(help="Only these, as 3,15,ioi, or core, with IOI; core if left out, of a --folder all there are."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Only these seeds, as 0,1 or 0:4; all if left out.")] = None,
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of inputs per model.")] = 100,
    metric: Annotated[
        str | None, typer.Option(help="One for all: kl, mse, answer_diff …; each method its own if left out.")
    ] = None,
    least: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="With --from: accuracy, IIA and strict accuracy a model needs, 0.995; with --folder: accuracy, 0.9.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where; what is there is not run again. results/leaderboard/….")
    ] = None,
) -> None:
    """Run all circuit finders on models whose circuit is known, and rank them.

    AUROC of nodes (primary), of heads alone and of edges with bootstrap intervals over cases, paired tests between methods, and what each one
    costs. Exact patching is the ceiling; the best ranking that looks at nothing but the shape of the model is the floor. Your own method gets its row with --method-file: everything that was
    measured before is taken from the folder.

    Every figure is on disk as soon as it is measured: the same command goes on where it was stopped.
    """
    from rich import console

    from sonde.bench import board_page, standings
    from sonde.bench import leaderboard as bench_leaderboard

    screen = console.Console()
    entries, left_out = _entries(tracr, suite, folder, cases=cases, seeds=seeds, least=least)
    settings = bench_leaderboard.Settings(pairs, metric, tuple(str(file) for file in method_file or ()))
    board = bench_leaderboard.Board(entries, settings)
    names = board.methods(None if methods is None else [*_words(methods), *board.codes])
    place = out or FOLDER / ("compiled" if tracr else (suite or folder or Path("embedded")).name)
    with screens.stopped(screen, f"the same command and --out {place}"):
        _estimate(screen, board.entries, left_out, board.estimate(names, place))
        with screens.bars(screen) as told:
            found = board.run(names, place, engine=engine, tell=told)
    ranked = standings.of(found.rows)
    command = shlex.join(["sonde", *sys.argv[1:]])
    path = board_page.write(found, ranked, place, left_out=left_out, command=command)
    shown = board_page.table(ranked) if screen.width >= WIDE else board_page.brief(ranked)
    _show(screen, board_page.report(found, ranked, left_out=left_out), shown)
    for name, why in left_out.items():
        if isinstance(why, str):
            _say(screen, f"Left out: {name}: {why}")
    for why in dict.fromkeys(found.failed.values()):
        names = "; ".join(name for name, reason in found.failed.items() if reason == why)
        _say(screen, f"Failed: {names}: {why}")
    _say(
        screen,
        f"Report: {path}\nFigure: {path.parent / 'figures' / 'standings.png'}   Numbers: {path.parent / 'results.json'}",
    )


def _entries(
    tracr: bool, suite: Path | None, folder: Path | None, *, cases: str | None, seeds: str | None, least: float | None
) -> tuple[Any, Mapping[str, float | str]]:
    """The models that were asked for; those that are not good enough, with their figure, or cannot be loaded, with why."""
    from sonde.bench import cases as bench_cases
    from sonde.bench import published, roster, shipped

    if tracr + (suite is not None) + (folder is not None) > 1:
        raise typer.BadParameter("give one of --tracr, --from and --folder", param_hint="--from")
    chosen = None if cases is None or cases == CORE else _words(cases)
    numbers = screens.whole_numbers(seeds, "--seeds")
    if tracr:
        ids = bench_cases.ids("core") if chosen is None else [_number(case) for case in chosen]
        return roster.compiled(ids), {}
    if folder is not None:
        names = [*map(str, bench_cases.ids(CORE)), *shipped.IOI] if cases == CORE else chosen
        found, broken = roster.folder_of(folder, cases=names, least=published.LEAST if least is None else least)
        return found, {f"case {name}": why for name, why in broken.items()}
    if suite is not None:
        least = roster.LEAST if least is None else least
        found, short = roster.suite_of(suite, cases=chosen, seeds=numbers, least=least)
        return (found if chosen else roster.core(found) or found), short
    return roster.embedded(cases=chosen, seeds=numbers), {}


def _number(case: str) -> int:
    from sonde.bench import cases as bench_cases

    if not case.isdecimal():
        raise typer.BadParameter(f"{case!r} is no number of a compiled case", param_hint="--cases")
    return bench_cases.get(int(case)).id


def _estimate(screen: Any, entries: Any, left_out: Mapping[str, float | str], seconds: dict[str, float | None]) -> None:
    """Says what will be done and how long it will take."""
    models = f"{len(entries)} models of {len({entry.case for entry in entries})} cases"
    broken = sum(isinstance(why, str) for why in left_out.values())
    reasons = ((len(left_out) - broken, "not good enough"), (broken, "they cannot be loaded, see below"))
    models += "".join(f" ({count} left out: {why})" for count, why in reasons if count)
    each = ", ".join(f"{name} {'?' if one is None else screens.span(one)}" for name, one in seconds.items() if one != 0)
    total = sum(one or 0.0 for one in seconds.values())
    _say(screen, f"{models}, {len(seconds)} methods. About {screens.span(total)} to go ({each or 'all done'}).")


def _show(screen: Any, report: Any, table: Any) -> None:
    from sonde.report import terminal

    screen.print(terminal.summary(report, table))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _say(screen: Any, text: str) -> None:
    screen.print(text, soft_wrap=True, highlight=False, markup=False)


def register(app: typer.Typer) -> None:
    """Adds the command to `sonde bench`."""
    app.command(epilog=EXAMPLES)(leaderboard)
