"""`sonde lab depth`: at how many layers does each behaviour appear?"""

from typing import Annotated

import typer

from sonde._cli import launch

EXAMPLES = (
    "Examples: sonde lab depth · sonde lab depth --model tiny-llama --run mine · sonde lab depth --own "
    "--prompt 'The capital of France is' --answer Paris --prompt 'One, two, three,' --answer four"
)


def register(app: typer.Typer) -> None:
    """Puts the command into `sonde lab`."""
    app.command("depth", epilog=EXAMPLES)(depth)


def depth(
    model: launch.Model = launch.MODEL,
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
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """At how many layers does the model repeat the last token, notice the format, speak grammatically, get it right?

    Only the first n layers run, for every n, and the model continues four prompts (a distance, an addition, unfinished JSON, a
    year) and your own. The table says for each prompt the first n at which each behaviour appears, and the n from which on it
    stays; a picture shows all n. "Grammatical" means: as likely to the whole model, per token, as a predictable ordinary text, and
    not one thing again and again. How often chance would pass for the same stands beside it.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.lab import depths
    from sonde.models import loading

    given, answers = prompt or [], answer or []
    if answers and len(answers) != len(given):
        raise typer.BadParameter(
            f"{len(given)} prompts and {len(answers)} answers: give one each", param_hint="--answer"
        )
    if own and not given:
        raise typer.BadParameter("give at least one --prompt", param_hint="--own")
    mine = [depths.prompt_of(text, said) for text, said in zip(given, answers or [""] * len(given), strict=True)]
    chosen = (*(() if own else depths.PROMPTS), *mine)
    with loading.load(model, device=device, dtype=dtype) as loaded, loaded.packed():
        settings = depths.DepthSettings(model=loaded.cfg.model_name, prompts=chosen, words=words, seed=seed)
        launch.launch(depths.Depth(loaded), settings, run=run, runs=runs)
