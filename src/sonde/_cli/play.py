"""`sonde play`: an agent plays many episodes under a capture, printed while it goes and kept as a run."""

from typing import Annotated, Any

import typer

from sonde._cli import launch, screens

EXAMPLES = (
    "Examples: sonde play 20q --episodes 50 · sonde play 20q:0:10 --inspect · "
    "sonde play code --capture 'blocks.*.hook_resid_post' --positions last_prompt --run mine"
)
app = typer.Typer()


@app.command(epilog=EXAMPLES)
def play(
    environment: Annotated[
        str | None,
        typer.Argument(help="What to play: a preset, with selectors such as 20q:0:10 or 20q@1/4. See --list."),
    ] = None,
    model: launch.Model = launch.MODEL,
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="How many episodes.")] = 16,
    seed: launch.Seed = 0,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop an episode after so many steps.")] = None,
    wave: Annotated[int, typer.Option(min=1, help="Episodes that go together in one batch.")] = 16,
    capture: Annotated[
        list[str] | None, typer.Option("--capture", "-c", help="Sites to record, wildcards allowed; may be repeated.")
    ] = None,
    positions: Annotated[
        str, typer.Option(help="Which positions: all, prompt, last_prompt, generated or last.")
    ] = "all",
    temperature: Annotated[float, typer.Option(min=0, help="Of the sampling.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer at most.")] = 64,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Of the environment, as name=value; may be repeated.")
    ] = None,
    device: launch.Device = "auto",
    dtype: launch.Dtype = "float32",
    engine: launch.Engine = "local",
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
    inspect: Annotated[bool, typer.Option("--inspect", help="Print the first episode step by step.")] = False,
    list_presets: Annotated[bool, typer.Option("--list", help="List what can be played, and stop.")] = False,
) -> None:
    """Play many episodes with a model, and record what happens inside.

    Episodes go in waves: all of a wave take their step in one batch. Every finished step is on disk: the same command with
    --run NAME goes on where it was stopped, and nothing that was finished is played again.
    """
    screen = screens.screen()
    if list_presets:
        _show_presets(screen)
        return
    if environment is None:
        raise typer.BadParameter("say what to play, such as sonde play 20q", param_hint="ENVIRONMENT")
    from sonde.agents import inspecting, playing, plays
    from sonde.models import loading

    options: Any = {
        "episodes": episodes,
        "seed": seed,
        "max_steps": max_steps,
        "wave": wave,
        "capture": {"hook_filter": capture, "positions": positions},
        "generation": {"temperature": temperature, "max_new_tokens": max_new_tokens},
        "options": dict(screens.pair(text) for text in option or ()),
    }
    with loading.load(model, device=device, dtype=dtype) as loaded:
        settings = playing.settings_of(environment, loaded, options)
        experiment = plays.Play(loaded, environment, engine=engine)
        result = launch.launch(experiment, settings, run=run, runs=runs, engine=engine)
        first = playing.Played.of(experiment, settings, result)[0]
        if inspect:
            inspecting.inspect_episode(first.trajectory, screen, task_id=first.task_id)


def _show_presets(screen: Any) -> None:
    from sonde.agents import presets

    for name in presets.list_presets():
        found = presets.info(name)
        screen.print(f"[bold]{name}[/]  {found.summary} {len(found.task_ids)} tasks.", highlight=False)
