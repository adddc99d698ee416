"""`sonde play`: an agent plays many episodes under a capture, printed while it goes and kept as a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import launch, screens

EXAMPLES = (
    "Examples: sonde play 20q --episodes 50 · sonde play 20q:0:10 --inspect · "
    "sonde play code:roman · sonde play swebench:django/django --tasks verified.jsonl -n 5 · "
    "sonde play code --capture 'blocks.*.hook_resid_post' --positions last_prompt --run mine"
)
app = typer.Typer()


@app.command(epilog=EXAMPLES)
def play(
    environment: Annotated[
        str | None,
        typer.Argument(
            help="What to play: a preset, with selectors such as 20q:0:10, code:roman or 20q@1/4. See --list."
        ),
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
    tasks: Annotated[
        str | None,
        typer.Option(help="SWE-bench: a file (.json, .jsonl, .parquet), a folder of tasks, or a dataset of the hub."),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="SWE-bench: names each image, such as 'mirror/sweb.eval.x86_64.{key}'; else as the tasks say."
        ),
    ] = None,
    judge_network: Annotated[
        bool, typer.Option("--judge-network", help="SWE-bench: judge with a network, as its own harness does.")
    ] = False,
    logs: Annotated[Path | None, typer.Option(help="SWE-bench: keep the log of every judging in this folder.")] = None,
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
        "options": dict(screens.pair(text) for text in option or ())
        | _of_swebench(environment, tasks=tasks, image=image, judge_network=judge_network, logs=logs),
    }
    with loading.load(model, device=device, dtype=dtype) as loaded:
        settings = playing.settings_of(environment, loaded, options)
        experiment = plays.Play(loaded, environment, engine=engine)
        result = launch.launch(experiment, settings, run=run, runs=runs, engine=engine)
        first = playing.Played.of(experiment, settings, result)[0]
        if inspect:
            inspecting.inspect_episode(first.trajectory, screen, task_id=first.task_id)


def _of_swebench(environment: str, **given: Any) -> dict[str, Any]:
    """The options that only SWE-bench has, as they were given; paths are good from any folder."""
    chosen = {name: value for name, value in given.items() if value}
    if chosen and not environment.startswith("swebench"):
        raise typer.BadParameter("is for `sonde play swebench` only", param_hint=f"--{min(chosen).replace('_', '-')}")
    for name in ("tasks", "logs"):
        if name in chosen and (name == "logs" or Path(chosen[name]).exists()):
            chosen[name] = str(Path(chosen[name]).resolve())
    return chosen


def _show_presets(screen: Any) -> None:
    from sonde.agents import presets

    for name in presets.list_presets():
        found = presets.info(name)
        tasks = f"Tasks: {found.source}" if found.source else f"{len(found.task_ids)} tasks"
        screen.print(f"[bold]{name}[/]  {found.summary} {tasks}.", highlight=False)
