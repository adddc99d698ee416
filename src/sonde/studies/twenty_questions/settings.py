"""The settings of the study: everything that fixes its result.

Two sizes: `small` runs in minutes and shows how the study works; `full` has the episodes that its questions need.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pydantic

from sonde import store
from sonde.agents import plans
from sonde.agents.twenty_questions import objects
from sonde.analysis import examples
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.models import model as models_model

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
_FREE = ("model", "options", "layers", "episodes", "steer_episodes", "steps", "temperatures", "strengths", "seed")
Positive = Annotated[float, pydantic.Field(gt=0)]


class TwentyQuestionsSettings(core_settings.Settings):
    """Everything that fixes the result."""

    model: str = core_settings.field(..., "The model's name.")
    environment: str = core_settings.field(
        TWENTY_QUESTIONS, "What is played; `20q`, or a name for games of the caller's own.", option=""
    )
    options: dict[str, Any] = core_settings.field({}, "Of the game, such as the oracle.", option="--option")
    layers: tuple[int, ...] = core_settings.field(..., "Layers whose residual stream is recorded.", min_length=1)
    episodes: int = core_settings.field(..., "Games to learn from.", ge=2)
    steer_episodes: int = core_settings.field(..., "Games per condition of steering.", ge=2)
    steps: int = core_settings.field(..., "Messages per game at most.", ge=1)
    temperatures: tuple[Positive, ...] = core_settings.field(
        ..., "To choose from: the one whose invalid share is nearest to `aim`; one: no choice, no pilot.", min_length=1
    )
    pilot: int = core_settings.field(8, "Games per temperature, to choose by.", option="", ge=1)
    aim: float = core_settings.field(0.4, "The share of invalid messages that is sought.", option="")
    strengths: tuple[Positive, ...] = core_settings.field(
        ..., "Multiples of the direction, both signs; the middle one is the one that is tested.", min_length=1
    )
    random: int = core_settings.field(..., "Random directions per kind of steering.", option="", ge=1)
    probes: examples.Settings = core_settings.field(..., "See `analysis.examples.Settings`.", option="")
    least: int = core_settings.field(..., "Rows that each class must have for a direction.", option="")
    permutations: int = core_settings.field(..., "Of the evolution's noise.", option="")
    seed: int = core_settings.field(0, "Fixes tasks, sampling, folds and controls.", ge=0)
    wave: int = core_settings.field(32, "Games that are played at once.", option="", ge=1)

    @pydantic.model_validator(mode="after")
    def _fill_the_folds(self) -> "TwentyQuestionsSettings":
        if self.episodes < self.probes.folds:
            raise ValueError(
                f"{self.episodes} episodes cannot fill the {self.probes.folds} folds of the probes: play more"
            )
        return self

    @property
    def strength(self) -> float:
        """The strength that is tested."""
        return sorted(self.strengths)[len(self.strengths) // 2]

    @property
    def size(self) -> str | None:
        """The size that these are the settings of, but for what a command can change; None if there is none."""
        changed = {name: getattr(self, name) for name in _FREE}
        for size, held in SIZES.items():
            usual = {name: value for name, value in held.items() if name not in ("n_layers", *changed)}
            probes = examples.Settings(**{"seed": self.seed, **held["probes"]})
            if TwentyQuestionsSettings(**{**usual, **changed, "probes": probes}) == self:
                return size
        return None

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON data; an oracle of one's own, which JSON lacks, as its repr."""
        return store.jsonable(self.model_dump())

    def typed(self) -> list[str]:
        """The command-line options for these settings."""
        return [*(["--full"] if self.size == "full" else []), *super().typed()]


def settings_of(model: models_model.Model, size: str = "small", **changes: Any) -> TwentyQuestionsSettings:
    """The settings of a size, with some changed.

    Args:
        model: The model: its name and number of layers matter.
        size: `small` or `full`.
        **changes: Fields of the settings; None keeps the size's; `n_layers`: that many layers, evenly spread; `probes` as
            a mapping.

    Raises:
        RequestError: An unknown size or field, or an impossible value.
        SiteError: A layer that the model does not have.
    """
    if size not in SIZES:
        raise errors.RequestError(f"no size {size!r}: choose one of {', '.join(SIZES)}")
    given = {**SIZES[size], **{name: value for name, value in changes.items() if value is not None}}
    count, chosen = given.pop("n_layers"), given.get("layers")
    given["layers"] = spread(count, model.cfg.n_layers) if chosen is None else tuple(sorted(set(chosen)))
    bad = [layer for layer in given["layers"] if not 0 <= layer < model.cfg.n_layers]
    if bad:
        raise errors.SiteError(
            f"{model.cfg.model_name} has no layer {bad[0]}: its layers are 0 to {model.cfg.n_layers - 1}"
        )
    given["probes"] = examples.Settings(**{"seed": given.get("seed", 0), **given["probes"]})
    return TwentyQuestionsSettings(model=model.cfg.model_name, **given)


def spread(count: int, n_layers: int) -> tuple[int, ...]:
    """That many layers, evenly spread, the last one included; all if there are no more."""
    if count >= n_layers:
        return tuple(range(n_layers))
    return tuple(sorted({round(layer) for layer in np.linspace(n_layers - 1, 0, count + 1)[:-1]}))


@dataclasses.dataclass(frozen=True, slots=True)
class Games:
    """Where it is played: to learn from, and to judge steering by.

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


def twenty_questions(settings: TwentyQuestionsSettings) -> Games:
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
