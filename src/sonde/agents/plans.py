"""What is to be played: settings that can be written down, sent elsewhere and taken up again.

Episodes are cut into waves. A wave is one work item: its episodes go step by step together, and nothing outside of it
has a part in its numbers, so that seed, wave size and thread count fix the result to the last bit.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pydantic
import torch

from sonde import store
from sonde.agents import presets
from sonde.core import errors, interventions, sites
from sonde.store import damage, schemas

EnvFactory = str | Callable[[], Any]
MOST = 10_000_000  # episodes of a run
#: Options of an environment or a client: whatever they take; what JSON lacks is written down as its repr.
Options = Annotated[dict[str, Any], pydantic.PlainSerializer(store.jsonable, when_used="json")]
Conditions = Mapping[str, tuple[interventions.Intervention, ...]]


def threads() -> Any:
    """A field of settings for torch's threads, which are part of what fixes the last bits."""
    extra: Any = {"option": ""}
    return pydantic.Field(
        default_factory=torch.get_num_threads, ge=1, description="Threads of torch.", json_schema_extra=extra
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One episode to play.

    Attributes:
        index: Its place among all; its id on disk.
        episode: Which task, by the environment's seeded order, and which random numbers.
        condition: The name of the interventions it is played under.
        branch: 0, or which continuation of an episode it is: each has random numbers of its own.
    """

    index: int
    episode: int
    condition: str = ""
    branch: int = 0

    @property
    def id(self) -> str:
        """Its folder's name."""
        return f"{self.index:05d}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that fixes the result of playing.

    Attributes:
        environment: A selection such as `20q:0:10`; None if the user brought a function.
        options: Options of the environment.
        model: The model's name.
        episodes: How many episodes per condition.
        conditions: Interventions by name; episodes of equal number are paired across conditions.
        seed: Fixes tasks and sampling.
        max_steps: Stop an episode after so many steps.
        wave: Episodes that go together.
        capture: `sites` (names), `positions`, `dtype`; no sites: tokens only.
        generation: Sampling settings of the client, and `context_policy`.
        threads: Threads of torch.
    """

    environment: str | None
    options: Mapping[str, Any]
    model: str
    episodes: int
    conditions: Conditions
    seed: int = 0
    max_steps: int | None = None
    wave: int = 16
    capture: Mapping[str, Any]
    generation: Mapping[str, Any]
    threads: int

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        for name, least in (("episodes", 1), ("wave", 1), ("threads", 1), ("max_steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise errors.RequestError(f"{name} must be a whole number from {least} up, got {value!r}")
        if not self.conditions:
            raise errors.RequestError("there are no conditions to play under: leave them out, or give at least one")

    def plans(self) -> list[Plan]:
        """All episodes, conditions of one episode side by side."""
        return [plan for number in range(self._wave_count()) for plan in self.wave_at(number)]

    def waves(self) -> list[list[Plan]]:
        """The work items."""
        return [self.wave_at(number) for number in range(self._wave_count())]

    def wave_at(self, number: int) -> list[Plan]:
        """One work item, without making the others."""
        names, start = list(self.conditions), number * self.wave
        stop = min(start + self.wave, self.episodes * len(names))
        return [Plan(index, index // len(names), names[index % len(names)]) for index in range(start, stop)]

    def _wave_count(self) -> int:
        return -(-self.episodes * len(self.conditions) // self.wave)

    @property
    def opaque(self) -> list[str]:
        """What cannot be written down: replay and other machines are out of reach with it."""
        specs = [spec for held in self.conditions.values() for spec in held]
        found = [spec.name for spec in specs if isinstance(spec, interventions.Opaque)]
        return found if self.environment else ["an environment given as a function", *found]

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON data; what is opaque is named only."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain["conditions"] = {name: written(held) for name, held in self.conditions.items()}
        return store.jsonable(plain)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Settings":
        """Reads what `to_json` wrote.

        Raises:
            OpaqueError: It holds something that could only be named.
            RequestError: It is something else.
        """
        try:
            schemas.check(dict(data), SETTINGS)
            conditions = {name: read(held) for name, held in data["conditions"].items()}
            return cls(**{**data, "conditions": conditions})
        except damage.UnreadableError as error:
            raise errors.RequestError(f"these are no settings of play: {error}") from error


class _Settings(pydantic.BaseModel):
    """What `Settings.to_json` writes."""

    model_config = pydantic.ConfigDict(extra="forbid")

    environment: schemas.Text | None
    options: schemas.Data
    model: schemas.Text
    episodes: schemas.Count
    conditions: dict[pydantic.StrictStr, list[schemas.Data]]
    seed: Annotated[pydantic.StrictInt, pydantic.Field(ge=0)]
    max_steps: schemas.Count | None
    wave: schemas.Count
    capture: schemas.Data
    generation: schemas.Data
    threads: Annotated[schemas.Count, pydantic.Field(le=4096)]

    @pydantic.model_validator(mode="after")
    def _possible(self) -> "_Settings":
        if self.episodes * len(self.conditions) > MOST or not isinstance(self.capture.get("sites"), list):
            raise ValueError(f"capture must name its sites, and there can be at most {MOST} episodes")
        return self


SETTINGS = schemas.register("settings of play", _Settings)


def step_seed(seed: int, plan: Plan, step: int) -> int:
    """A seed for the sampling of one step: conditions share it, episodes, steps and branches do not."""
    numbers = (seed, plan.episode, step, plan.branch)
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])


def written(specs: Sequence[interventions.Intervention]) -> list[dict[str, Any]]:
    """Interventions as JSON data; what is opaque is named only."""
    return [{"opaque": spec.describe()} if isinstance(spec, interventions.Opaque) else spec.to_json() for spec in specs]


def read(data: Sequence[Mapping[str, Any]]) -> tuple[interventions.Intervention, ...]:
    """Reads what `written` wrote.

    Raises:
        OpaqueError: One of them could only be named.
    """
    opaque = [one["opaque"] for one in data if "opaque" in one]
    if opaque:
        raise errors.OpaqueError(f"{opaque[0]} is a plain function and was not stored: call sonde.play with it again")
    return tuple(map(interventions.from_json, data))


def maker(env_factory: EnvFactory, settings: Settings) -> Callable[[], Any]:
    """What makes the environments; the run's seed orders their tasks unless the options say otherwise."""
    if not isinstance(env_factory, str):
        return env_factory
    return lambda: presets.make(env_factory, **{"seed": settings.seed, **settings.options})


def recording(asked: Any, site_names: Sequence[str]) -> dict[str, Any]:
    """`Settings.capture` from what a user may write for it.

    Raises:
        RequestError: An unknown key.
        SiteError: The model has no such Site.
    """
    chosen = dict(asked) if isinstance(asked, Mapping) else {"hook_filter": asked}
    unknown = set(chosen) - {"hook_filter", "positions", "dtype"}
    if unknown:
        raise errors.RequestError(f"capture takes hook_filter, positions and dtype, got {sorted(unknown)}")
    names = sites.select(chosen["hook_filter"], site_names) if chosen.get("hook_filter") else []
    kept: dict[str, Any] = {"sites": names, "positions": chosen.get("positions", "all")}
    if chosen.get("dtype") is not None:
        kept["dtype"] = str(chosen["dtype"]).removeprefix("torch.")
    return store.jsonable(kept)
