"""The stage that steers: whether adding a direction keeps the model to the rules, and whether it is that direction.

1. Fit, on the games to learn from, at the last prompt token of the chosen layer: one static direction (valid minus
   invalid, all steps) and one per step. They were recorded under the prompt that they are applied under.
2. Controls for each of the two: random directions of equal norm, a direction of equal norm at right angles that looks
   like data, and what the same recipe makes of shuffled labels, as it comes.
3. Play games about other objects under every condition, paired by object and seed. The direction is added at the last
   prompt token and at every token the model says; the past is encoded without it.
4. Compare, game by game (object and seed), with the unsteered model and with the mean of the controls. For each outcome:
   mean and interval per condition, difference to the unsteered games with p-value and the smallest effect that the design
   could have seen.

Steering is said to work if, at the strength named beforehand, messages are invalid less often than unsteered *and* less
often than under the controls (the larger of the two p-values counts, Holm over the two kinds of steering). Everything else is
a table to look at.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.agents import playing
from sonde.analysis import conditions as analysis_conditions
from sonde.analysis import directions, fluency, stats
from sonde.core import errors, interventions
from sonde.studies.twenty_questions import outcomes, stages
from sonde.studies.twenty_questions import rows as study_rows
from sonde.studies.twenty_questions import settings as study_settings

BASE, STATIC, PER_STEP = "unsteered", "static", "per step"
OUTCOME = "invalid_rate"
Steering = directions.Direction | directions.PerStep
Games = Mapping[str, Mapping[int, outcomes.EpisodeOutcome]]
Conditions = Sequence[Mapping[str, Any]]


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


async def steer(context: stages.Context) -> dict[str, Any]:
    """Fits, plays and compares.

    Raises:
        AnalysisError: A class has too few rows for a direction.
    """
    rows, settings, model = stages.learned(context), context.settings, context.experiment.model
    layer, games = context.found("probe")["layer"], context.experiment.games_of(settings)
    kinds, left_out = fitted(rows, layer, settings)
    conditions = conditions_of(kinds, rows, layer, settings)
    played = await playing.play_async(
        games.test,
        model,
        episodes=settings.steer_episodes,
        conditions={one.name: one.specs for one in conditions},
        run="steer",
        seed=settings.seed + 1,
        on_progress=lambda now: context.tell("steer: games", now.done, now.total),
        **stages.common(context, context.found("collect")["temperature"], games.test_options),
    )
    fine = [one for one in played if one.error is None]
    table = _outcomes(context, fine, conditions)
    around = rows.features[layer, stages.BEFORE]
    return {
        "layer": layer,
        "norms": {name: _norm(kind) for name, kind in kinds.items()},
        "typical_norm": float(np.median(np.linalg.norm(around.astype(np.float64), axis=1))),
        "left_out": left_out,
        "conditions": [one.to_json() for one in conditions],
        "failed": len(played) - len(fine),
        **judged(table, [one.to_json() for one in conditions], settings),
    }


def fitted(
    rows: study_rows.Rows, layer: int, settings: study_settings.TwentyQuestionsSettings
) -> tuple[dict[str, Steering], dict[str, str]]:
    """The static direction and those per step (if any step has enough rows), and the steps left out."""
    site, features, table = f"blocks.{layer}.hook_resid_post", rows.features[layer, stages.BEFORE], rows.examples
    found: dict[str, Steering] = {
        STATIC: directions.contrastive(features, ~table.labels, site=site, least=settings.least)
    }
    steps = directions.per_step(features, ~table.labels, table.steps, site=site, least=settings.least)
    if steps.directions:
        found[PER_STEP] = steps
    return found, {str(step): why for step, why in steps.left_out.items()}


def conditions_of(
    kinds: Mapping[str, Steering], rows: study_rows.Rows, layer: int, settings: study_settings.TwentyQuestionsSettings
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
    held: Steering, rows: study_rows.Rows, layer: int, settings: study_settings.TwentyQuestionsSettings
) -> dict[str, Steering]:
    """Directions that mean nothing."""
    features, table = rows.features[layer, stages.BEFORE], rows.examples
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


def judged(games: Games, conditions: Conditions, settings: study_settings.TwentyQuestionsSettings) -> dict[str, Any]:
    """All comparisons, as JSON data.

    Raises:
        AnalysisError: Fewer than two games were finished under all conditions.
    """
    common = sorted(set.intersection(*(set(held) for held in games.values())))
    if len(common) < 2:
        raise errors.AnalysisError(
            f"{len(common)} games were finished under all {len(games)} conditions, two are needed: play more"
        )
    rows = {name: [held[number].values() for number in common] for name, held in games.items()}
    table = {name: {key: [row[key] for row in held] for key in outcomes.NAMES} for name, held in rows.items()}
    tests = _tests(table, conditions, settings)
    return {
        "games": len(common),
        "means": analysis_conditions.means(table),
        "versus": analysis_conditions.versus(table, conditions[0]["name"]),
        "tests": tests,
        "claim_p": min((one["adjusted"] for one in tests), default=1.0),
        "examples": _examples(games, common, conditions, settings),
    }


def _tests(
    table: analysis_conditions.Table, conditions: Conditions, settings: study_settings.TwentyQuestionsSettings
) -> list[dict[str, Any]]:
    """For each kind of steering: against the unsteered games, and against the mean of its controls."""
    found = []
    for one in conditions:
        if one["control"] is not None or one["strength"] != settings.strength:
            continue
        own = table[one["name"]][OUTCOME]
        controls = [table[other["name"]][OUTCOME] for other in conditions if _controls(other, one)]
        mean = [float(np.mean(values)) for values in np.array(controls, dtype=float).T]
        unsteered = analysis_conditions.paired(own, table[conditions[0]["name"]][OUTCOME])
        controlled = analysis_conditions.paired(own, mean)
        assert unsteered is not None
        assert controlled is not None
        better = unsteered["effect"]["value"] < 0 and controlled["effect"]["value"] < 0
        p = max(unsteered["p"], controlled["p"]) if better else 1.0
        found.append({"condition": one["name"], "unsteered": unsteered, "controls": controlled, "p": p})
    for one, adjusted in zip(found, stats.holm([one["p"] for one in found]), strict=True):
        one["adjusted"] = float(adjusted)
    return found


def _controls(other: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    return other["kind"] == one["kind"] and other["control"] is not None


def _examples(
    games: Games, common: Sequence[int], conditions: Conditions, settings: study_settings.TwentyQuestionsSettings
) -> list[dict[str, Any]]:
    """Two games by a rule: the one that steering changed most, and the one it changed as much as the median."""
    names = [one["name"] for one in conditions]
    chosen = [
        names[0],
        next(one["name"] for one in conditions if one["control"] is None and one["strength"] == settings.strength),
        next(one["name"] for one in conditions if one["control"]),
    ]
    rates = {number: [games[name][number].invalid_rate() or 0.0 for name in chosen] for number in common}
    order = sorted(common, key=lambda number: (rates[number][1] - rates[number][0], number))
    picked = {"most changed for the better": order[0], "median change": order[len(order) // 2]}
    return [
        {
            "rule": rule,
            "game": number,
            "task": games[chosen[0]][number].task_id,
            "transcripts": {name: _transcript(games[name][number]) for name in chosen},
        }
        for rule, number in picked.items()
    ]


def _transcript(game: outcomes.EpisodeOutcome) -> list[dict[str, Any]]:
    return [
        {"step": one.step, "message": one.message, "valid": one.valid, "verdict": one.answer or one.reason}
        for one in game.steps
    ]


def _outcomes(
    context: stages.Context, played: Sequence[playing.Episode], conditions: Sequence[Condition]
) -> dict[str, dict[int, outcomes.EpisodeOutcome]]:
    """How each game went, by condition and number."""
    records = [one.trajectory for one in played]
    fluent = fluency.mean_logprobs(
        context.experiment.model, records, tell=lambda _, done, total: context.tell("steer: fluency", done, total)
    )
    table: dict[str, dict[int, outcomes.EpisodeOutcome]] = {one.name: {} for one in conditions}
    for one, record, value in zip(played, records, fluent, strict=True):
        table[one.plan.condition][one.plan.episode] = outcomes.of_episode(
            record, fluency=value if np.isfinite(value) else None
        )
    return table


def _norm(held: Steering) -> Any:
    if isinstance(held, directions.Direction):
        return held.norm
    return {str(step): one.norm for step, one in held.directions.items()}
