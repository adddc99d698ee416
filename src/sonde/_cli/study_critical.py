"""`sonde study critical-steps`: which step of an episode decides how the rest goes, and where in the model."""

from typing import Annotated, Any

import typer

from sonde._cli import launch, screens

EXAMPLES = (
    "Examples: sonde study critical-steps 20q --episodes 12 --layers 0:30:5 --run critical · "
    "sonde study critical-steps 20q:0:40 --cells 6 --rollouts 4 · sonde study critical-steps --played RUN"
)


def critical_steps(
    environment: Annotated[
        str | None, typer.Argument(help="What to play: a preset, with selectors such as 20q:0:10. Or give --played.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="A zoo name, a folder, a GGUF file or a hub id; with --played the one that played, else "
            "smollm2-135m-instruct.",
        ),
    ] = None,
    played: Annotated[str | None, typer.Option(help="Study the episodes of this run of sonde play instead.")] = None,
    episodes: Annotated[
        int, typer.Option("--episodes", "-n", min=2, help="How many; fewer than 10 prove little.")
    ] = 12,
    layers: Annotated[
        str | None, typer.Option(help="Layers to look at, such as 0,5,10 or 0:30:5; all if left out.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Steps to look at, written the same way; all if left out.")] = None,
    part: Annotated[str, typer.Option(help="What is ablated: all a layer adds, or its attn or mlp alone.")] = "layer",
    ablation: Annotated[str, typer.Option(help="Set it to its mean over all steps, or to zero.")] = "mean",
    horizon: Annotated[int, typer.Option(min=0, help="Responses after the step's own that the screening sees.")] = 1,
    cells: Annotated[
        int | None,
        typer.Option(min=1, help="Cells to roll out, and as many random ones; one for every step if left out."),
    ] = None,
    rollouts: Annotated[int, typer.Option(min=1, help="Continuations per cell and episode.")] = 8,
    heads: Annotated[int, typer.Option(min=0, help="Cells whose heads are looked at.")] = 2,
    alpha: Annotated[float, typer.Option(help="Chance of any false claim that is accepted.")] = 0.05,
    seed: launch.Seed = 0,
    max_steps: Annotated[int | None, typer.Option(min=2, help="Stop an episode after so many steps.")] = None,
    wave: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 16,
    temperature: Annotated[float, typer.Option(min=0, help="Of the sampling.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer at most.")] = 48,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Of the environment, as name=value; may be repeated.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="See sonde play; with --played that of the run.")] = None,
    dtype: Annotated[str | None, typer.Option(help="See sonde play; with --played that of the run.")] = None,
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Find the steps of an episode that decide how the rest goes.

    First every step and layer is screened: what the layer adds at that step is taken away, and the model reads the
    recorded conversation again. Nothing is generated, so this is cheap. Then, for each step's strongest layer and for as
    many random cells, the episode is played on from that step with and without the ablation, with the same random
    numbers. A step is called critical if that changes how the later steps go: paired by episode, corrected for the
    number of cells.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    if (environment is None) == (played is None):
        raise typer.BadParameter("say what to play (20q), or --played RUN", param_hint="ENVIRONMENT")
    from sonde.agents import playing
    from sonde.models import loading, zoo
    from sonde.studies.critical_steps import settings, study

    chosen: dict[str, Any] = {
        "layers": screens.whole_numbers(layers, "--layers"),
        "steps": screens.whole_numbers(steps, "--steps"),
        "part": part,
        "ablation": ablation,
        "horizon": horizon,
        "cells": cells,
        "rollouts": rollouts,
        "heads": heads,
        "alpha": alpha,
        "seed": seed,
        "wave": wave,
    }
    if played is None:
        chosen |= {
            "episodes": episodes,
            "max_steps": max_steps,
            "generation": {"temperature": temperature, "max_new_tokens": max_new_tokens},
            "options": dict(screens.pair(text) for text in option or ()),
        }
    own = playing.opened_run(played, runs) if played is not None and model is None else None
    if own and (device or dtype):
        raise typer.BadParameter(
            f"run {own.id} says them; leave them out, or give --model", param_hint="--device, --dtype"
        )
    placed = {"device": device or "auto", "dtype": dtype or "float32"}
    with playing.model_of(own) if own else loading.load(model or zoo.DEFAULT, **placed) as loaded:
        source: Any = environment if played is None else playing.resume(played, loaded, runs_dir=runs)
        given = settings.settings_of(source, loaded.cfg, **chosen)
        launch.launch(study.CriticalSteps(loaded, source), given, run=run, runs=runs)
