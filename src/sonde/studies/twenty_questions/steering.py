"""Does adding a direction keep the model to the rules, and is it that direction that does it?

1. Fit, on the games to learn from, at the last prompt token of the chosen layer: one static direction (valid minus
   invalid, all steps) and one per step. They were recorded under the prompt that they are applied under.
2. Controls for each of the two: random directions of equal norm, a direction of equal norm at right angles that looks
   like data, and what the same recipe makes of shuffled labels, as it comes.
3. Play games about other objects under every condition, paired by object and seed. The direction is added at the last
   prompt token and at every token the model says; the past is encoded without it.
4. Compare, game by game, with the unsteered model and with the mean of the controls.

Steering is said to work if, at the strength named beforehand, messages are invalid less often than unsteered *and* less
often than under the controls (the larger of the two p-values counts, Holm over the two kinds of steering).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde.agents import playing
from sonde.analysis import directions, fluency
from sonde.core import interventions
from sonde.models import model as models_model
from sonde.studies.twenty_questions import collecting, judging, outcomes, probing
from sonde.studies.twenty_questions import rows as study_rows
from sonde.studies.twenty_questions import settings as study_settings

BASE, STATIC, PER_STEP = "unsteered", "static", "per step"
Steering = directions.Direction | directions.PerStep


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """What a game is played under.

    Attributes:
        name: Its name.
        kind: `unsteered`, `static` or `per step`.
        strength: Multiple of the direction.
        control: Which control, or None for the direction itself.
        specs: The interventions.
    """

    name: str
    kind: str
    strength: float
    control: str | None
    specs: tuple[interventions.Intervention, ...]

    def to_json(self) -> dict[str, Any]:
        """Without the interventions: the run of the games has them."""
        return {"name": self.name, "kind": self.kind, "strength": self.strength, "control": self.control}


def steer(
    model: models_model.Model,
    settings: study_settings.Settings,
    games: study_settings.Games,
    folder: Path,
    learned: tuple[study_rows.Rows, float, int],
    tell: Callable[[str, int, int], Any],
) -> dict[str, Any]:
    """Fits, plays and compares.

    Args:
        model: The model.
        settings: The study's.
        games: Where it is played.
        folder: The study's.
        learned: Rows to learn from, the temperature, and the layer.
        tell: Told of progress.

    Raises:
        AnalysisError: A class has too few rows for a direction.
    """
    rows, temperature, layer = learned
    kinds, left_out = fitted(rows, layer, settings)
    conditions = conditions_of(kinds, rows, layer, settings)
    played = playing.play(
        games.test,
        model,
        episodes=settings.steer_episodes,
        conditions={one.name: one.specs for one in conditions},
        run="steer",
        seed=settings.seed + 1,
        on_progress=lambda now: tell("steer: games", now.done, now.total),
        **collecting.common(settings, folder, temperature, games.test_options),
    )
    fine = [one for one in played if one.error is None]
    records = [one.trajectory for one in fine]
    fluent = fluency.mean_logprobs(model, records, on_progress=lambda done, of: tell("steer: fluency", done, of))
    table: dict[str, dict[int, outcomes.EpisodeOutcome]] = {one.name: {} for one in conditions}
    for one, record, value in zip(fine, records, fluent, strict=True):
        table[one.plan.condition][one.plan.episode] = outcomes.of_episode(
            record, fluency=value if np.isfinite(value) else None
        )
    around = rows.features[layer, probing.BEFORE]
    return {
        "layer": layer,
        "norms": {name: _norm(kind) for name, kind in kinds.items()},
        "typical_norm": float(np.median(np.linalg.norm(around.astype(np.float64), axis=1))),
        "left_out": left_out,
        "conditions": [one.to_json() for one in conditions],
        "failed": len(played) - len(fine),
        **judging.judged(table, [one.to_json() for one in conditions], settings),
    }


def fitted(
    rows: study_rows.Rows, layer: int, settings: study_settings.Settings
) -> tuple[dict[str, Steering], dict[str, str]]:
    """The static direction and those per step (if any step has enough rows), and the steps left out."""
    site, features, table = f"blocks.{layer}.hook_resid_post", rows.features[layer, probing.BEFORE], rows.examples
    found: dict[str, Steering] = {
        STATIC: directions.contrastive(features, ~table.labels, site=site, least=settings.least)
    }
    steps = directions.per_step(features, ~table.labels, table.steps, site=site, least=settings.least)
    if steps.directions:
        found[PER_STEP] = steps
    return found, {str(step): why for step, why in steps.left_out.items()}


def conditions_of(
    kinds: Mapping[str, Steering], rows: study_rows.Rows, layer: int, settings: study_settings.Settings
) -> list[Condition]:
    """Unsteered, every kind at both signs, and the controls at the strength that is tested."""
    found = [Condition(BASE, BASE, 0.0, None, ())]
    for kind, held in kinds.items():
        strengths = settings.strengths if kind == STATIC else (settings.strength,)
        signed = sorted({sign * one for one in strengths for sign in (-1, 1)})
        found += [Condition(f"{kind} {one:+g}", kind, one, None, specs_of(held, one)) for one in signed]
    for kind, held in kinds.items():
        for name, control in controls_of(held, rows, layer, settings).items():
            specs = specs_of(control, settings.strength)
            found.append(Condition(f"{kind} {name}", kind, settings.strength, name, specs))
    return found


def controls_of(
    held: Steering, rows: study_rows.Rows, layer: int, settings: study_settings.Settings
) -> dict[str, Steering]:
    """Directions that mean nothing."""
    features, table = rows.features[layer, probing.BEFORE], rows.examples
    names = [*(f"random {number}" for number in range(1, settings.random + 1)), "shuffled", "orthogonal"]
    made: dict[str, Steering] = {}
    for number, name in enumerate(names):
        rng = np.random.default_rng([settings.seed, 4, number])

        def control(one: directions.Direction, name: str = name, rng: np.random.Generator = rng) -> Any:
            here = np.ones(len(table), dtype=np.bool_) if one.steps is None else np.isin(table.steps, one.steps)
            if name == "shuffled":
                rest = (~table.labels[here], table.episodes[here], rng)
                return directions.shuffled_direction(features[here], *rest, like=one, steps=table.steps[here])
            if name == "orthogonal":
                return directions.orthogonal_direction(one, rng, within=features[here])
            return directions.random_directions(one, 1, rng)[0]

        if isinstance(held, directions.Direction):
            made[name] = control(held)
        else:
            made[name] = directions.PerStep({step: control(one) for step, one in held.directions.items()}, {})
    return made


def specs_of(held: Steering, strength: float) -> tuple[interventions.Intervention, ...]:
    """At the last prompt token of each step, and at every token said in it."""
    each: Sequence[directions.Direction] = (
        [held] if isinstance(held, directions.Direction) else list(held.directions.values())
    )
    found: list[interventions.Intervention] = []
    for one in each:
        found.append(one.steer(strength, positions=(-1,)))
        found.append(dataclasses.replace(one.steer(strength, phase="decode"), scope="new"))
    return tuple(found)


def _norm(held: Steering) -> Any:
    if isinstance(held, directions.Direction):
        return held.norm
    return {str(step): one.norm for step, one in held.directions.items()}
