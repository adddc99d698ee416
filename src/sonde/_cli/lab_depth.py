"""`sonde lab depth`: at how many layers does each behaviour appear?"""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from sonde._cli import screens

MODEL = "smollm2-135m-instruct"
EXAMPLES = (
    "Examples: sonde lab depth · sonde lab depth --model tiny-llama --run mine · sonde lab depth --own "
    "--prompt 'The capital of France is' --answer Paris --prompt 'One, two, three,' --answer four"
)


def register(app: typer.Typer) -> None:
    """Puts the command into `sonde lab`."""
    app.command("depth", epilog=EXAMPLES)(depth)


def depth(
    model: Annotated[str, typer.Option("--model", "-m", help="A zoo name, a folder, a GGUF file or a hub id.")] = MODEL,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="A prompt of your own, beside the four; may be repeated.")
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            "-a",
            help="How each --prompt goes on rightly, in the same order; none: format and answer are not looked for.",
        ),
    ] = None,
    own: Annotated[bool, typer.Option("--own", help="Only your own prompts, without the four.")] = False,
    words: Annotated[int, typer.Option(min=3, help="Tokens of each continuation.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Draws the order of tokens in the control.")] = 0,
    run: Annotated[str | None, typer.Option(help="A name for the run; an existing one is resumed.")] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Where to keep runs; $SONDE_RUNS or ./runs.")
    ] = None,
) -> None:
    """At how many layers does the model repeat the last token, notice the format, speak grammatically, get it right?

    Only the first n layers run, for every n, and the model continues four prompts (a distance, an addition, unfinished JSON, a
    year) and your own. The table says for each prompt the first n at which each behaviour appears, and the n from which on it
    stays; a picture shows all n. "Grammatical" means: as likely to the whole model, per token, as a predictable ordinary text, and
    not one thing again and again. How often chance would pass for the same stands beside it.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from rich import console

    from sonde.lab import depths
    from sonde.models import loading
    from sonde.report import page, terminal
    from sonde.store import names

    given, answers = prompt or [], answer or []
    if answers and len(answers) != len(given):
        raise typer.BadParameter(
            f"{len(given)} prompts and {len(answers)} answers: give one each", param_hint="--answer"
        )
    if own and not given:
        raise typer.BadParameter("give at least one --prompt", param_hint="--own")
    mine = [depths.prompt_of(text, said) for text, said in zip(given, answers or [""] * len(given), strict=True)]
    chosen = (*(() if own else depths.PROMPTS), *mine)
    screen, name = console.Console(), run or names.new_run_id()
    with loading.load(model) as loaded, loaded.packed():
        settings = depths.Settings(model=loaded.cfg.model_name, prompts=chosen, words=words, seed=seed)
        screen.print(
            f"[bold]{settings.model}[/]: {loaded.cfg.n_layers} depths, {len(chosen)} prompts, {words} tokens each.",
            highlight=False,
        )
        with screens.stopped(screen, f"the same command and --run {name}"), screens.bars(screen) as bars:
            found = depths.run(loaded, settings, run=name, runs_dir=runs, tell=bars)
    report = depths.report(found.results, shlex.join(["sonde", *sys.argv[1:]]))
    written = page.write(report, found.folder)
    screen.print(terminal.summary(report, report.sections[0].tables[0]))
    screen.print(f"Report: {written}", soft_wrap=True, highlight=False)
    screen.print(f"Run: {found.folder}   (sonde runs show {found.folder.name})", soft_wrap=True, highlight=False)
