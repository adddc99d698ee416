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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from sonde import experiments, store
from sonde.agents import plans, plays, trajectories
from sonde.core import errors, interventions, progress
from sonde.models import adapters, identity, loading
from sonde.models import model as models_model
from sonde.store import layout

KIND, NEW_TOKENS = plays.KIND, plays.NEW_TOKENS
Specs = Sequence[interventions.Intervention]


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
        device: Where to put a model that is given by name; see `sonde.load`.
        dtype: Type of the weights of a model that is given by name.
        on_progress: Called with a Progress after every step; it counts `steps` and `tokens`, what was played `again` to resume
            a wave, and what `failed`.
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
    device: Any
    dtype: Any
    on_progress: progress.OnProgress | None


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

    @classmethod
    def of(cls, experiment: plays.Play, settings: plans.PlaySettings, result: experiments.Result) -> "Played":
        """What an experiment gave.

        Raises:
            EpisodeError: All episodes failed.
        """
        every, rows, run = settings.plans(), result.results["episodes"], result.run
        make = plans.maker(experiment.environment, settings)
        origin = trajectories.Origin(settings, make, experiment.model, every[0], experiment.record())
        episodes = [
            Episode(plan, run.episodes_dir / plan.id, row["task_id"], row["reward"], row["steps"], row["error"], origin)
            for plan, row in zip(every, rows, strict=True)
        ]
        if all(episode.error for episode in episodes):
            raise errors.EpisodeError(f"all {len(episodes)} episodes failed; the first: {episodes[0].error}")
        return cls(run, episodes, experiment.progress or progress.Progress("episodes", len(every), len(every)))

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
    with loaded(model, device=options.get("device"), dtype=options.get("dtype")) as opened:
        return await _run(env_factory, opened, settings_of(env_factory, opened, options), options)


async def _run(
    env_factory: plans.EnvFactory, model: models_model.Model, settings: plans.PlaySettings, options: Options
) -> Played:
    engine = options.get("engine", "local")
    held = await asyncio.to_thread(identity.of, model)  # it waits for a batch under way
    experiment = plays.Play(model, env_factory, engine=engine, held=held)
    result = await experiments.run_async(
        experiment,
        settings,
        run=options.get("run"),
        runs_dir=options.get("runs_dir"),
        engine=engine,
        on_progress=options.get("on_progress"),
    )
    return Played.of(experiment, settings, result)


def resume(
    run: str | Path,
    model: Any = None,
    *,
    runs_dir: Path | str | None = None,
    engine: str = "local",
    on_progress: progress.OnProgress | None = None,
) -> Played:
    """Takes up an interrupted run, with the settings it was started with.

    Args:
        run: The run's folder, or its id in `runs_dir`.
        model: The model, if it is loaded already, or a name to load on the device and in the type that the run has; otherwise
            the one that the run names is loaded, as it was.
        runs_dir: Folder of all runs; $SONDE_RUNS or ./runs.
        engine: See `Options`.
        on_progress: See `Options`.

    Raises:
        OpaqueError: It was played with functions, which are not stored.
        ModelError: The model is not to be had any more, or what has its name now is another.
        RequestError: The given model is another than the one that played; says what differs.
    """
    found = opened_run(run, runs_dir)
    settings = plans.PlaySettings.from_json(found.manifest["settings"])
    if settings.environment is None:
        raise errors.OpaqueError(
            f"run {found.id} played an environment given as a function: call sonde.play(function, …, run={found.id!r})"
        )
    place: Options = {"run": found.folder.name, "runs_dir": found.folder.parent}
    with model_of(found, model) as opened:
        work = _run(settings.environment, opened, settings, {**place, "engine": engine, "on_progress": on_progress})
        return asyncio.run(work)


@contextlib.contextmanager
def model_of(run: store.Run, model: Any = None) -> Iterator[models_model.Model]:
    """The model of a run for a block: the one given, or the recorded one loaded again, and closed after the block.

    Raises:
        ModelError: It cannot be loaded again, or what has its name now is another.
    """
    held = run.manifest["model"]
    placed = {name: held.get(name) for name in ("device", "dtype")} if isinstance(model, str | Path) else {}
    with identity.rebuilt(held) if model is None else loaded(model, **placed) as opened:
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


def settings_of(env_factory: plans.EnvFactory, model: models_model.Model, options: Options) -> plans.PlaySettings:
    """The settings that options amount to."""
    if "interventions" in options and "conditions" in options:
        raise errors.RequestError("give interventions, or conditions by name, but not both")
    conditions = options.get("conditions", {"": options.get("interventions", ())})
    generation = {"max_new_tokens": NEW_TOKENS, "temperature": 1.0, **options.get("generation", {})}
    return plans.PlaySettings(
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
    )


@contextlib.contextmanager
def loaded(model: Any, *, device: Any = None, dtype: Any = None) -> Iterator[models_model.Model]:
    """A model for a block: loaded and closed again if it is a name, left open if it is a model.

    Raises:
        RequestError: A model is given, and where to put it as well.
    """
    placed = {name: value for name, value in (("device", device), ("dtype", dtype)) if value is not None}
    if isinstance(model, str | Path):
        with loading.load(str(model), **placed) as found:
            yield found
        return
    if placed:
        raise errors.RequestError(f"the model is loaded already: leave out {' and '.join(placed)}, or give its name")
    yield adapters.as_model(model)
