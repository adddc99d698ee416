"""`sonde study layers`: what each layer does for a model, and whether their order matters."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from sonde._cli import screens

MODEL = "smollm2-135m-instruct"
EXAMPLES = (
    "Examples: sonde study layers · sonde study layers --model ./my-model --texts 6 --run mine · "
    "sonde study layers --windows 2,4,8 --orders 10"
)


def layers(
    model: Annotated[str, typer.Option("--model", "-m", help="A zoo name, a folder, a GGUF file or a hub id.")] = MODEL,
    texts: Annotated[int | None, typer.Option(min=2, help="How many of the ten texts; all.")] = None,
    tokens: Annotated[int | None, typer.Option(min=8, help="Tokens of each text; 64.")] = None,
    windows: Annotated[str | None, typer.Option(help="Window sizes, such as 2,4,8.")] = None,
    orders: Annotated[int | None, typer.Option(min=1, help="Random orders of each window; 5.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws random orders and noise.")] = 0,
    run: Annotated[str | None, typer.Option(help="A name for the run; one that is there is taken up.")] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Where to keep runs; $SONDE_RUNS or ./runs.")
    ] = None,
) -> None:
    """What does each layer do for a model, and does their order matter?

    Each layer is skipped and swapped with the next, beside a random change of the stream of the same size. A window in the
    middle is skipped, reversed, shuffled, run side by side, and replaced by its middle layer. How the stream turns from layer
    to layer is compared with what skipping does. And the model is cut off after its first layers, to see what it says then.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.lab.layers import pages, settings, study
    from sonde.models import loading
    from sonde.report import page, terminal
    from sonde.store import names

    screen, name = screens.screen(), run or names.new_run_id()
    with loading.load(model) as loaded:
        sizes = screens.whole_numbers(windows, "--windows")
        chosen = settings.settings_of(loaded.cfg, texts=texts, tokens=tokens, sizes=sizes, orders=orders, seed=seed)
        todo = study.pending(run, runs)
        by_stage = {one: took for one, took in study.seconds(loaded, chosen).items() if one in todo} if todo else {}
        parts = ", ".join(f"{stage} {screens.span(took)}" for stage, took in by_stage.items())
        told = f"About {screens.span(sum(by_stage.values()))} ({parts})." if parts else "Everything is on disk."
        screen.print(
            f"[bold]{chosen.model}[/]: {loaded.cfg.n_layers} layers, {chosen.texts} texts of {chosen.tokens} tokens. {told}",
            highlight=False,
        )
        with screens.stopped(screen, f"the same command and --run {name}"), screens.bars(screen) as bars:
            found = study.run(loaded, chosen, run=name, runs_dir=runs, tell=bars)
    report = pages.report(found.results, shlex.join(["sonde", *sys.argv[1:]]))
    written = page.write(report, found.folder)
    screen.print(terminal.summary(report, pages.methods_table(found.results)))
    screen.print(f"Report: {written}", soft_wrap=True, highlight=False, markup=False)
    screen.print(
        f"Run: {found.folder}   (sonde runs show {found.folder.name})", soft_wrap=True, highlight=False, markup=False
    )
