"""`sonde study`: whole experiments, from playing to a report."""

from typing import Annotated

import typer

from sonde._cli import launch, screens, study_binding, study_critical, study_layers

EXAMPLES = (
    "Examples: sonde study 20q · sonde study 20q --full --run mine · sonde study 20q probe --run mine · "
    "sonde study compare 20q --model smollm2-135m-instruct --model ./my-model"
)
app = typer.Typer(
    name="study",
    help="Whole experiments: play, measure, test, and write a report.",
    no_args_is_help=True,
    epilog=EXAMPLES,
)
app.command("critical-steps", epilog=study_critical.EXAMPLES)(study_critical.critical_steps)
app.command("binding", epilog=study_binding.EXAMPLES)(study_binding.binding)
app.command("layers", epilog=study_layers.EXAMPLES)(study_layers.layers)


@app.command("20q", epilog=EXAMPLES)
def twenty_questions(
    stage: Annotated[
        str, typer.Argument(help="all, or one of: collect, probe, steer, evolution, report. Needs --run if not all.")
    ] = "all",
    model: launch.ModelOrRun = None,
    full: Annotated[bool, typer.Option("--full", help="The complete study: hours. Without it: minutes.")] = False,
    episodes: Annotated[int | None, typer.Option(min=2, help="Games to learn from.")] = None,
    steer_episodes: Annotated[int | None, typer.Option(min=2, help="Games per condition of steering.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Messages per game at most.")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to record, such as 0,5,10 or 0:30:5.")] = None,
    temperatures: Annotated[str | None, typer.Option(help="To choose from, such as 0.7,1.0; one: no choice.")] = None,
    strengths: Annotated[str | None, typer.Option(help="Of steering, such as 2,4,8; the middle one is tested.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Of the game, as name=value, such as oracle=llm.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Fixes objects, sampling, folds and controls; 0 if left out.")
    ] = None,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    engine: launch.Engine = "local",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Does the model know that it is about to break the rules, and does steering help?

    Games of Twenty Questions are played and recorded (collect). Probes ask at which layer and step the coming verdict can
    be read off, before the model speaks and after (probe). Directions from invalid to valid are added while it plays
    about other objects, beside controls that mean nothing (steer). Do the directions change over a game (evolution)? The
    report says in words what holds after correction, and what does not.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped. A later stage by itself
    takes the settings and the model of the run.
    """
    from sonde.models import identity, loading
    from sonde.studies.twenty_questions import settings, study

    stages = launch.stages_of(study.TwentyQuestions, stage, run)
    sizes = (model, full or None, episodes, steer_episodes, steps, layers, temperatures, strengths, option, seed)
    typed = any(one is not None for one in sizes) or (device, dtype) != ("auto", "float32")
    known = launch.recorded(study.TwentyQuestions, stages, run, runs)
    known = None if typed else known  # what was typed is compared with the run's
    name = model or launch.MODEL
    with identity.rebuilt(known[1]) if known else loading.load(name, device=device, dtype=dtype) as loaded:
        chosen = (
            known[0]
            if known
            else settings.settings_of(
                loaded,
                "full" if full else "small",
                episodes=episodes,
                steer_episodes=steer_episodes,
                steps=steps,
                layers=screens.whole_numbers(layers, "--layers"),
                temperatures=screens.decimals(temperatures, "--temperatures"),
                strengths=screens.decimals(strengths, "--strengths"),
                options=dict(screens.pair(text) for text in option or ()),
                seed=seed,
            )
        )
        launch.launch(study.TwentyQuestions(loaded), chosen, run=run, runs=runs, engine=engine, stages=stages)


@app.command("compare", epilog=EXAMPLES)
def compare(
    environment: Annotated[str, typer.Argument(help="What to play: a preset, with selectors such as 20q:0:40.")],
    model: Annotated[list[str], typer.Option("--model", "-m", help="Give two or more.")],
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=2, help="Games per model.")] = 16,
    temperature: Annotated[float, typer.Option(min=0, help="Of the sampling.")] = 1.0,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop a game after so many steps.")] = None,
    seed: launch.Seed = 0,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
) -> None:
    """Play the same tasks with two or more models, and compare them game by game.

    Everything finished is kept: the same command with --run NAME goes on where it was stopped.
    """
    from sonde.studies import comparison

    chosen = comparison.CompareSettings(
        environment=environment,
        models=tuple(model),
        episodes=episodes,
        seed=seed,
        max_steps=max_steps,
        generation={"temperature": temperature},
    )
    launch.launch(comparison.Compare(device=device, dtype=dtype), chosen, run=run, runs=runs)
