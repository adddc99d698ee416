"""Playing many episodes: in batches, with everything recorded, and so that a kill costs at most the step in flight.

    played = sonde.play("20q", model, episodes=50, capture="blocks.*.hook_resid_post", seed=1)
    for episode in played:
        print(episode.task_id, episode.reward, len(episode.trajectory))

What is played is one run on disk. `sonde.play(..., run="name")` takes up a run of that name that was interrupted, and
plays nothing twice. Cost: see `waves`.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import torch

from sonde import store
from sonde.agents import plans, progress, trajectories, waves
from sonde.core import errors, interventions
from sonde.models import adapters, identity, loading
from sonde.models import model as models_model
from sonde.store import layout

KIND = "play"
#: Tokens generated per answer at most, where neither the environment nor the caller says.
NEW_TOKENS = 64
Specs = Sequence[interventions.Intervention]
OnProgress = Callable[[progress.Progress], None]


class Options(TypedDict, total=False):
    """Options of `play`.

    Attributes:
        episodes: How many; one if left out.
        capture: Sites to record: names, wildcards, a predicate; or a mapping of `hook_filter`, `positions`, `dtype`.
            Left out: tokens only.
        interventions: What to change, in all episodes.
        conditions: Interventions by name: every episode is played once under each, with the same task and seed.
        seed: Fixes tasks and sampling.
        max_steps: Stop an episode after so many steps.
        wave: Episodes that go together in one batch; 16 if left out. Part of what fixes the last bits.
        generation: `temperature`, `top_p`, `top_k`, `max_new_tokens`, `stop`, `context_policy` of the client.
        options: Options of the environment, with a preset.
        run: Name of the run; one that is there already is taken up.
        runs_dir: Folder of all runs; $SONDE_RUNS or ./runs.
        engine: `local`, or `ray` for a Ray cluster.
        on_progress: Called with a Progress after every step.
    """

    episodes: int
    capture: Any
    interventions: Specs
    conditions: Mapping[str, Specs]
    seed: int
    max_steps: int | None
    wave: int
    generation: Mapping[str, Any]
    options: Mapping[str, Any]
    run: str | None
    runs_dir: Path | str | None
    engine: str
    on_progress: OnProgress | None


@dataclasses.dataclass(frozen=True, slots=True)
class Episode:
    """One played episode on disk.

    Attributes:
        plan: Which it is.
        folder: Where it is.
        task_id: What was played.
        reward: The sum of the rewards.
        steps: How many.
        error: Why it could not go on, if it could not.
    """

    plan: plans.Plan
    folder: Path
    task_id: str | None
    reward: float | None
    steps: int
    error: str | None
    origin: trajectories.Origin

    @property
    def trajectory(self) -> trajectories.EpisodeTrajectory:
        """Its record, read when asked for."""
        return trajectories.EpisodeTrajectory.of(self.folder, dataclasses.replace(self.origin, plan=self.plan))


class Played(Sequence[Episode]):
    """The episodes of a run."""

    def __init__(self, run: store.Run, episodes: Sequence[Episode], told: progress.Progress) -> None:
        """Wraps them; users get this from `play`."""
        self.run, self.progress = run, told
        self._episodes = list(episodes)

    def __len__(self) -> int:
        """How many episodes."""
        return len(self._episodes)

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        """An episode, or several."""
        return self._episodes[index]

    def __repr__(self) -> str:
        """Sizes."""
        return f"Played({len(self)} episodes in run {self.run.id})"

    @property
    def trajectories(self) -> list[trajectories.EpisodeTrajectory]:
        """Their records."""
        return [episode.trajectory for episode in self]

    @property
    def rewards(self) -> list[float | None]:
        """Their rewards."""
        return [episode.reward for episode in self]


def play(env_factory: plans.EnvFactory, model: Any, **options: Unpack[Options]) -> Played:
    """Plays episodes and records them as a run; not from inside an event loop (there: `play_async`).

    Args:
        env_factory: A preset with selectors, such as `20q:0:10`, or a function that makes an environment.
        model: A model, or the name of one to load.
        **options: See `Options`.

    Raises:
        RequestError: Impossible settings, or a run of that name with other settings.
        SelectorError: Unknown preset, bad selector.
    """
    return asyncio.run(play_async(env_factory, model, **options))


async def play_async(env_factory: plans.EnvFactory, model: Any, **options: Unpack[Options]) -> Played:
    """As `play`, to be awaited."""
    unknown = set(options) - Options.__annotations__.keys()
    if unknown:
        name = min(unknown)
        raise TypeError(f"play has no option {name!r}{errors.suggest(name, Options.__annotations__)}")
    engine = options.get("engine", "local")
    if engine not in ("local", "ray"):
        raise errors.RequestError(f"no engine {engine!r}: choose 'local' or 'ray'")
    from sonde.agents import cluster

    with loaded(model) as opened:
        settings = settings_of(env_factory, opened, options)
        make = plans.maker(env_factory, settings)
        make()  # a bad option or an empty selection is found before anything is written
        held = await asyncio.to_thread(identity.of, opened)  # it waits for a batch under way
        if engine == "ray":
            await cluster.check(settings, opened, held)
        run = store.Run.take_up(
            options.get("runs_dir"),
            kind=KIND,
            model=held,
            settings=settings.to_json(),
            seed=settings.seed,
            id=options.get("run"),
        )
        identity.check(run.manifest["model"], held, what=f"run {run.id}")
        report = progress.Reporter(len(settings.plans()), options.get("on_progress"))
        todo = [wave for wave in settings.waves() if not _finished(run, wave)]
        report.skip(len(settings.plans()) - sum(len(wave) for wave in todo))
        if engine == "ray":
            await cluster.play(run, settings, held, todo, on_tick=report)
        else:
            stage = waves.Stage(model=opened, make=make, settings=settings, folder=run.episodes_dir, on_tick=report)
            with pinned(settings.threads), opened.packed():
                for wave in todo:
                    await waves.play_wave(stage, wave)
        origin = trajectories.Origin(settings, make, opened, settings.plans()[0], held)
        return _ended(run, settings, origin, report.progress)


def resume(
    run: str | Path,
    model: Any = None,
    *,
    runs_dir: Path | str | None = None,
    engine: str = "local",
    on_progress: OnProgress | None = None,
) -> Played:
    """Takes up an interrupted run, with the settings it was started with.

    Args:
        run: The run's folder, or its id in `runs_dir`.
        model: The model, if it is loaded already; otherwise the one that the run names is loaded, as it was.
        runs_dir: Folder of all runs; $SONDE_RUNS or ./runs.
        engine: See `Options`.
        on_progress: See `Options`.

    Raises:
        OpaqueError: It was played with functions, which are not stored.
        ModelError: The model is not to be had any more, or what has its name now is another.
        RequestError: The given model is another than the one that played; says what differs.
    """
    found = opened_run(run, runs_dir)
    settings = plans.Settings.from_json(found.manifest["settings"])
    if settings.environment is None:
        raise errors.OpaqueError(
            f"run {found.id} played an environment given as a function: call sonde.play(function, …, run={found.id!r})"
        )
    capture = {name: value for name, value in settings.capture.items() if name != "sites"}
    with pinned(settings.threads), model_of(found, model) as opened:
        return play(
            settings.environment,
            opened,
            episodes=settings.episodes,
            conditions=settings.conditions,
            seed=settings.seed,
            max_steps=settings.max_steps,
            wave=settings.wave,
            capture={"hook_filter": list(settings.capture["sites"]), **capture},
            generation=settings.generation,
            options=settings.options,
            run=found.folder.name,
            runs_dir=found.folder.parent,
            engine=engine,
            on_progress=on_progress,
        )


@contextlib.contextmanager
def model_of(run: store.Run, model: Any = None) -> Iterator[models_model.Model]:
    """The model of a run for a block: the one given, or the recorded one loaded again, and closed after the block.

    Raises:
        ModelError: It cannot be loaded again, or what has its name now is another.
    """
    with identity.rebuilt(run.manifest["model"]) if model is None else loaded(model) as opened:
        yield opened


def opened_run(run: str | Path, runs_dir: Path | str | None = None) -> store.Run:
    """A run of this kind, by folder or id.

    Raises:
        StoreError: There is none.
    """
    folder = Path(run)
    if not (folder / layout.MANIFEST).is_file():
        folder = Path(runs_dir if runs_dir is not None else store.default_runs_dir()) / str(run)
    found = store.Run.open(folder)
    if found.manifest["kind"] != KIND:
        raise errors.StoreError(f"run {found.id} is of kind {found.manifest['kind']!r}, not played episodes")
    return found


def settings_of(env_factory: plans.EnvFactory, model: models_model.Model, options: Options) -> plans.Settings:
    """The settings that options amount to."""
    if "interventions" in options and "conditions" in options:
        raise errors.RequestError("give interventions, or conditions by name, but not both")
    conditions = options.get("conditions", {"": options.get("interventions", ())})
    generation = {"max_new_tokens": NEW_TOKENS, "temperature": 1.0, **options.get("generation", {})}
    return plans.Settings(
        environment=env_factory if isinstance(env_factory, str) else None,
        options=dict(options.get("options", {})),
        model=model.cfg.model_name,
        episodes=options.get("episodes", 1),
        conditions={name: tuple(held) for name, held in conditions.items()},
        seed=options.get("seed", 0),
        max_steps=options.get("max_steps"),
        wave=options.get("wave", 16),
        capture=plans.recording(options.get("capture"), model.site_names),
        generation=generation,
        threads=torch.get_num_threads(),
    )


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[None]:
    """A fixed number of torch's threads for a block: it is part of what fixes the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def loaded(model: Any) -> Iterator[models_model.Model]:
    """A model for a block: loaded and closed again if it is a name, left open if it is a model."""
    if isinstance(model, (str, Path)):
        with loading.load(str(model)) as found:
            yield found
    else:
        yield adapters.as_model(model)


def _finished(run: store.Run, wave: Sequence[plans.Plan]) -> bool:
    """Whether every episode of a wave is closed on disk."""
    known = [run.episode_folder(plan.id) for plan in wave]
    return all(path.exists() and store.EpisodeReader.open(path).status == "closed" for path in known)


def _ended(run: store.Run, settings: plans.Settings, origin: trajectories.Origin, told: progress.Progress) -> Played:
    episodes = [_episode(run, plan, origin) for plan in settings.plans()]
    failed = [episode for episode in episodes if episode.error]
    if run.status != "finished":
        rewards = [episode.reward for episode in episodes if episode.reward is not None]
        run.finish(
            {
                "episodes": len(episodes),
                "failed": len(failed),
                "steps": sum(episode.steps for episode in episodes),
                "mean_reward": sum(rewards) / len(rewards) if rewards else None,
            }
        )
    if failed and len(failed) == len(episodes):
        raise errors.EpisodeError(f"all {len(episodes)} episodes failed; the first: {failed[0].error}")
    return Played(run, episodes, told)


def _episode(run: store.Run, plan: plans.Plan, origin: trajectories.Origin) -> Episode:
    reader = run.episode(plan.id)
    return Episode(
        plan,
        run.episodes_dir / plan.id,
        reader.metadata.get("task_id"),
        reader.reward,
        sum("amends" not in line for line in reader.steps),
        reader.summary.get("error"),
        origin,
    )
