"""Playing as an experiment: waves of episodes are played where they are not on disk, and a row is kept of each episode.

A wave that was interrupted is resumed byte for byte; see `waves`.
"""

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from sonde import experiments, store
from sonde.agents import plans, waves
from sonde.core import progress
from sonde.models import model as models_model
from sonde.report import page
from sonde.store import damage, schemas

KIND = "play"
#: Tokens generated per answer at most, where neither the environment nor the caller says.
NEW_TOKENS = 64
#: Episodes that a terminal shows.
SHOWN = 20
Context = experiments.Context[plans.PlaySettings]


class _Row(pydantic.BaseModel):
    id: schemas.Text
    task_id: schemas.Text | int | None
    steps: schemas.Count
    reward: schemas.Number | None
    error: schemas.Text | None


class _Rows(pydantic.BaseModel):
    episodes: list[_Row]


async def _play(context: Context) -> dict[str, Any]:
    """Plays the waves that are not on disk, and says what came of all."""
    played, settings, run = context.experiment, context.settings, context.run
    make, every = plans.maker(played.environment, settings), settings.waves()
    todo = [wave for wave in every if not _finished(run, wave)]
    count = _Count(context, done=sum(map(len, every)) - sum(map(len, todo)), total=sum(map(len, every)))
    if context.engine == "ray":
        from sonde.agents import cluster

        await cluster.play(run, settings, played.record(), todo, on_tick=count)
    else:
        stage = waves.Stage(model=played.model, make=make, settings=settings, folder=run.episodes_dir, on_tick=count)
        with played.model.packed():
            for wave in todo:
                await waves.play_wave(stage, wave)
    played.progress = count.progress
    return {"episodes": [_row(run.episode(plan.id)) for wave in every for plan in wave]}


class _Count:
    """Counts steps, and tells how far it is after each."""

    def __init__(self, context: Context, *, done: int, total: int) -> None:
        self._context = context
        self.progress = progress.Progress("episodes", done, total, {"steps": 0, "tokens": 0, "again": 0, "failed": 0})

    def __call__(self, tick: waves.Tick) -> None:
        counts = dict(self.progress.counts)
        if tick.failed is not None or tick.again:
            counts["again" if tick.failed is None else "failed"] += 1
        else:
            counts["steps"], counts["tokens"] = counts["steps"] + 1, counts["tokens"] + tick.tokens
        done, total = self.progress.done + tick.over, self.progress.total
        self.progress = progress.Progress("episodes", done, total, counts)
        self._context.tell("episodes", done, total, **counts)


class Play(experiments.Experiment[plans.PlaySettings]):
    """Episodes of an environment, played by a model."""

    kind, verb = KIND, ("play",)
    results_kind = schemas.register("results of play", schemas.Data)
    settings_type = plans.PlaySettings
    stages = (experiments.Stage("play", _play, schemas.register("played episodes", _Rows)),)
    model: models_model.Model

    def __init__(
        self,
        model: models_model.Model,
        environment: plans.EnvFactory,
        *,
        engine: str = "local",
        held: Mapping[str, Any] | None = None,
    ) -> None:
        """Takes model and environment.

        Args:
            model: The model.
            environment: A preset with selectors, or a function that makes an environment.
            engine: Where it will be played: what cannot be sent to a cluster is refused before anything is written.
            held: The model's record, if it was just made.
        """
        super().__init__(model)
        self.environment, self.engine, self._held = environment, engine, held
        self.progress: progress.Progress | None = None

    def record(self) -> dict[str, Any]:
        """The model's record."""
        return super().record() if self._held is None else dict(self._held)

    def check(self, settings: plans.PlaySettings) -> None:
        """Refuses a bad option, an empty selection, and what a cluster cannot play."""
        plans.maker(self.environment, settings)()
        if self.engine == "ray":
            from sonde.agents import cluster

            cluster.check(settings, self.model, self.record())

    def headline(self, settings: plans.PlaySettings) -> str:
        """Sizes."""
        made = plans.maker(self.environment, settings)()
        tasks, count = len(getattr(made, "task_ids", ())), len(settings.waves())
        asked = getattr(made, "provisions", None)  # what it needs of the machine, such as disk for images
        needs = asked(min(settings.wave, settings.episodes)) if asked is not None else ()
        said = f"{settings.episodes} episodes of {settings.environment} ({tasks} tasks) in {count} waves"
        return "; ".join([said, *needs])

    def estimate(self, settings: plans.PlaySettings) -> dict[str, float]:
        """At most, by the speed of one short batch; nothing if an episode may go on for ever."""
        made = plans.maker(self.environment, settings)()
        steps = settings.max_steps or getattr(made, "step_limit", None)
        if not steps:
            return {}
        rows = min(settings.wave, settings.episodes)
        start = time.monotonic()
        self.model.generate(["Is it alive?"] * rows, max_new_tokens=6, min_new_tokens=6)
        answer = (time.monotonic() - start) / 6 * settings.generation.get("max_new_tokens", NEW_TOKENS)
        return {"play": answer * steps * len(settings.waves())}

    def results(self, context: Context) -> dict[str, Any]:
        """Settings, and a row per episode."""
        rows, every = context.found("play")["episodes"], context.settings.plans()
        if [row["id"] for row in rows] != [plan.id for plan in every]:
            raise damage.Damage(context.path("play"), "is of other episodes").error()
        return {"settings": context.settings.to_json(), "episodes": rows}

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """How many episodes and steps, and the mean reward."""
        rows = results["episodes"]
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        return {
            "episodes": len(rows),
            "failed": sum(row["error"] is not None for row in rows),
            "steps": sum(row["steps"] for row in rows),
            "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        }

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The first episodes."""
        columns, rows, told = ("id", "task_id", "steps", "reward", "error"), results["episodes"], self.summary(results)
        mean = "no rewards" if told["mean_reward"] is None else f"mean reward {told['mean_reward']:.2f}"
        more = f" The first {SHOWN} are shown." if len(rows) > SHOWN else ""
        caption = f"{mean} over {len(rows)} episodes, {told['steps']} steps, {told['failed']} failed.{more}"
        shown = tuple((*(row[name] for name in columns[:-1]), row["error"] or "") for row in rows[:SHOWN])
        return (page.Table(columns, shown, caption),)

    def command(self, settings: plans.PlaySettings) -> str:
        """The command that plays it again; nothing where no command can."""
        heat = {"max_new_tokens": NEW_TOKENS, **settings.generation}
        other = heat.keys() - {"max_new_tokens", "temperature"} or any(settings.conditions.values())
        if settings.environment is None or other or len(settings.conditions) > 1:
            return ""
        words = [word for name, one in heat.items() for word in (f"--{name.replace('_', '-')}", str(one))]
        words += [word for name in settings.capture["sites"] for word in ("--capture", name)]
        words += ["--positions", str(settings.capture.get("positions", "all"))]
        return shlex.join(["sonde", *self.verb, settings.environment, *settings.typed(), *words])


def _finished(run: store.Run, wave: Sequence[plans.Plan]) -> bool:
    """Whether every episode of a wave is closed on disk."""
    known = [run.episode_folder(plan.id) for plan in wave]
    return all(path.exists() and store.EpisodeReader.open(path).status == "closed" for path in known)


def _row(reader: store.EpisodeReader) -> dict[str, Any]:
    reward = reader.reward if reader.reward is None or math.isfinite(reader.reward) else None
    return {
        "id": reader.id,
        "task_id": reader.metadata.get("task_id"),
        "steps": sum("amends" not in line for line in reader.steps),
        "reward": reward,
        "error": reader.summary.get("error"),
    }
