"""`sonde demo`: a first look into the embedded model, printed and drawn."""

import textwrap
from pathlib import Path
from typing import Annotated

import typer


def demo(
    model: Annotated[str, typer.Option(help="A zoo name, a model folder, a GGUF file or a Hugging Face id.")] = (
        "smollm2-135m-instruct"
    ),
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Where to keep the run; $SONDE_RUNS or ./runs.")
    ] = None,
) -> None:
    """Record a short conversation, look inside, and draw what was found.

    Takes about a minute on two cores, after the model has been fetched once (93 MB).

    Example: sonde demo --model tiny-gpt2
    """
    from rich import box, console, progress, table

    from sonde.models import loading
    from sonde.studies import first_look

    screen = console.Console()
    with loading.load(model) as loaded:
        total = len(first_look.TURNS) + loaded.cfg.n_layers
        screen.print(
            f"[bold]{loaded.cfg.model_name}[/]: {loaded.cfg.n_layers} layers, {len(loaded.site_names)} sites. "
            f"Recording {len(first_look.TURNS)} steps, then {loaded.cfg.n_layers} ablations: about a minute."
        )
        columns = (
            progress.TextColumn("{task.description:<36}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=screen, transient=True) as bar:
            task = bar.add_task("starting", total=total)
            found = first_look.take(
                loaded, runs, progress=lambda doing, done: bar.update(task, description=doing, completed=done)
            )
    grid = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("step", "question", "answer", "prompt", "encoded", "settles at"):
        grid.add_column(name, justify="right" if name in ("step", "prompt", "encoded", "settles at") else "left")
    for index, step in enumerate(found.steps):
        settles = "-" if step.settles_at is None else f"layer {step.settles_at}"
        answer = textwrap.shorten(step.answer, 70, placeholder=" …")
        cells = (str(index), step.question, answer, str(step.prompt_tokens), str(step.encoded_tokens), settles)
        grid.add_row(*(cell.replace("[", r"\[") for cell in cells))
    screen.print(grid)
    prompts, encoded = (
        sum(getattr(step, name) for step in found.steps) for name in ("prompt_tokens", "encoded_tokens")
    )
    strongest = int(found.effects.argmax())
    screen.print(
        f"Prompts held {prompts} tokens in all; {encoded} went through the model, generated ones included: "
        "each is encoded and stored once.\n"
        f"'settles at': from that layer on, the token about to be said is the most probable one (logit lens).\n"
        f"Silencing attention moves the next word most at layer {strongest} "
        f"(KL {float(found.effects[strongest]):.2f} nats; doing nothing: {found.sham:.1g}). "
        "One conversation is an illustration, not evidence."
    )
    screen.print("\nFigures:")
    for path in found.pictures:
        screen.print(f"  {path}", soft_wrap=True, highlight=False)
    screen.print(f"Run: {found.run}   (sonde runs show {found.run.name})", soft_wrap=True, highlight=False)
