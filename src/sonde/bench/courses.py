"""Training as a run: one case, or the cases of a group with up to three tries each.

    chosen = courses.BenchTrainSettings(case="3", seeds=(0, 1))
    found = experiments.run(courses.BenchTrain(), chosen, run="mine")
    found.results["trained"][0]["measured"]["iia"], found.folder / "seed-0" / "model.safetensors"

Weights and logs lie in the run's folder: seed-0/model.safetensors and log.json, of a group case-3/try-0/seed-0/…. With `out` the work
is done in that folder, which may hold what was begun there, and what is finished is copied into the run. Several runs of a group, each
in a process of its own, may share such a folder: each takes the next try that nobody is at, and in the end waits for the others. Costs what
`training` and `suite` say.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde import experiments
from sonde.bench import ioi, recipes, shipped, suite, training
from sonde.core import settings as core_settings
from sonde.report import page
from sonde.store import schemas

GOOD = 0.995
#: Seconds between two looks at a try that another process is at.
POLL = 1.0
_RESULTS = schemas.register("results of a training", schemas.Data)
_TRAINED = schemas.register("what was trained", schemas.Data)


class BenchTrainSettings(recipes.Recipe):
    """What fixes the training of one case."""

    case: str = core_settings.field(..., "A number, ioi or ioi_next_token.", option="")
    begin: str | None = core_settings.field(None, "Begin with weights that training put there.")


class BenchCoreSettings(recipes.Recipe):
    """What fixes the training of many cases; the recipe is that of their first tries."""

    cases: tuple[int, ...] = core_settings.field(..., "Which cases.", option="--only", min_length=1)


def _trained(context: experiments.Context[BenchTrainSettings]) -> dict[str, Any]:
    settings, asked = context.settings, context.experiment
    assert isinstance(asked, BenchTrain)
    task = shipped.task_of(settings.case)
    found = training.train(
        task,
        training.shape_of(task, shipped.sizes_of(settings.case)),
        settings,
        asked.out or context.folder,
        start=asked.start(settings),
        tell=context.tell,
    )
    if asked.out is not None:
        for one in found:
            one.copy(context.folder / one.folder.name)
    return {"trained": [one.to_json() for one in found]}


class BenchTrain(experiments.Experiment[BenchTrainSettings]):
    """The seeds of one case, trained at once."""

    kind, verb, results_kind = recipes.KIND, ("bench", "train"), _RESULTS
    settings_type = BenchTrainSettings
    stages = (experiments.Stage("train", _trained, _TRAINED),)

    def __init__(self, *, out: Path | None = None) -> None:
        """Takes a folder to work in, if that is not the run's."""
        super().__init__()
        self.out = out

    def start(self, settings: BenchTrainSettings) -> list[training.Trained]:
        """Earlier trainings to begin with."""
        return [] if settings.begin is None else shipped.earlier(settings.case, settings.begin, settings.seeds)

    def check(self, settings: BenchTrainSettings) -> None:
        """Refuses a case that there is not, and a beginning without weights."""
        shipped.task_of(settings.case)
        self.start(settings)

    def headline(self, settings: BenchTrainSettings) -> str:
        """Case, seeds and steps."""
        return (
            f"Case {settings.case}, weights {settings.weight_id}, {_seeds(settings)}, at most {settings.steps:,} steps"
        )

    def results(self, context: experiments.Context[BenchTrainSettings]) -> dict[str, Any]:
        """What fixes it, and each seed's figures."""
        settings = context.settings
        return {"settings": settings.to_json(), "weight_id": settings.weight_id, **context.found("train")}

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """A row for each seed."""
        return (_table([(results["settings"]["case"], one) for one in results["trained"]]),)

    def command(self, settings: BenchTrainSettings) -> str:
        """With the words of the case."""
        words = {ioi.NAME: ["ioi"], ioi.NEXT: ["ioi", "--next-token"]}.get(settings.case, ["iit", "-i", settings.case])
        weights = ["-iit", f"{settings.iit:g}", "-b", f"{settings.behaviour:g}"]
        return shlex.join(["sonde", *self.verb, *words, *weights, *_words(settings), *_stop(settings)])


def _items(context: experiments.Context[BenchCoreSettings]) -> list[dict[str, int]]:
    return [{"case": case, "try": number} for case, number in suite.tries(suite.by_size(context.settings.cases))]


def _attempted(context: experiments.Context[BenchCoreSettings], item: Mapping[str, int]) -> dict[str, Any]:
    asked = context.experiment
    assert isinstance(asked, BenchCore)
    return {**item, "trained": [one.to_json() for one in asked.attempt(context, item["case"], item["try"])]}


def _joined(context: experiments.Context[BenchCoreSettings], made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"tries": list(made)}


def _best(context: experiments.Context[BenchCoreSettings]) -> dict[str, Any]:
    """The best of each case and seed, when all tries have ended, those of other processes too."""
    settings, asked = context.settings, context.experiment
    assert isinstance(asked, BenchCore)
    folder = asked.out or context.folder
    for item in _items(context):
        case, number = item["case"], item["try"]
        while suite.due(folder, case, number, settings.seeds):
            if not asked.attempt(context, case, number):
                context.tell(f"case {case}, try {number}, of another process", 0, 1)
                time.sleep(POLL)
        if asked.out is not None:
            for one in training.finished(suite.place(folder, case, number), settings.seeds):
                one.copy(suite.place(context.folder, case, number) / one.folder.name)
    found = {str(case): suite.best(context.folder, case, settings.seeds) for case in suite.by_size(settings.cases)}
    return {"cases": {case: [one.to_json() for one in many] for case, many in found.items()}}


class BenchCore(experiments.Experiment[BenchCoreSettings]):
    """The cases of a group, small ones first."""

    kind, verb, results_kind = "bench-core", ("bench", "train", "core"), _RESULTS
    settings_type = BenchCoreSettings
    stages = (
        experiments.Items(
            "train", _TRAINED, _items, _attempted, schemas.register("try of a case", schemas.Data), _joined
        ),
        experiments.Stage("best", _best, _TRAINED),
    )

    def __init__(
        self,
        *,
        out: Path | None = None,
        ship: bool = False,
        on_trained: Callable[[int, int, training.Trained], None] | None = None,
    ) -> None:
        """Takes a folder to work in, whether models are put into the package, and who hears of each one that ends."""
        super().__init__()
        self.out, self._ship, self._on_trained = out, ship, on_trained

    def attempt(
        self, context: experiments.Context[BenchCoreSettings], case: int, number: int
    ) -> list[training.Trained]:
        """Trains what it is time for in a try; see `suite`."""
        folder, settings = self.out or context.folder, context.settings
        found = suite.attempt(case, number, settings, folder, tell=context.tell)
        if self._on_trained is not None:
            for one in found:
                self._on_trained(case, number, one)
        if found and self._ship:
            shipped.collect(folder, seeds=settings.seeds, only=[str(case)])
        return found

    def headline(self, settings: BenchCoreSettings) -> str:
        """Cases and seeds."""
        return f"{len(settings.cases)} cases, {_seeds(settings)}, up to {len(suite.TRIES)} tries each"

    def results(self, context: experiments.Context[BenchCoreSettings]) -> dict[str, Any]:
        """What fixes it, and the best of each case and seed."""
        return {"settings": context.settings.to_json(), **context.found("best")}

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """A row for each model."""
        return (_table([(case, one) for case, many in results["cases"].items() for one in many]),)

    def command(self, settings: BenchCoreSettings) -> str:
        """With what its first tries have."""
        return shlex.join(["sonde", *self.verb, *_words(settings), *_stop(settings)[1:]])


def lowest(one: Mapping[str, Any]) -> float:
    """The lowest of accuracy, IIA and strict accuracy of a model in the results."""
    return min(one["measured"][name] for name in ("accuracy", "iia", "strict"))


def _table(found: Sequence[tuple[str, Mapping[str, Any]]]) -> page.Table:
    names = ("accuracy", "iia", "strict")
    rows = tuple(
        (case, one["seed"], one["status"], one["step"], *(f"{100 * one['measured'][name]:.2f} %" for name in names))
        for case, one in found
    )
    return page.Table(("case", "seed", "status", "step", "accuracy", "IIA", "strict"), rows)


def _seeds(settings: recipes.Recipe) -> str:
    return f"seed{'s' * (len(settings.seeds) > 1)} {', '.join(map(str, settings.seeds))}"


def _words(settings: recipes.Recipe) -> list[str]:
    """Options that the commands have defaults of their own for, and the others where they are not at theirs."""
    own = ["-s", f"{settings.strict:g}", "--epochs", str(settings.epochs), "--lr", f"{settings.rate:g}", "--seeds"]
    return [*own, ",".join(map(str, settings.seeds)), *settings.typed()]


def _stop(settings: recipes.Recipe) -> list[str]:
    return [] if settings.threshold is None else ["--early-stop", "--threshold", f"{settings.threshold:g}"]
