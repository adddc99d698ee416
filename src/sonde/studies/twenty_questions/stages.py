"""The stages that learn: play and record games, probe the coming verdict, follow the direction over steps.

1. `collect`, pilot: a few games at each temperature; the one whose share of invalid messages is nearest to the aim is
   taken. Then games are played with the residual stream recorded, and pooled into rows.
2. `probe`: a map of every layer x pooling x (all steps, each step), and headlines. Before speaking: the layer is chosen on
   training episodes, at the last prompt token. After speaking, for what it is worth: the message is in view then. For one
   step: step and layer are chosen on training episodes.
3. `evolution`: whether the direction from invalid to valid changes from step to step.
"""

import contextlib
from typing import Any

import numpy as np

from sonde import experiments
from sonde.agents import history, playing
from sonde.analysis import baselines, evolution, examples, jackknife, probes, stats
from sonde.core import errors
from sonde.studies.twenty_questions import claims as study_claims
from sonde.studies.twenty_questions import rows as study_rows
from sonde.studies.twenty_questions import settings as study_settings

BEFORE = "last_prompt"
AFTER = tuple(name for name, moment in examples.POOLINGS.items() if moment == "after")
Context = experiments.Context[study_settings.TwentyQuestionsSettings]


async def collect(context: Context) -> dict[str, Any]:
    """Plays, and writes the rows; what was played before is not played again."""
    settings, games = context.settings, context.experiment.games_of(context.settings)
    temperature, pilots = await _temperature(context, games)
    played = await playing.play_async(
        games.train,
        context.experiment.model,
        episodes=settings.episodes,
        capture={"hook_filter": [f"blocks.{layer}.hook_resid_post" for layer in settings.layers]},
        run="collect",
        seed=settings.seed,
        on_progress=lambda now: context.tell("collect: games", now.done, now.total),
        **common(context, temperature, games.train_options),
    )
    fine = [(one.plan.episode, one.trajectory) for one in played if one.error is None]
    found = study_rows.of_games(fine, settings.layers, context.tell)
    found.save(context.folder)
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


def common(context: Context, temperature: float, options: Any) -> Any:
    """What all games of the study are played with."""
    return playing.Options(
        max_steps=context.settings.steps,
        wave=context.settings.wave,
        generation={"temperature": temperature},
        options=options,
        runs_dir=context.folder / "games",
        engine=context.engine,
    )


def by_step(table: examples.Examples) -> list[dict[str, Any]]:
    """The share of invalid messages at each step."""
    found = []
    for step in np.unique(table.steps):
        here = table.steps == step
        one = {"step": int(step), "n": int(here.sum()), "invalid": int(table.labels[here].sum())}
        if here.sum() > 1:
            one |= {"rate": stats.mean_interval(table.labels[here], table.episodes[here]).to_json()}
        found.append(one)
    return found


def probe(context: Context) -> dict[str, Any]:
    """The map and the headlines.

    Raises:
        AnalysisError: One class only, too few episodes for the folds.
    """
    rows, chosen = learned(context), context.settings.probes
    table = rows.examples
    steps = sorted(set(table.steps.tolist()))
    cells = {
        examples.Cell(layer, pooling, step): features
        for (layer, pooling), features in rows.features.items()
        for step in (None, *steps)
    }
    layers = {cell: values for cell, values in cells.items() if cell.step is None}
    headlines = {
        "before": {cell: values for cell, values in layers.items() if cell.pooling == BEFORE},
        "after": {cell: values for cell, values in layers.items() if cell.pooling in AFTER},
        "step": {cell: values for cell, values in cells.items() if cell.pooling == BEFORE and cell.step is not None},
    }
    told: dict[str, Any] = {}
    with one_thread():
        found = probes.sweep(cells, table, chosen, progress=lambda done, of: context.tell("probe: map", done, of))
        for name, held in headlines.items():
            try:
                result = probes.nested(
                    held, table, chosen, progress=lambda done, of, n=name: context.tell(f"probe: {n}", done, of)
                )
                told[name] = {**result.to_json(), "claim_p": claim_p(result)}
            except errors.AnalysisError as error:
                if name != "step":  # single steps may be too thin, which is a result; all steps together may not
                    raise
                told[name] = {"skipped": str(error)}
    return {"sweep": found.to_json(), "nested": told, "layer": told["before"]["modal"]["layer"]}


def claim_p(result: probes.Nested) -> float:
    """The p-value of the claim as a whole: above chance, and above everything that is known anyway."""
    known = [gain for name, gain in result.gains.items() if name in baselines.KNOWN]
    if result.scored.auroc.value <= 0.5 or any(gain.difference.value <= 0 for gain in known):
        return 1.0
    return max(result.p, *(gain.adjusted for gain in known))


def evolve(context: Context) -> dict[str, Any]:
    """How the direction changes over steps, beside what noise gives."""
    rows, layer, settings = learned(context), context.found("probe")["layer"], context.settings
    context.tell("evolution", 0, 1)
    table, features = rows.examples, rows.features[layer, BEFORE].astype("float64")
    options = evolution.Options(least=settings.least, permutations=settings.permutations, seed=settings.seed)
    try:
        with one_thread():
            found = evolution.evolution(features, ~table.labels, table.steps, table.episodes, options)
    except errors.AnalysisError as error:  # no step has enough rows: a result, too
        return {"layer": layer, "skipped": str(error), "claim_p": 1.0}
    context.tell("evolution", 1, 1)
    return {"layer": layer, **found.to_json(), "claim_p": study_claims.change_p(found)}


def learned(context: Context) -> study_rows.Rows:
    """The rows to learn from; asks for the stage that makes them."""
    context.found("collect")
    return study_rows.Rows.load(context.folder)


def one_thread() -> contextlib.AbstractContextManager[Any]:
    """Small matrices gain nothing from threads, and their number changes the last bits."""
    return jackknife.imported("threadpoolctl", "probing").threadpool_limits(1)


async def _temperature(context: Context, games: study_settings.Games) -> tuple[float, list[dict[str, Any]]]:
    """The temperature, and what the pilots gave."""
    settings, found = context.settings, []
    if len(settings.temperatures) == 1:
        return settings.temperatures[0], []
    for number, temperature in enumerate(settings.temperatures):
        played = await playing.play_async(
            games.train,
            context.experiment.model,
            episodes=settings.pilot,
            run=f"pilot-{number}",
            seed=settings.seed,
            on_progress=lambda now, heat=temperature: context.tell(f"collect: pilot at {heat:g}", now.done, now.total),
            **common(context, temperature, games.train_options),
        )
        moments = [moment for one in played for moment in history.moments(one.trajectory)]
        invalid = sum(not moment.info["valid"] for moment in moments)
        found.append({"temperature": temperature, "messages": len(moments), "invalid": invalid})
    best = min(
        found, key=lambda one: (abs(one["invalid"] / max(one["messages"], 1) - settings.aim), one["temperature"])
    )
    return best["temperature"], found
