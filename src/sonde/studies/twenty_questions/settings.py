"""What is to be done: everything that fixes the result of the study.

Two sizes: `small` runs in minutes and shows how the study works; `full` has the episodes that its questions need.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde import store
from sonde.agents import plans
from sonde.agents.twenty_questions import objects
from sonde.analysis import examples
from sonde.core import errors

TWENTY_QUESTIONS = "20q"
#: Share of the objects that is played to learn from; steering is judged on the others.
TRAINING_SHARE = 0.75
SIZES: Mapping[str, Mapping[str, Any]] = {
    "small": {
        "episodes": 32, "steer_episodes": 12, "steps": 8, "n_layers": 6, "temperatures": (0.8,), "strengths": (4.0,),
        "random": 1, "probes": {"deals": 199, "shuffles": 1, "least": 5}, "least": 4, "permutations": 499,
    },
    "full": {
        "episodes": 128, "steer_episodes": 24, "steps": 20, "n_layers": 10, "temperatures": (0.7, 1.0, 1.3),
        "strengths": (2.0, 4.0, 8.0), "random": 2, "probes": {}, "least": 8, "permutations": 1999,
    },
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that fixes the result.

    Attributes:
        model: The model's name.
        environment: What is played; `20q`, or a name for games of the caller's own.
        options: Options of the environment, such as the oracle.
        layers: Layers whose residual stream is recorded.
        episodes: Games to learn from.
        steer_episodes: Games per condition.
        steps: Messages per game at most.
        temperatures: To choose from: the one whose invalid share is nearest to `aim`; one: no choice, no pilot.
        pilot: Games per temperature, to choose by.
        aim: The share of invalid messages that is sought.
        strengths: Multiples of the direction, both signs; the middle one is the one that is tested.
        random: Random directions per kind of steering.
        probes: See `analysis.examples.Settings`.
        least: Rows that each class must have for a direction.
        permutations: Of the evolution's noise.
        seed: Fixes tasks, sampling, folds and controls.
        wave: Games that are played at once.
    """

    model: str
    environment: str = TWENTY_QUESTIONS
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layers: tuple[int, ...]
    episodes: int
    steer_episodes: int
    steps: int
    temperatures: tuple[float, ...]
    pilot: int = 8
    aim: float = 0.4
    strengths: tuple[float, ...]
    random: int
    probes: examples.Settings
    least: int
    permutations: int
    seed: int = 0
    wave: int = 32

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        for name, least in (("episodes", 2), ("steer_episodes", 2), ("steps", 1), ("pilot", 1), ("random", 1)):
            if getattr(self, name) < least:
                raise errors.RequestError(f"{name} must be {least} or more, got {getattr(self, name)}")
        if self.episodes < self.probes.folds:
            raise errors.RequestError(
                f"{self.episodes} episodes cannot fill the {self.probes.folds} folds of the probes: play more"
            )
        if not self.layers:
            raise errors.RequestError("no layers to look at: give at least one")
        for name in ("temperatures", "strengths"):
            values = getattr(self, name)
            if not values or not all(0 < value < math.inf for value in values):
                raise errors.RequestError(f"{name} must be positive numbers, at least one, got {values}")

    @property
    def strength(self) -> float:
        """The strength that is tested."""
        return sorted(self.strengths)[len(self.strengths) // 2]

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return store.jsonable(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Settings":
        """The settings that `to_json` told of."""
        sequences = {name: tuple(told[name]) for name in ("layers", "temperatures", "strengths")}
        return cls(**{**told, **sequences, "probes": examples.Settings(**told["probes"])})


def settings_of(model: Any, size: str = "small", **changes: Any) -> Settings:
    """The settings of a size, with some changed.

    Args:
        model: The model: its name and number of layers matter.
        size: `small` or `full`.
        **changes: Fields of `Settings`; `n_layers`: that many layers, evenly spread; `probes` as a mapping.

    Raises:
        RequestError: An unknown size or field, or an impossible value.
        SiteError: A layer that the model does not have.
    """
    if size not in SIZES:
        raise errors.RequestError(f"no size {size!r}: choose one of {', '.join(SIZES)}")
    given = {**SIZES[size], **{name: value for name, value in changes.items() if value is not None}}
    count = given.pop("n_layers")
    chosen = given.get("layers")
    given["layers"] = spread(count, model.cfg.n_layers) if chosen is None else tuple(sorted(set(chosen)))
    bad = [layer for layer in given["layers"] if not 0 <= layer < model.cfg.n_layers]
    if bad:
        raise errors.SiteError(
            f"{model.cfg.model_name} has no layer {bad[0]}: its layers are 0 to {model.cfg.n_layers - 1}"
        )
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in given:
        if name not in known:
            raise errors.RequestError(f"the study has no setting {name!r}{errors.suggest(name, known)}")
    seed = given.get("seed", 0)
    given["probes"] = examples.Settings(**{"seed": seed, **given["probes"]})
    for name in ("temperatures", "strengths"):
        given[name] = tuple(float(value) for value in given[name])
    return Settings(model=model.cfg.model_name, **given)


def size_of(settings: Settings) -> str | None:
    """The size that these are the settings of, but for what a command can change; None if there is none."""
    free = ("model", "options", "layers", "episodes", "steer_episodes", "steps", "temperatures", "strengths", "seed")
    changed = {name: getattr(settings, name) for name in free}
    for size, held in SIZES.items():
        usual = {name: value for name, value in held.items() if name != "n_layers"}
        probes = examples.Settings(**{"seed": settings.seed, **held["probes"]})
        if Settings(**{**usual, **changed, "probes": probes}) == settings:
            return size
    return None


def spread(count: int, n_layers: int) -> tuple[int, ...]:
    """That many layers, evenly spread, the last one included; all if there are no more."""
    if count >= n_layers:
        return tuple(range(n_layers))
    return tuple(sorted({round(layer) for layer in np.linspace(n_layers - 1, 0, count + 1)[:-1]}))


@dataclasses.dataclass(frozen=True, slots=True)
class Games:
    """Where is it played? To learn from, and to judge steering by.

    Attributes:
        train: What makes the games to learn from.
        test: What makes those that steering is judged by.
        train_options: Options of the former, where it is a preset.
        test_options: Options of the latter.
    """

    train: plans.EnvFactory
    test: plans.EnvFactory
    train_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    test_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def twenty_questions(settings: Settings) -> Games:
    """Twenty Questions, with objects to learn from and others to judge by."""
    training, judging = split(settings.seed)
    options = {"step_limit": settings.steps, **settings.options}
    return Games(TWENTY_QUESTIONS, TWENTY_QUESTIONS, {**options, "objects": training}, {**options, "objects": judging})


def split(seed: int) -> tuple[Sequence[str], Sequence[str]]:
    """The objects' names, cut in two at random."""
    names = sorted(thing.name for thing in objects.things())
    order = np.random.default_rng([seed, 20]).permutation(len(names))
    cut = int(len(names) * TRAINING_SHARE)
    mixed = [names[index] for index in order]
    return sorted(mixed[:cut]), sorted(mixed[cut:])
