"""What is to be played: settings that can be written down, sent elsewhere and taken up again.

Episodes are cut into waves. A wave is one work item: its episodes go step by step together, and nothing outside of it
has a part in its numbers, so that seed, wave size and thread count fix the result to the last bit.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np
import pydantic
import torch

from sonde import store
from sonde.agents import presets
from sonde.core import errors, interventions, sites
from sonde.core import settings as core_settings
from sonde.store import damage, schemas

EnvFactory = str | Callable[[], Any]
MOST = 10_000_000  # episodes of a run
#: Options of an environment or a client: whatever they take; what JSON lacks is written down as its repr.
JsonDict = Annotated[dict[str, Any], pydantic.PlainSerializer(store.jsonable, when_used="json")]
Conditions = Annotated[
    dict[str, tuple[pydantic.InstanceOf[interventions.Intervention], ...]],
    pydantic.PlainSerializer(lambda held: store.jsonable({name: written(one) for name, one in held.items()})),
]
CONDITIONS = schemas.register("conditions", dict[pydantic.StrictStr, list[schemas.Data]])
field = core_settings.field


def threads() -> Any:
    """A field of settings for torch's threads, which are part of what fixes the last bits."""
    extra: Any = {"option": ""}
    return pydantic.Field(
        default_factory=torch.get_num_threads, ge=1, le=4096, description="Threads of torch.", json_schema_extra=extra
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


class PlaySettings(core_settings.Settings):
    """Everything that fixes the result of playing."""

    environment: str | None = field(None, "A preset with selectors, such as 20q:0:10; none for a function.", option="")
    options: JsonDict = field({}, "Options of the environment.", option="--option")
    model: str = field(..., "The model's name.")
    episodes: int = field(..., "How many episodes per condition.", ge=1, le=MOST)
    conditions: Conditions = field(
        {"": ()},
        "Interventions by name; episodes of equal number are paired across conditions.",
        option="",
        min_length=1,
    )
    seed: int = field(0, "Fixes tasks and sampling.", ge=0)
    max_steps: int | None = field(None, "Stop an episode after so many steps.", ge=1)
    wave: int = field(16, "Episodes that go together.", ge=1)
    capture: JsonDict = field(..., "`sites` (names), `positions`, `dtype`; no sites: tokens only.", option="")
    generation: JsonDict = field({}, "Sampling settings of the client, and `context_policy`.", option="")
    threads: int = threads()

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        if self.episodes * len(self.conditions) > MOST:
            raise ValueError(f"there can be at most {MOST} episodes, got {self.episodes * len(self.conditions)}")
        if not isinstance(self.capture.get("sites"), list | tuple):
            raise ValueError(f"capture must name its sites, got {self.capture!r:.200}")
        return self

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

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote.

        Raises:
            OpaqueError: It holds something that could only be named.
            RequestError: It is something else.
        """
        try:
            schemas.check(content.get("conditions"), CONDITIONS)
        except damage.UnreadableError as error:
            raise errors.RequestError(f"these are no settings of play: {error}") from error
        return super().from_json(
            {**content, "conditions": {name: read(one) for name, one in content["conditions"].items()}}
        )


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


def maker(env_factory: EnvFactory, settings: PlaySettings) -> Callable[[], Any]:
    """What makes the environments; the run's seed orders their tasks unless the options say otherwise."""
    if not isinstance(env_factory, str):
        return env_factory
    return lambda: presets.make(env_factory, **{"seed": settings.seed, **settings.options})


def recording(asked: Any, site_names: Sequence[str]) -> dict[str, Any]:
    """`PlaySettings.capture` from what a user may write for it.

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
