"""`sonde play`: an agent plays many episodes under a capture, printed while it goes and kept as a run."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

EXAMPLES = (
    "Examples: sonde play 20q --episodes 50 · sonde play 20q:0:10 --inspect · "
    "sonde play code:roman · sonde play swebench:django/django --tasks verified.jsonl -n 5 · "
    "sonde play code --capture 'blocks.*.hook_resid_post' --positions last_prompt · sonde play --resume RUN"
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
    model: Annotated[str, typer.Option("--model", "-m", help="A zoo name, a folder, a GGUF file or a hub id.")] = (
        "smollm2-135m-instruct"
    ),
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="How many episodes.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Fixes tasks and sampling.")] = 0,
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
    engine: Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")] = "local",
    run: Annotated[str | None, typer.Option(help="A name for the run.")] = None,
    resume: Annotated[str | None, typer.Option(help="Take up this run where it was interrupted.")] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Where to keep runs; $SONDE_RUNS or ./runs.")
    ] = None,
    inspect: Annotated[bool, typer.Option("--inspect", help="Print the first episode step by step.")] = False,
    list_presets: Annotated[bool, typer.Option("--list", help="List what can be played, and stop.")] = False,
) -> None:
    """Play many episodes with a model, and record what happens inside.

    Episodes go in waves: all of a wave take their step in one batch. Every finished step is on disk; an interrupted run
    goes on with --resume, and nothing that was finished is played again.
    """
    screen = screens.screen()
    if list_presets:
        _show_presets(screen)
        return
    if (environment is None) == (resume is None):
        raise typer.BadParameter("say what to play (sonde play 20q), or --resume RUN", param_hint="ENVIRONMENT")
    from sonde.agents import playing
    from sonde.store import names

    found = playing.opened_run(resume, runs) if resume else None
    run = run or names.new_run_id()
    opening = playing.model_of(found) if found else playing.loaded(model)
    with opening as loaded, _bar(screen) as told:
        if found is not None:
            with screens.stopped(screen, f"sonde play --resume {found.id}"):
                played = playing.resume(found.folder, loaded, engine=engine, on_progress=told)
        else:
            assert environment is not None
            options: Any = {
                "episodes": episodes,
                "seed": seed,
                "max_steps": max_steps,
                "wave": wave,
                "capture": {"hook_filter": capture, "positions": positions},
                "generation": {"temperature": temperature, "max_new_tokens": max_new_tokens},
                "options": dict(screens.pair(text) for text in option or ())
                | _of_swebench(environment, tasks=tasks, image=image, judge_network=judge_network, logs=logs),
                "engine": engine,
                "run": run,
                "runs_dir": runs,
            }
            _estimate(screen, environment, loaded, options)
            with screens.stopped(screen, f"sonde play --resume {run}"):
                played = playing.play(environment, loaded, on_progress=told, **options)
    _show(screen, played)
    if inspect:
        from sonde.agents import inspecting

        inspecting.inspect_episode(played[0].trajectory, screen, task_id=played[0].task_id)


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


def _estimate(screen: Any, environment: str, model: Any, options: Any) -> None:
    """Says how long it will take, from the speed of one short batch."""
    from sonde.agents import presets

    env = presets.make(environment, **options["options"])
    steps = options["max_steps"] or getattr(env, "step_limit", None)
    rows = min(options["wave"], options["episodes"])
    start = time.monotonic()
    model.generate(["Is it alive?"] * rows, max_new_tokens=6, min_new_tokens=6)
    answer = (time.monotonic() - start) / 6 * options["generation"]["max_new_tokens"]
    waves = -(-options["episodes"] // options["wave"])
    tasks = len(getattr(env, "task_ids", ()))
    told = f"{options['episodes']} episodes of {environment} ({tasks} tasks) in {waves} waves"
    if steps:
        told += f", up to {steps} steps each: at most about {screens.span(answer * steps * waves)}"
    screen.print(f"[bold]{model.cfg.model_name}[/] plays {told}.", highlight=False)
    if hasattr(env, "provisions"):
        screen.print(f"{'; '.join(env.provisions(rows))}.", highlight=False)


@contextlib.contextmanager
def _bar(screen: Any) -> Iterator[Any]:
    from rich import progress

    columns = (
        progress.TextColumn("episodes"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[told]}"),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=None, told="")

        def told(now: Any) -> None:
            speed = now.tokens / now.seconds if now.seconds else 0.0
            left = now.seconds / now.done * (now.episodes - now.done) if now.done and now.steps else None
            text = f"{now.steps} steps, {speed:.0f} tokens/s"
            text += f", {now.again} taken up" if now.again else ""
            text += f", {now.failed} failed" if now.failed else ""
            text += f", about {screens.span(left)} left" if left else ""
            bar.update(task, total=now.episodes, completed=now.done, told=text)

        yield told


def _show(screen: Any, played: Any) -> None:
    from rich import box, markup, table

    grid = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("episode", "task", "steps", "reward", ""):
        grid.add_column(name, justify="right" if name in ("steps", "reward") else "left")
    shown = list(played)[:20]
    for episode in shown:
        reward = "-" if episode.reward is None else f"{episode.reward:g}"
        cells = (episode.plan.id, episode.task_id or "-", str(episode.steps), reward, episode.error or "")
        grid.add_row(*(markup.escape(screens.said(cell)) for cell in cells))
    screen.print(grid)
    if len(played) > len(shown):
        screen.print(f"… and {len(played) - len(shown)} more episodes")
    now = played.progress
    rewards = [episode.reward for episode in played if episode.reward is not None]
    mean = f"mean reward {sum(rewards) / len(rewards):.2f} over {len(rewards)} episodes" if rewards else "no rewards"
    speed = (
        f"; {now.steps} steps in {screens.span(now.seconds)}, {now.tokens / now.seconds:.0f} tokens/s"
        if now.seconds
        else ""
    )
    screen.print(f"{mean}{speed}", highlight=False)
    screen.print(
        f"Run: {played.run.folder}   (sonde runs show {played.run.id})", soft_wrap=True, highlight=False, markup=False
    )
