"""An inquiry as a run: begun or taken up in the log, conducted to its end, written as a page.

    with log.Log.of(runs_dir) as book:
        asked = research.Research(bench, book, research.planned(search.SearchPlanner()))
        found = experiments.run(asked, research.settings_of(bench, budget=30), run="arithmetic", runs_dir=runs_dir)
    found.results["inquiry"]

The log of the lab stays the one truth, since the order of its entries over all inquiries is what makes a prediction one. The
run cites its inquiry: the log's entry names the run and when that was made, so that whatever is killed, the same run takes up
the same inquiry. At the end all entries are copied into the run's `results.json` and sealed. Costs what the loop costs.
"""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import pydantic

from sonde import experiments
from sonde.core import errors, progress
from sonde.core import settings as core_settings
from sonde.lab import budget as lab_budget
from sonde.lab import desk, exporting, inquiries, log, loop, planning, tasks
from sonde.lab import experiments as lab_experiments
from sonde.lab import results as lab_results
from sonde.report import page
from sonde.store import schemas

#: What makes the calls of an inquiry, at its desk.
Drive = Callable[[desk.Desk, progress.Tell], None]
#: What a fork chooses for itself.
_FORKED = ("planner", "planner_model", "server", "budget", "approve")


class ResearchSettings(core_settings.Settings):
    """What was chosen; see `settings_of`."""

    model: str = core_settings.field(..., "The model's name.")
    task: str = core_settings.field(..., "What the model is asked.")
    tasks: str | None = core_settings.field(None, "The task's file, if it is not the one of Sonde.")
    digest: str = core_settings.field("", "What tells the task from others of its name.", option="")
    planner: str = core_settings.field("search", "Who decides.")
    planner_model: str | None = core_settings.field(None, "The server's name for the planner's model.")
    server: str | None = core_settings.field(None, "Where that server is.")
    layers: tuple[int, ...] | None = core_settings.field(None, "Layers that may be left out; None for all.")
    examples: int = core_settings.field(loop.EXAMPLES, "Examples to explore with at most, and as many held out.", ge=6)
    seed: int = core_settings.field(0, "Draws the held-out examples and the controls.", ge=0)
    budget: int = core_settings.field(30, "Experiments at most.", ge=0)
    tokens: int | None = core_settings.field(None, "Tokens of the planner's model at most.", ge=0)
    seconds: float | None = core_settings.field(None, "Seconds of measuring and planning at most.", ge=0)
    approve: bool = core_settings.field(False, "Whether every experiment waits for a yes.")
    parent: str | None = core_settings.field(None, "The inquiry that this one is a fork of.", option="")
    at: int = core_settings.field(0, "How many of its calls the fork takes over.", option="", ge=0)
    replay_of: str | None = core_settings.field(None, "The inquiry that this one makes again.", option="")

    @property
    def limits(self) -> lab_budget.Limits:
        """The budget."""
        return lab_budget.Limits(self.budget, self.tokens, self.seconds)


def settings_of(bench: lab_experiments.Experiments, **chosen: Any) -> ResearchSettings:
    """Settings for a model and a task; `chosen` are the other fields."""
    asked = {"model": bench.model.cfg.model_name, "task": bench.task.name, "digest": tasks.digest([bench.task])}
    return ResearchSettings(**asked, **chosen)


class _Cited(pydantic.BaseModel):
    inquiry: schemas.Text
    ended: pydantic.StrictBool


CITED = schemas.register("stage of an inquiry", _Cited)
RESULTS = schemas.register("results of an inquiry", schemas.Data)


def planned(planner: planning.Planner, approver: loop.Approver | None = None) -> Drive:
    """What lets a planner make the calls; `approver` is asked in approval mode, else another process."""

    def drive(at: desk.Desk, tell: progress.Tell) -> None:
        most = at.inquiry.settings.limits.experiments

        def on_call(call: planning.Call, reply: desk.Reply, used: lab_budget.Spent) -> None:
            tell("experiments", used.experiments, most)

        if loop.conduct(at, planner, approver=approver, on_call=on_call) is None:
            raise errors.RequestError(
                "an experiment waits for a yes: sonde lab approve lists it; then give the same command again"
            )

    return drive


def _conducted(context: experiments.Context[Any]) -> dict[str, Any]:
    at, run = context.experiment, context.run
    assert isinstance(at, Research)
    inquiry = at.begun(context)
    try:
        at.drive(desk.Desk(at.bench, inquiry), context.tell)
    except errors.ServerError as error:
        said = str(error) if str(error).endswith(("?", ".")) else f"{error}."
        raise errors.ServerError(f"{said} The log is whole: the same command with --run {run.id} goes on") from error
    exporting.write(inquiry, context.folder / "results.md")
    return {"inquiry": inquiry.id, "ended": inquiry.ended() is not None}


class Research(experiments.Experiment[ResearchSettings]):
    """The experiment.

    Attributes:
        bench: Model and task.
        book: The log.
        drive: What makes the calls.
    """

    kind, verb, results_kind = "inquiry", ("lab", "run"), RESULTS
    settings_type = ResearchSettings
    stages = (experiments.Stage("inquiry", _conducted, CITED),)

    def __init__(self, bench: lab_experiments.Experiments, book: log.Log, drive: Drive) -> None:
        """Takes them."""
        super().__init__(bench.model)
        self.bench, self.book, self.drive = bench, book, drive

    def record(self) -> dict[str, Any]:
        """The model's record, which the log has as well."""
        return self.bench.held

    def check(self, settings: ResearchSettings) -> None:
        """Refuses settings for another model or task, layers that are not there, and a task that the model cannot do."""
        fitting = settings_of(self.bench)
        for name in ("model", "task", "digest"):
            wanted, there = getattr(settings, name), getattr(fitting, name)
            if wanted != there:
                raise errors.RequestError(f"the settings are for the {name} {wanted!r}, given was {there!r}")
        last = self.bench.n_layers - 1
        if not set(settings.layers or ()) <= set(range(last + 1)):
            raise errors.RequestError(f"layers {list(settings.layers or ())}: {settings.model} has layers 0 to {last}")
        self._logged(settings)

    def headline(self, settings: ResearchSettings) -> str:
        """Task, planner, budget, and how well the intact model does."""
        share = self.bench.intact.accuracy
        return (
            f"{settings.task!r}, planner {settings.planner}, at most {settings.budget} experiments of up to "
            f"{settings.examples} examples; the intact model solves {share:.0%} of {len(self.bench.task.examples)}"
        )

    def estimate(self, settings: ResearchSettings) -> dict[str, float]:
        """Judged by what the intact model took for the whole task."""
        each = self.bench.intact_seconds / len(self.bench.task.examples)
        return {"inquiry": each * settings.examples * settings.budget}

    def begun(self, context: experiments.Context[ResearchSettings]) -> inquiries.Inquiry:
        """The inquiry that a run is, begun if it has not."""
        settings, run = context.settings, context.run
        found = inquiries.of_run(self.book, run)
        if found is None:
            found = inquiries.begin(self.book, self._logged(settings), parent=settings.parent, at=settings.at, run=run)
        loop.measure_intact(self.bench, found)
        return found

    def results(self, context: experiments.Context[ResearchSettings]) -> dict[str, Any]:
        """All entries of the inquiry."""
        return exporting.data(inquiries.opened(self.book, context.found("inquiry")["inquiry"]))

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The inquiry, and how many of its hypotheses came out in which way."""
        states = list(results["hypotheses"].values())
        return {"inquiry": results["inquiry"]} | {
            state: states.count(state) for state in ("supported", "refuted", "open")
        }

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """See `lab.results`."""
        return lab_results.report(inquiries.opened(self.book, results["inquiry"]))

    def command(self, settings: ResearchSettings) -> str:
        """The command: `run`, `mcp`, `fork` or `replay`."""
        if settings.replay_of is not None:
            return shlex.join(["sonde", "lab", "replay", settings.replay_of])
        fork = ("lab", "fork", settings.parent, "--at", str(settings.at)) if settings.parent else None
        fields = type(settings).model_fields
        unsaid = (
            [name for name in fields if name not in _FORKED] if fork else ["planner"] if self.verb[-1] == "mcp" else []
        )
        own = settings.model_copy(update={name: fields[name].default for name in unsaid})
        return shlex.join(["sonde", *(fork or self.verb), *own.typed()])

    def _logged(self, settings: ResearchSettings) -> inquiries.InquirySettings:
        """What the log is told; checks what can be checked.

        Raises:
            BudgetError: The budget is zero.
            AnalysisError: The intact model cannot do the task.
        """
        if settings.replay_of is not None:
            old = inquiries.opened(self.book, settings.replay_of)
            self.bench.check(old.settings.held, what=old.id)
            return loop.replayed(old)
        lab_budget.check(settings.limits, lab_budget.Spent())
        named = {"planner_model": settings.planner_model, "server": settings.server}
        own: dict[str, Any] = {"planner": settings.planner, "approve": settings.approve, "limits": settings.limits}
        if settings.parent is not None:
            old = inquiries.opened(self.book, settings.parent)
            self.bench.check(old.settings.held, what=old.id)
            inquiries.forkable(self.book, old.id, settings.at)
            own |= {"more": {**old.settings.more, **named}}
            return inquiries.InquirySettings.read(old.settings.to_json() | own)
        more = named | {"tasks": settings.tasks} | ({"layers": list(settings.layers)} if settings.layers else {})
        return loop.settings_of(self.bench, most=settings.examples, seed=settings.seed, **own, more=more)


class Served(Research):
    """An inquiry whose calls come from elsewhere: it may be served again, and goes on."""

    verb = ("lab", "mcp")
    stages = (experiments.Stage("inquiry", _conducted, CITED, open=True),)
