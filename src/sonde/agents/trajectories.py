"""An episode that can be gone on with: at any step, again and again, under other interventions.

    trajectory = played[0].trajectory
    others = trajectory.fork(5, interventions=[sonde.Zero("blocks.3.hook_attn_out")], n=16)

The environment is put back by its snapshot or by doing once more what was done; the conversation's tokens are those
that were sampled. The continuations are one batch, and what they have in common is encoded once, unless it is recorded.
They are played as the episode was: under the same limit of steps, sampling, interventions and capture.
"""

import asyncio
import dataclasses
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from sonde.agents import client as agents_client
from sonde.agents import history, plans, waves
from sonde.capture import joining
from sonde.capture import manager as capture_manager
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, interventions
from sonde.models import adapters, identity, requests, riders
from sonde.models import model as models_model

Specs = tuple[interventions.Intervention, ...]
#: Where a saved trajectory says how to go on with it.
ORIGIN = "origin"


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where an episode comes from: what it takes to go on with it.

    Attributes:
        settings: What was played.
        make: Makes its environment.
        model: The model that played it.
        plan: Which of the episodes it is.
        held: The model's record when it played, as far as it was made.
        chat: `tokenizer` and `chat_template` of the client that played it, where they are not the model's own.
        earlier: For an episode that was forked: the interventions before, each with the step up to which they held.
    """

    settings: plans.PlaySettings
    make: Callable[[], Any]
    model: models_model.Model
    plan: plans.Plan
    held: Mapping[str, Any]
    chat: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    earlier: tuple[tuple[int, Specs], ...] = ()

    @classmethod
    def of(cls, env: Any, client: Any, task: Any, capture: Mapping[str, Any], max_steps: int | None) -> "Origin | None":
        """Of an episode that was played by hand; None if the environment or what the client does cannot be had again."""
        if task is None or not hasattr(env, "with_task") or not _predictable(client):
            return None
        model: models_model.Model = client.model
        generation = {"max_new_tokens": client.max_new_tokens, **client.generation_kwargs}
        settings = plans.PlaySettings(
            environment=None,
            options={},
            model=model.cfg.model_name,
            episodes=1,
            conditions={"": (*models_model.bind_hooks(client.fwd_hooks, model), *_in_force(model))},
            seed=int(generation.get("seed") or 0) % 2**64,  # which may be negative there
            max_steps=int(max_steps) if max_steps else None,
            capture=dict(capture),
            generation={
                **{name: value for name, value in generation.items() if value is not None},
                "context_policy": client.context_policy,
            },
        )
        chat: dict[str, Any] = {} if client.chat_template is None else {"chat_template": client.chat_template}
        if client.tokenizer is not model.tokenizer:
            chat["tokenizer"] = client.tokenizer
        return cls(settings, lambda: env.with_task(task), model, plans.Plan(0, 0), identity.outline(model), chat)

    def check_open(self) -> None:
        """Refuses a model that was closed: one given by name is, when its run is over."""
        try:
            self.model.check_open()
        except errors.ModelError as error:
            raise errors.EpisodeError(
                "the model that played this episode is closed: give sonde.play a model, not a name, and keep it open; or take the "
                "episode from sonde.resume(run, model)"
            ) from error

    @property
    def under(self) -> Specs:
        """What the episode is played under, since it was last forked."""
        return self.settings.conditions[self.plan.condition]

    def before(self, step: int) -> tuple[tuple[int, Specs], ...]:
        """The interventions of all steps before one, each with the step up to which they held."""
        starts = [0, *(until for until, _ in self.earlier)]
        kept = [
            (min(until, step), under)
            for start, (until, under) in zip(starts, self.earlier, strict=False)
            if start < step
        ]
        return (*kept, (step, self.under)) if step > starts[-1] else tuple(kept)

    def to_json(self) -> dict[str, Any]:
        """As JSON data; what is opaque is named only."""
        return {
            "settings": self.settings.to_json(),
            "plan": dataclasses.asdict(self.plan),
            "model": dict(self.held),
            "chat_template": self.chat.get("chat_template"),
            "earlier": [[until, plans.written(under)] for until, under in self.earlier],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], model: Any, environment: Callable[[], Any] | None) -> "Origin":
        """Reads what `to_json` wrote.

        Raises:
            OpaqueError: It was played with functions, which are not stored.
            RequestError: Another model played it; says what differs.
        """
        settings, opened = plans.PlaySettings.from_json(data["settings"]), adapters.as_model(model)
        played_in = environment or settings.environment
        if played_in is None:
            raise errors.OpaqueError(
                "this episode was played in an environment of your own: give a function that makes it, as environment=…"
            )
        identity.check(data["model"], identity.of(opened), what="the saved episode")
        chat = {"chat_template": data["chat_template"]} if data["chat_template"] is not None else {}
        earlier = tuple((until, plans.read(under)) for until, under in data["earlier"])
        make = plans.maker(played_in, settings)
        return cls(settings, make, opened, plans.Plan(**data["plan"]), data["model"], chat, earlier)


class EpisodeTrajectory(capture_trajectory.TrajectoryActivations):
    """The record of an episode, and the way back into it.

    Attributes:
        origin: What it takes to go on with it; None where that is not known.
        first: Number of its first step in the episode: 0, or where it was forked.
        parent: What it was forked from.
    """

    origin: Origin | None = None
    first: int = 0
    parent: "EpisodeTrajectory | None" = None

    @classmethod
    def of(cls, source: "Path | capture_trajectory.TrajectoryActivations", origin: Origin | None) -> Self:
        """The record in a folder, or one in memory, with its origin."""
        if isinstance(source, Path):
            source = capture_trajectory.TrajectoryActivations.load(source)
        found = cls(source.records, source.steps, reward=source.reward, metadata=source.metadata)
        found.origin = origin
        return found

    @classmethod
    def load(cls, folder: str | Path, model: Any = None, environment: Callable[[], Any] | None = None) -> Self:
        """Opens an episode folder, finished or not.

        Args:
            folder: Where it is.
            model: The model that played it: with it, an episode that was saved can be forked again.
            environment: What makes its environment, if it was no preset.

        Raises:
            StoreError: It is damaged, from a newer version, or no trajectory.
            RequestError: The model is another than the one that played it.
            EpisodeError: A model is given, and the folder does not say how to go on.
        """
        found = cls.of(Path(folder), None)
        told = found.metadata.pop(ORIGIN, None)
        if model is not None:
            if told is None:
                raise errors.EpisodeError(
                    f"{folder} does not say how to go on with the episode: save a trajectory of sonde.play or run_episode, or "
                    "of a fork its .whole; an episode of a run is forked from sonde.resume(run, model)[0].trajectory"
                )
            found.origin = Origin.from_json(told, model, environment)
        return found

    def save(self, folder: str | Path) -> Path:
        """Writes the trajectory as an episode folder, in place of one that is there; `load` reads it.

        A fork is saved without the steps before it: save its `whole` to go on with it later.
        """
        told = self.origin if self.first == 0 and self.origin and "tokenizer" not in self.origin.chat else None
        metadata = self.metadata if told is None else {**self.metadata, ORIGIN: told.to_json()}
        written = capture_trajectory.TrajectoryActivations(
            self.records, self.steps, reward=self.reward, metadata=metadata
        )
        return written.save(folder)

    @property
    def moments(self) -> list[history.Moment]:
        """The steps as they were played: what was seen, said and got."""
        return history.moments(self)

    @property
    def whole(self) -> "EpisodeTrajectory":
        """The episode from its start: for a fork, the steps before it and its own as one trajectory; otherwise itself.

        Activations are there where they were recorded: see `capture.joining`.
        """
        if self.parent is None:
            return self
        return EpisodeTrajectory.of(joining.joined(self.parent.whole, self.first, self), self.origin)

    def past(self, step: int) -> list[waves.Past]:
        """The steps of the episode before one of this trajectory, each with the interventions it was played under.

        Raises:
            EpisodeError: There is no such step, or it is not known how it was played.
        """
        if self.origin is None:
            raise errors.EpisodeError(
                "this trajectory does not know its environment: play it with sonde.play or run_episode, and fork that; or "
                "load it with its model"
            )
        if not 0 <= step < len(self):
            raise errors.EpisodeError(f"no step {step} to fork at: the episode has steps 0 to {len(self) - 1}")
        number, known = self.first + step, self.all_moments()
        held: list[Specs] = []
        for until, under in self.origin.before(number):
            held += [under] * (until - len(held))
        return list(zip(known[:number], held, strict=True))

    def all_moments(self) -> list[history.Moment]:
        """The steps of the whole episode, those before a fork included."""
        before = self.parent.all_moments()[: self.first] if self.parent is not None else []
        return [*before, *self.moments]

    def fork(
        self,
        step: int,
        *,
        interventions: Sequence[interventions.Intervention] | None = None,
        n: int = 1,
        capture: Any = None,
        max_steps: int | None = None,
    ) -> Any:
        """Rolls out continuations from a step on, played as the episode was where nothing else is said.

        Args:
            step: The first step that is played anew; what was seen, said and got before it stays.
            interventions: What to change from there on, in place of what the episode was played under; None: the same.
            n: How many continuations; each draws random numbers of its own.
            capture: What to record in the new steps, as `sonde.play` takes it; []: tokens only; None: as before.
            max_steps: Stop when the episode, counted from its start, has so many steps; None: as it was played.

        Returns:
            One EpisodeTrajectory per continuation: its steps are the new ones, `reward` that of the whole episode, past
            included; `whole` has the steps before as well. Inside an event loop, a coroutine of that.

        Raises:
            EpisodeError: There is no such step, the environment cannot be taken back there, or the model is closed.
        """
        past, origin = self.past(step), self.origin
        assert origin is not None
        origin.check_open()
        if n < 1:
            raise errors.RequestError(f"n must be at least 1, got {n}")
        before = origin.settings
        present = set(map(id, _in_force(origin.model)))  # these act on the continuations anyway
        same = tuple(spec for spec in origin.under if id(spec) not in present)
        settings = before.changed(
            conditions={"": same if interventions is None else tuple(interventions)},
            capture=before.capture if capture is None else plans.recording(capture, origin.model.site_names),
            max_steps=before.max_steps if max_steps is None else max_steps,
        )
        return now_or_later(self._rolled(origin, settings, past, n))

    async def _rolled(
        self, origin: Origin, settings: plans.PlaySettings, past: Sequence[waves.Past], n: int
    ) -> list["EpisodeTrajectory"]:
        stage = waves.Stage(
            model=origin.model, make=origin.make, settings=settings, folder=None, past=past, chat=origin.chat
        )
        # Continuations of a continuation draw other numbers than it did.
        taken, earlier = origin.plan.branch << 16, origin.before(len(past))
        branches = [plans.Plan(index, origin.plan.episode, "", branch=taken + index + 1) for index in range(n)]
        done = []
        for start in range(0, n, settings.wave):
            wave = branches[start : start + settings.wave]
            for plan, found in zip(wave, await waves.play_wave(stage, wave), strict=True):
                found.metadata |= {"forked_at": len(past), "branch": plan.branch}
                if "error" in found.metadata:
                    raise errors.EpisodeError(f"continuation {plan.index} could not go on: {found.metadata['error']}")
                came = dataclasses.replace(origin, settings=settings, plan=plan, earlier=earlier)
                fork = EpisodeTrajectory.of(found, came)
                fork.first, fork.parent = len(past), self
                done.append(fork)
        return done


def asked(model: models_model.Model, trajectory: capture_trajectory.TrajectoryActivations) -> list[requests.Request]:
    """What the model was asked in every step, made again from the conversation, for a fork with its past; it does not run.

    Raises:
        EpisodeError: The trajectory was recorded without its conversation.
    """
    origin = getattr(trajectory, "origin", None)
    generation: dict[str, Any] = dict(origin.settings.generation) if origin is not None else {}
    policy = generation.pop("context_policy", "error")
    client = agents_client.HookedTransformerLLMClient(
        model, generation_kwargs=generation, context_policy=policy, **(origin.chat if origin is not None else {})
    )
    whole = isinstance(trajectory, EpisodeTrajectory)
    moments = trajectory.all_moments() if whole else history.moments(trajectory)
    found = [_at_once(client.recall(one.observation, one.text, one.tokens)) for one in moments]
    return found[trajectory.first :] if whole else found


def _at_once(work: Coroutine[Any, Any, requests.Request]) -> requests.Request:
    """The result of a coroutine that waits for nothing: a client without hooks has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a client without hooks waited for something")


def _predictable(client: Any) -> bool:
    """Whether a client is one of a model, and says beforehand which hooks hold."""
    if not isinstance(client, agents_client.HookedTransformerLLMClient):
        return False
    hooks = client.fwd_hooks
    return not callable(hooks) and not any(
        isinstance(hook, tuple) and inspect.iscoroutinefunction(hook[0]) for hook in hooks
    )


def _in_force(model: models_model.Model) -> list[interventions.Intervention]:
    """The interventions of managers that are in force here and now."""
    managers = [one for one in riders.of(model) if isinstance(one, capture_manager.InterventionManager)]
    return [added.spec for one in managers for added in one.added]


def now_or_later(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end; inside an event loop, hands it back to be awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return work
