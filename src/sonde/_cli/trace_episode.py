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
    controls: Annotated[
        int,
        typer.Option(
            min=0, help="Stretches of each step's length to replace elsewhere, as a control; each costs a pass."
        ),
    ] = 5,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Where runs are kept; $SONDE_RUNS or ./runs.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where; results/influence/RUN-EPISODE if left out.")
    ] = None,
) -> None:
    """Trace an episode over time: replace what is inside one step, and see what later steps make of it.

    The words stay those that were said. For each pair of steps: how far the model's distribution over the later step's
    words moves, and how much less likely they become. Controls: the step's own values are put back, and as many tokens in
    a row are replaced elsewhere, with an interval over such stretches. All of it describes one episode.
    """
    from sonde.agents import playing
    from sonde.analysis.tracing import temporal
    from sonde.capture import trajectory
    from sonde.report import page

    if replacement not in ("mean", "zero"):
        raise typer.BadParameter(f"write mean or zero, got {replacement!r}", param_hint="--replacement")
    screen, found = screens.screen(), playing.opened_run(run, runs)
    id = _episode(found, number)
    chosen = screens.whole_numbers(layers, "--layers")
    record = trajectory.TrajectoryActivations.load(found.episodes_dir / id)
    folder = out or FOLDER / f"{found.id}-{id}"
    with screens.stopped(screen, "the same command (nothing of it is kept)"):
        with playing.model_of(found) as model, screens.bars(screen) as told:
            at = chosen if chosen is not None else [model.cfg.n_layers // 2]
            influence = temporal.influence_of_trajectory(
                model,
                record,
                layer=at,
                replacement="mean" if replacement == "mean" else "zero",
                controls=controls,
                on_progress=told,
            )
        path = page.write(report(influence, f"{found.id}/{id}"), folder)
    (folder / "influence.json").write_text(json.dumps(influence.to_json()) + "\n", encoding="utf-8")
    _show(screen, influence, path)


def report(found: Any, name: str) -> Any:
    """The page: both maps and the strongest cells."""
    from sonde.report import page

    return page.Report(
        title=f"Steps of {name} that later ones rest on",
        summary=(*sentences(found), "One episode: this describes it, and is no finding about others."),
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
    names = ("replaced step", "measured step", "KL", "drop")
    rows = [(*at, float(found.values[at]), float(found.drop[at])) for at in known]
    if found.control is None:
        return page.Table(names, tuple(rows), "Nats per token.", decimals=3)
    rows = [(*row, *_elsewhere(found.control, at)) for row, at in zip(rows, known, strict=True)]
    caption = (
        "Nats per token. Elsewhere: the mean KL if as many tokens in a row are replaced elsewhere in what was said before the "
        "reply after the step, with its 95 % interval over such stretches of this episode; none where none fits."
    )
    return page.Table((*names, "KL elsewhere", "stretches", "of them below"), tuple(rows), caption, decimals=3)


def _elsewhere(control: Any, at: tuple[int, int]) -> tuple[Any, ...]:
    """What the stretches did, for a row of the table."""
    from sonde.report import wording

    if not control.n[at]:
        return None, 0, None
    known = bool(control.n[at] > 1)
    mean = float(control.mean[at])
    shown = wording.Interval(mean, float(control.low[at]), float(control.high[at])) if known else mean
    return shown, int(control.n[at]), float(control.below[at])


def _episode(run: Any, number: str) -> str:
    """The id of an episode that was played without interventions."""
    from sonde.agents import plans
    from sonde.core import errors

    ids = run.episode_ids()
    id = f"{int(number):05d}" if number.isdecimal() else number
    if id not in ids:
        known = f"{ids[0]} to {ids[-1]}" if ids else "none"
        raise errors.RequestError(f"run {run.id} has no episode {number!r}: it has {known}")
    settings = plans.PlaySettings.from_json(run.manifest["settings"])
    under = next((settings.conditions[plan.condition] for plan in settings.plans() if plan.id == id), ())
    if under:
        raise errors.RequestError(
            f"episode {id} of run {run.id} was played under {len(under)} interventions, which a trace would not apply: "
            "trace an episode that was played without"
        )
    return id


def sentences(found: Any) -> tuple[str, ...]:
    """What may be said of the map: its strongest cell, and what the controls say to it."""
    import numpy as np

    if not np.isfinite(found.values).any():
        return ("No step has a later one to be measured in.",)
    i, j = np.unravel_index(int(np.nanargmax(found.values)), found.values.shape)
    told = [
        f"Step {j} rests most on step {i}: replacing it moves its words by {found.values[i, j]:.3f} nats per token."
    ]
    if found.control is not None and found.control.n[i, j]:
        told.append(
            f"As many tokens in a row elsewhere: {found.control.mean[i, j]:.3f} on average over {found.control.n[i, j]} "
            f"stretches, {found.control.below[i, j]:.0%} of them below the step."
        )
    elif found.control is not None:
        told.append(f"Step {i} has no control: nothing else as long was said before the reply after it.")
    if found.sham is not None:
        told.append(f"Putting a step's own values back moves words by at most {found.sham:.1g} nats per token.")
    return tuple(told)


def _show(screen: Any, found: Any, path: Path) -> None:
    import dataclasses

    from sonde.report import terminal

    whole = table(found)
    first = dataclasses.replace(whole, rows=whole.rows[:10], caption="The ten strongest; nats per token.")
    for sentence in sentences(found):
        screen.print(sentence, highlight=False)
    screen.print(terminal.table(first))
    screen.print(f"Report: {path}", soft_wrap=True, highlight=False, markup=False)
