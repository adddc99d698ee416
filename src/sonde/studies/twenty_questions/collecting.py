"""Play games to learn from, at a temperature at which both classes are well filled.

1. Pilot: a few games at each temperature; the one whose share of invalid messages is nearest to the aim is taken.
2. Play the games with the residual stream recorded.
3. Pool what was recorded into rows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sonde.agents import history, playing
from sonde.analysis import stats
from sonde.models import model as models_model
from sonde.studies.twenty_questions import rows as study_rows
from sonde.studies.twenty_questions import settings as study_settings

Tell = Callable[[str, int, int], Any]


def collect(
    model: models_model.Model,
    settings: study_settings.Settings,
    games: study_settings.Games,
    folder: Path,
    tell: Tell,
) -> dict[str, Any]:
    """Plays, and writes the rows; what was played before is not played again."""
    temperature, pilots = _temperature(model, settings, games, folder, tell)
    played = playing.play(
        games.train,
        model,
        episodes=settings.episodes,
        capture={"hook_filter": [f"blocks.{layer}.hook_resid_post" for layer in settings.layers]},
        run="collect",
        seed=settings.seed,
        on_progress=lambda now: tell("collect: games", now.done, now.total),
        **common(settings, folder, temperature, games.train_options),
    )
    fine = [(one.plan.episode, one.trajectory) for one in played if one.error is None]
    found = study_rows.of_games(fine, settings.layers, lambda done, of: tell("collect: reading", done, of))
    found.save(folder)
    table = found.examples
    return {
        "temperature": temperature,
        "pilots": pilots,
        "games": len(fine),
        "failed": len(played) - len(fine),
        "messages": len(table),
        "left_out": found.left_out,
        "invalid_rate": stats.mean_interval(table.labels, table.episodes).to_json(),
        "by_step": by_step(table),
    }


def common(settings: study_settings.Settings, folder: Path, temperature: float, options: Any) -> Any:
    """What all games of the study are played with."""
    return playing.Options(
        max_steps=settings.steps,
        wave=settings.wave,
        generation={"temperature": temperature},
        options=options,
        runs_dir=folder / "games",
    )


def by_step(table: Any) -> list[dict[str, Any]]:
    """The share of invalid messages at each step."""
    found = []
    for step in np.unique(table.steps):
        here = table.steps == step
        one = {"step": int(step), "n": int(here.sum()), "invalid": int(table.labels[here].sum())}
        if here.sum() > 1:
            one |= {"rate": stats.mean_interval(table.labels[here], table.episodes[here]).to_json()}
        found.append(one)
    return found


def _temperature(
    model: models_model.Model,
    settings: study_settings.Settings,
    games: study_settings.Games,
    folder: Path,
    tell: Tell,
) -> tuple[float, list[dict[str, Any]]]:
    """The temperature, and what the pilots gave."""
    if len(settings.temperatures) == 1:
        return settings.temperatures[0], []
    found = []
    for number, temperature in enumerate(settings.temperatures):
        played = playing.play(
            games.train,
            model,
            episodes=settings.pilot,
            run=f"pilot-{number}",
            seed=settings.seed,
            on_progress=lambda now, heat=temperature: tell(f"collect: pilot at {heat:g}", now.done, now.total),
            **common(settings, folder, temperature, games.train_options),
        )
        moments = [moment for one in played for moment in history.moments(one.trajectory)]
        invalid = sum(not moment.info["valid"] for moment in moments)
        found.append({"temperature": temperature, "messages": len(moments), "invalid": invalid})
    best = min(
        found, key=lambda one: (abs(one["invalid"] / max(one["messages"], 1) - settings.aim), one["temperature"])
    )
    return best["temperature"], found
