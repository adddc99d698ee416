"""`sonde bench leaderboard`: all circuit finders on models whose circuit is known."""

from pathlib import Path
from typing import Annotated

import typer

from sonde._cli import launch, screens

EXAMPLES = (
    "Examples: sonde bench leaderboard · sonde bench leaderboard --tracr --methods eap-ig,acdc,exact-node,random · "
    "sonde bench leaderboard --from runs/core --method-file my_method.py"
)


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
    engine: launch.Engine = "local",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Run all circuit finders on models whose circuit is known, and rank them.

    AUROC of nodes (primary), of heads alone and of edges with bootstrap intervals over cases, paired tests between methods, and what each one
    costs. Exact patching is the ceiling; the best ranking that looks at nothing but the shape of the model is the floor. Your own method gets its row with --method-file: what another
    board measured before is taken from its run.

    Every figure is on disk as soon as it is measured: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.bench import leaderboard as board
    from sonde.store import names

    chosen = board.settings_of(
        _words(methods), map(str, method_file or ()), pairs=pairs, metric=metric, tracr=tracr, suite=_text(suite),
        folder=_text(folder), cases=_words(cases), seeds=screens.whole_numbers(seeds, "--seeds"), least=least,
    )  # fmt: skip
    made = board.Leaderboard(*board.models_of(chosen), earlier=runs or names.default_runs_dir())
    launch.launch(made, chosen, run=run, runs=runs, engine=engine)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def register(app: typer.Typer) -> None:
    """Adds the command to `sonde bench`."""
    app.command(epilog=EXAMPLES)(leaderboard)
