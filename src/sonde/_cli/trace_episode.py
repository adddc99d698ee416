"""`sonde trace episode`: which earlier step of an episode each later one rests on."""

from typing import Annotated, Any

import typer

from sonde._cli import launch, screens

EXAMPLES = "Examples: sonde trace episode RUN 0 · sonde trace episode RUN 3 --layers 10 --replacement zero --run mine"


def episode(
    played: Annotated[str, typer.Argument(metavar="RUN", help="A run of sonde play: its id or folder.")],
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
    run: launch.RunName = None,
    runs: launch.RunsDir = None,
    engine: launch.Engine = "local",
) -> None:
    """Trace an episode over time: replace what is inside one step, and see what later steps make of it.

    The words stay those that were said. For each pair of steps: how far the model's distribution over the later step's
    words moves, and how much less likely they become. Controls: the step's own values are put back, and as many tokens in
    a row are replaced elsewhere, with an interval over such stretches. All of it describes one episode.
    """
    from sonde.agents import playing
    from sonde.analysis.tracing import episode as tracing_episode

    found, chosen = playing.opened_run(played, runs), screens.whole_numbers(layers, "--layers")
    id = tracing_episode.id_of(found, number)
    asked: Any = {"replacement": replacement, "controls": controls}
    with playing.model_of(found) as model:
        traced = tracing_episode.EpisodeTrace(model, found)
        settings = traced.settings(id, layers=chosen, **asked)
        launch.launch(traced, settings, run=run, runs=runs, engine=engine)
