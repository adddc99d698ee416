"""What an experiment says about itself: its kind, its stages, its results and its report.

    class Counting(experiment.Experiment[CountingSettings]):
        kind = "counting"
        results_kind = RESULTS                       # schemas of what is on disk, as registered
        stages = (experiment.Stage("count", count, COUNT),)

A stage computes JSON data from a context: the model, the settings, what earlier stages found, and a folder. It must depend on
these alone, so that a run that was stopped and resumed ends with the same bytes. A stage whose work divides is `Items`: a list
of JSON items, a function of one item, and how their results are joined.
"""

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from sonde import store
from sonde.core import errors, progress, settings
from sonde.models import identity
from sonde.models import model as models_model
from sonde.report import page
from sonde.store import documents

Content = Mapping[str, Any]
SettingsT = TypeVar("SettingsT", bound=settings.Settings)


class Context(Generic[SettingsT]):
    """What a stage works with.

    Attributes:
        experiment: The experiment, with its model and whatever else it was made with.
        settings: What fixes the result.
        run: The run that is written.
        engine: Where what divides is run: `local`, or `ray`.
    """

    def __init__(
        self,
        experiment: "Experiment[SettingsT]",
        settings: SettingsT,
        run: store.Run,
        on_progress: progress.OnProgress | None,
        engine: str = "local",
    ) -> None:
        """Wraps them; stages get this from the kernel."""
        self.experiment: Any = experiment  # its stages know which it is
        self.settings, self.run, self.engine = settings, run, engine
        self._on_progress = on_progress
        self._found: dict[str, dict[str, Any]] = {}

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run.folder

    def tell(self, what: str, done: int, total: int, **counts: int) -> None:
        """Reports progress."""
        if self._on_progress is not None:
            self._on_progress(progress.Progress(what, done, total, counts))

    def path(self, stage: str) -> Path:
        """Where a stage's document is, or will be."""
        return stage_path(self.folder, stage)

    def found(self, stage: str) -> dict[str, Any]:
        """What an earlier stage found.

        Raises:
            RequestError: That stage is not finished.
            DamagedError: Its file is not as it was written.
        """
        if stage not in self._found:
            path, name = self.path(stage), self.experiment.kind
            if not path.exists():
                raise errors.RequestError(
                    f"run {self.run.id} has no finished stage {stage!r} of {name}: run that first"
                )
            self._found[stage] = documents.kept(path, self.experiment.stage(stage).schema)
        return self._found[stage]


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One part of an experiment, computed once and kept.

    Attributes:
        name: Its name, also of its file.
        compute: What computes it; may be a coroutine function.
        schema: The kind of its document, as registered.
        open: Whether each call computes it again, although it is on disk: for what may go on later, such as a conversation.
    """

    name: str
    compute: Callable[[Context[Any]], Content | Awaitable[Content]]
    schema: str
    open: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Items:
    """A stage whose work divides into items that know nothing of each other.

    Attributes:
        name: Its name, also of its file.
        schema: The kind of its document.
        items: The items, JSON data each, in order.
        work: What one item gives: a function of that item, the settings and the experiment alone. On a cluster there is no run.
        item_schema: The kind of an item's document.
        join: What the stage found, from the items' results in order.
    """

    name: str
    schema: str
    items: Callable[[Context[Any]], Sequence[Content]]
    work: Callable[[Context[Any], Content], Content | Awaitable[Content]]
    item_schema: str
    join: Callable[[Context[Any], Sequence[Content]], Content]


class Experiment(Generic[SettingsT]):
    """Something that can be run.

    Attributes:
        kind: What sort of run it makes.
        settings_type: The class of its settings.
        stages: Its stages, in order; where they depend on what it is made with, `__init__` sets them.
        results_kind: The schema of `results.json`.
        verb: The words of its command, after `sonde`.
        model: The model, where there is one.
    """

    kind: ClassVar[str]
    settings_type: ClassVar[type[settings.Settings]]
    stages: tuple[Stage | Items, ...]
    results_kind: ClassVar[str]
    verb: tuple[str, ...]

    def __init__(self, model: models_model.Model | None = None) -> None:
        """Takes the model."""
        self.model = model

    def stage(self, name: str) -> Stage | Items:
        """The stage of a name.

        Raises:
            RequestError: There is none.
        """
        names = [one.name for one in self.stages]
        if name not in names:
            raise errors.RequestError(
                f"no stage {name!r}: choose one of {', '.join(names)}{errors.suggest(name, names)}"
            )
        return self.stages[names.index(name)]

    def record(self) -> dict[str, Any]:
        """What the manifest says of the model; see `identity`."""
        return {} if self.model is None else identity.of(self.model)

    def check(self, settings: SettingsT) -> None:
        """Refuses settings that do not fit the model, before anything is written."""

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """A block that stages are computed in, such as `model.packed()`."""
        return contextlib.nullcontext()

    def estimate(self, settings: SettingsT) -> dict[str, float]:
        """About how many seconds each stage takes; stages that are left out are not estimated."""
        return {}

    def headline(self, settings: SettingsT) -> str:
        """What is about to be done, in half a sentence."""
        return f"{self.kind}"

    def results(self, context: Context[SettingsT]) -> dict[str, Any]:
        """What `results.json` holds, without `timing`."""
        stages = {one.name: context.found(one.name) for one in self.stages}
        return {"settings": context.settings.to_json(), **stages}

    def save(self, context: Context[SettingsT], results: Content) -> None:
        """Writes files of its own beside `results.json`; they are sealed with the rest."""

    def summary(self, results: Content) -> dict[str, Any]:
        """What the manifest says at the end."""
        return {}

    def report(self, results: Content, run: str) -> page.Report | None:
        """The page, if the experiment has one; settings and command are added if it does not say them."""
        return None

    def highlights(self, results: Content) -> tuple[page.Table, ...]:
        """The tables that a terminal shows."""
        return ()

    def command(self, settings: SettingsT) -> str:
        """The command that runs it again."""
        import shlex

        return shlex.join(["sonde", *self.verb, *settings.typed()])


def stage_path(folder: Path, stage: str) -> Path:
    """Where a stage's document is in a run's folder."""
    return folder / "stages" / f"{stage}.json"
