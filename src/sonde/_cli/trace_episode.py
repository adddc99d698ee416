"""`sonde trace episode`: which earlier step of an episode each later one rests on."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde._cli import screens

EXAMPLES = "Examples: sonde trace episode RUN 0 · sonde trace episode RUN 3 --layers 10 --replacement zero"
FOLDER = Path("results") / "influence"


def episode(
    run: Annotated[str, typer.Argument(help="A run of sonde play: its id or folder.")],
    number: Annotated[str, typer.Argument(metavar="EPISODE", help="Which of its episodes, such as 0.")],
    layers: Annotated[
        str | None, typer.Option(help="Layers whose input is replaced, such as 10 or 5,10; the middle one if left out.")
    ] = None,
    replacement: Annotated[str, typer.Option(help="By what: mean (over the episode) or zero.")] = "mean",
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Where runs are kept; $SONDE_RUNS or ./runs.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where; results/influence/RUN-EPISODE if left out.")
    ] = None,
) -> None:
    """Trace an episode over time: replace what is inside one step, and see what later steps make of it.

    The words stay those that were said. For each pair of steps: how far the model's distribution over the later step's
    words moves, and how much less likely they become. This describes one episode; it has no interval.
    """
    from rich import console

    from sonde.agents import playing
    from sonde.analysis.tracing import temporal
    from sonde.capture import trajectory
    from sonde.models import loading
    from sonde.report import page

    if replacement not in ("mean", "zero"):
        raise typer.BadParameter(f"write mean or zero, got {replacement!r}", param_hint="--replacement")
    screen, found = console.Console(), playing.opened_run(run, runs)
    id = _episode(found, number)
    chosen = screens.whole_numbers(layers, "--layers")
    record = trajectory.TrajectoryActivations.load(found.episodes_dir / id)
    folder = out or FOLDER / f"{found.id}-{id}"
    with screens.stopped(screen, "the same command (nothing of it is kept)"):
        with loading.load(found.manifest["settings"]["model"]) as model, screens.bars(screen) as told:
            at = chosen if chosen is not None else [model.cfg.n_layers // 2]
            influence = temporal.influence_of_trajectory(
                model, record, layer=at, replacement="mean" if replacement == "mean" else "zero", on_progress=told
            )
        path = page.write(report(influence, f"{found.id}/{id}"), folder)
    (folder / "influence.json").write_text(json.dumps(influence.to_json()) + "\n", encoding="utf-8")
    _show(screen, influence, path)


def report(found: Any, name: str) -> Any:
    """The page: both maps and the strongest cells."""
    from sonde.report import page

    return page.Report(
        title=f"Steps of {name} that later ones rest on",
        summary=(_sentence(found), "One episode: this describes it, and is no finding about others."),
        sections=(
            page.Section(
                "Influence",
                "The stream into the layer is replaced at all positions of the patched step, prompt and reply; the words "
                "stay those that were said.",
                charts=tuple(heatmap(found, key) for key in ("values", "drop")),
                tables=(table(found),),
            ),
        ),
        settings={"episode": name, "layers": list(found.layers), "replacement": found.replacement},
        command=shlex.join(["sonde", *sys.argv[1:]]),
    )


def heatmap(found: Any, key: str) -> Any:
    """Patched steps down, measured steps across."""
    from sonde.report import charts

    cells, steps = getattr(found, key), tuple(str(at) for at in range(len(found.steps)))
    titles = {"values": "How far the words of a step move", "drop": "How much less likely the words of a step become"}
    values = {"values": "KL(clean || patched), nats per token", "drop": "drop of log-probability, nats per token"}
    return charts.Heatmap(
        key=f"influence-{key}",
        title=f"{titles[key]} if an earlier step is replaced",
        cells=cells,
        rows=steps,
        columns=steps,
        x_name="measured step",
        y_name="replaced step",
        value_name=values[key],
        caption=f"Stream into layer {', '.join(map(str, found.layers))} replaced by its {found.replacement}. Only later "
        "steps are measured.",
        centred=key == "drop",
    )


def table(found: Any) -> Any:
    """The pairs of steps, the strongest first."""
    import numpy as np

    from sonde.report import page

    known = [(int(i), int(j)) for i, j in np.argwhere(np.isfinite(found.values))]
    known.sort(key=lambda at: -found.values[at])
    rows = tuple((i, j, float(found.values[i, j]), float(found.drop[i, j])) for i, j in known)
    return page.Table(("replaced step", "measured step", "KL", "drop"), rows, "Nats per token.", decimals=3)


def _episode(run: Any, number: str) -> str:
    """The id of an episode that was played without interventions."""
    from sonde.agents import plans
    from sonde.core import errors

    ids = run.episode_ids()
    id = f"{int(number):05d}" if number.isdecimal() else number
    if id not in ids:
        known = f"{ids[0]} to {ids[-1]}" if ids else "none"
        raise errors.RequestError(f"run {run.id} has no episode {number!r}: it has {known}")
    settings = plans.Settings.from_json(run.manifest["settings"])
    under = next((settings.conditions[plan.condition] for plan in settings.plans() if plan.id == id), ())
    if under:
        raise errors.RequestError(
            f"episode {id} of run {run.id} was played under {len(under)} interventions, which a trace would not apply: "
            "trace an episode that was played without"
        )
    return id


def _sentence(found: Any) -> str:
    import numpy as np

    if not np.isfinite(found.values).any():
        return "No step has a later one to be measured in."
    i, j = np.unravel_index(int(np.nanargmax(found.values)), found.values.shape)
    return f"Step {j} rests most on step {i}: replacing it moves its words by {found.values[i, j]:.3f} nats per token."


def _show(screen: Any, found: Any, path: Path) -> None:
    import dataclasses

    from sonde.report import terminal

    whole = table(found)
    first = dataclasses.replace(whole, rows=whole.rows[:10], caption="The ten strongest; nats per token.")
    screen.print(_sentence(found), highlight=False)
    screen.print(terminal.table(first))
    screen.print(f"Report: {path}", soft_wrap=True, highlight=False, markup=False)
