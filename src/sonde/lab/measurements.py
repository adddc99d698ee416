"""A measurement that is kept: what a corruption does to tasks, or to plain texts, as a run with a report.

    with sonde.load("smollm2-135m-instruct") as model:
        asked = [tasks.load()["capitals"]]
        chosen = measurements.settings_of(model, "skip:11", asked)
        found = experiments.run(measurements.Measure(model, asked), chosen, run="skip-11")
    found.results["results"][0]["measures"]

Each task is an item, kept as it is finished; the texts are one. Costs what `measuring` and `measuring_texts` say.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pydantic

from sonde import experiments
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.lab import corruptions, measuring, measuring_texts, tasks, texts
from sonde.models import model as models_model
from sonde.report import charts, page, wording
from sonde.store import schemas

#: Of each result, the measure that is drawn.
_DRAWN = (measuring.LOSS, measuring_texts.LOSS)


class MeasureSettings(core_settings.Settings):
    """What is measured; see `settings_of`."""

    model: str = core_settings.field(..., "The model's name.")
    corruption: str = core_settings.field(..., "What is done to the model.", option="")
    tasks: tuple[str, ...] = core_settings.field((), "Names of the tasks; none for plain texts.", option="")
    file: str | None = core_settings.field(None, "Their file, if it is not the one of Sonde.", option="--tasks")
    digest: str = core_settings.field("", "What tells the tasks from others of their names.", option="")
    examples: int | None = core_settings.field(None, "The first so many of each task.", ge=1)
    tokens: int | None = core_settings.field(None, "Of texts: the first so many tokens of each.", ge=2)
    controls: int = core_settings.field(3, "How many controls.", ge=0)
    seed: int = core_settings.field(0, "Draws the controls.", ge=0)

    @pydantic.model_validator(mode="after")
    def _of_texts(self) -> Self:
        if self.tasks and self.tokens is not None:
            raise ValueError("tasks are measured whole: leave out the tokens, or leave out the tasks")
        return self


def settings_of(
    model: models_model.Model, corruption: str, asked: Sequence[tasks.Task] = (), **chosen: Any
) -> MeasureSettings:
    """Settings for a model and tasks, for plain texts if there are none; `chosen` are the other fields."""
    named = {"tasks": tuple(one.name for one in asked), "digest": tasks.digest(asked) if asked else ""}
    return MeasureSettings(model=model.cfg.model_name, corruption=corruption, **named, **chosen)


class _Row(pydantic.BaseModel):
    measure: schemas.Text
    role: schemas.Text
    spec: schemas.Text
    value: dict[str, schemas.Number | None]
    delta: dict[str, schemas.Number | None] | None
    n: schemas.Count


class _Texts(pydantic.BaseModel):
    corruption: schemas.Text
    texts: list[schemas.Text]
    tokens: schemas.Count
    measures: list[_Row]


class _Example(pydantic.BaseModel):
    prompt: schemas.Text
    answer: schemas.Text
    completion: schemas.Text
    baseline_completion: schemas.Text


class _Task(pydantic.BaseModel):
    corruption: schemas.Text
    task: schemas.Text
    flags: list[schemas.Text]
    rows: list[_Example]
    measures: list[_Row]


class _Measured(pydantic.BaseModel):
    results: list[_Task | _Texts]


ITEM = schemas.register("measurement of a corruption", _Task | _Texts)
STAGE = schemas.register("stage of measurements", _Measured)
RESULTS = schemas.register("results of measurements", schemas.Data)


def _items(context: experiments.Context[Any]) -> list[dict[str, str]]:
    return [{"task": name} for name in context.settings.tasks] or [{"texts": "all"}]


def _work(context: experiments.Context[Any], item: Mapping[str, str]) -> dict[str, Any]:
    at, chosen = context.experiment, context.settings
    assert isinstance(at, Measure)
    what, fixed = corruptions.parse(chosen.corruption, at.model.cfg.n_layers), {"seed": chosen.seed}
    with at.model.packed():
        if "task" not in item:
            fixed |= {"tokens": chosen.tokens, "controls": chosen.controls}
            return measuring_texts.measure_texts(at.model, what, texts.load(), **fixed).to_json()
        task = at.tasks[item["task"]]
        some = range(len(task.examples))[: chosen.examples]
        return measuring.measure_with_controls(
            at.model, what, task, examples=some, count=chosen.controls, **fixed
        ).to_json()


class Measure(experiments.Experiment[MeasureSettings]):
    """The experiment."""

    kind, verb, results_kind = "measure", ("lab", "measure"), RESULTS
    settings_type = MeasureSettings
    stages = (experiments.Items("results", STAGE, _items, _work, ITEM, lambda _, made: {"results": made}),)
    model: models_model.Model

    def __init__(self, model: models_model.Model, asked: Sequence[tasks.Task] = (), *, show: int = 3) -> None:
        """Takes the model, the tasks it is asked, and how many completions of each a terminal shows."""
        super().__init__(model)
        self.tasks, self._show = {one.name: one for one in asked}, show

    def check(self, settings: MeasureSettings) -> None:
        """Refuses settings for another model or other tasks, and a corruption that the model cannot have."""
        fitting = settings_of(self.model, settings.corruption, tuple(self.tasks.values()))
        for name in ("model", "tasks", "digest"):
            wanted, there = getattr(settings, name), getattr(fitting, name)
            if wanted != there:
                raise errors.RequestError(f"the settings are for the {name} {wanted!r}, given was {there!r}")
        corruptions.parse(settings.corruption, self.model.cfg.n_layers)

    def headline(self, settings: MeasureSettings) -> str:
        """The corruption, and what it is measured on."""
        return f"{settings.corruption} on {', '.join(settings.tasks) or 'plain texts'}, {settings.controls} controls"

    def results(self, context: experiments.Context[MeasureSettings]) -> dict[str, Any]:
        """What was measured on each task, or on the texts."""
        return {
            "model": self.model.cfg.model_name,
            "seed": context.settings.seed,
            **context.found("results"),
        }

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """A section for each task, or one for the texts."""
        return report(results)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """The measures, and some completions."""
        return tuple(table for one in results["results"] for table in _tables(one, self._show))

    def command(self, settings: MeasureSettings) -> str:
        """The command, with its corruption and tasks."""
        named = [word for name in settings.tasks for word in ("--task", name)]
        return shlex.join(["sonde", *self.verb, settings.corruption, *named, *settings.typed()])


def report(results: Mapping[str, Any]) -> page.Report:
    """The page of `results.json`."""
    made = results["results"]
    sections = [
        page.Section(
            one.get("task", "Plain texts"), charts=_chart(one, at), tables=tuple(_tables(one, len(one.get("rows", ()))))
        )
        for at, one in enumerate(made)
    ]
    title = f"What {made[0]['corruption']} does to {results['model']}"
    return page.Report(
        title=title, summary=tuple(line for one in made for line in _sentences(one)), sections=tuple(sections)
    )


def _sentences(one: Mapping[str, Any]) -> Iterator[str]:
    """The first measure in words, and what a reader must know before believing it."""
    rows = [row for row in one["measures"] if row["measure"] == one["measures"][0]["measure"]]
    beside = [f"{_said(row['delta'])} under {row['spec']}" for row in rows if row["role"] == "control"]
    for row in rows:
        if row["role"] == "corrupted":
            yield (
                f"{one.get('task', 'Plain texts')}: {row['measure']} is {_said(rows[0]['value'])} of the intact model and "
                f"{_said(row['value'])} under {row['spec']}, a change of {_said(row['delta'])}; beside it, "
                f"{', '.join(beside) if beside else 'no control'}. 95 % intervals."
            )
    yield from (f"Note: {flag}." for flag in one.get("flags", ()))


def _tables(one: Mapping[str, Any], shown: int) -> Iterator[page.Table]:
    """The measures, then completions side by side."""
    rows, names = [], dict[str, str]()
    for row in one["measures"]:
        if row["spec"] not in names:
            drawn = sum(name.startswith("control") for name in names.values())
            names[row["spec"]] = f"control {drawn + 1}" if row["role"] == "control" else row["role"]
        change = "" if row["delta"] is None else _cell(row["delta"])
        cells = (_cell(row["value"]), change, row["n"], row["spec"])
        rows.append((row["measure"], names[row["spec"]], *cells))
    about = (
        f"{one['task']}: {len(one['rows'])} examples, changes paired by example."
        if "task" in one
        else f"{len(one['texts'])} texts, {one['tokens']} tokens."
    )
    columns = ("measure", "model", "value", "change", "n", "what was done")
    yield page.Table(columns, tuple(rows), f"{about} 95 % intervals.", decimals=3, folded=False)
    if shown and one.get("rows"):
        said = tuple(
            (
                row["prompt"].splitlines()[-1][-40:] if row["prompt"].splitlines() else row["prompt"],
                row["answer"].strip(),
                *(
                    row[name].strip().split("\n")[0][:30] or "(nothing)"
                    for name in ("baseline_completion", "completion")
                ),
            )
            for row in one["rows"][:shown]
        )
        yield page.Table(("prompt (its end)", "answer", "intact", one["corruption"]), said, "Greedy completions.")


def _chart(one: Mapping[str, Any], at: int) -> tuple[charts.Bars, ...]:
    """The change of the loss, beside that of the controls."""
    rows = [row for row in one["measures"] if row["measure"] in _DRAWN and row["delta"] is not None]
    if not rows:
        return ()
    value, low, high = (
        np.array([np.nan if row["delta"][end] is None else row["delta"][end] for row in rows], dtype=np.float64)
        for end in ("value", "low", "high")
    )
    chart = charts.Bars(
        key=f"loss-{at}",
        title=f"Change of the loss: {one.get('task', 'plain texts')}",
        labels=tuple(f"{row['role']}: {wording.one_line(row['spec'], 40)}" for row in rows),
        series=(charts.Series("change, 95 % interval", value, low, high),),
        value_name=rows[0]["measure"],
        label_name="what was done",
        caption=f"Against the intact model, n = {rows[0]['n']}.",
        points=True,
    )
    return (chart,)


def _cell(one: Mapping[str, Any] | None) -> wording.Cell:
    if one is None:
        return None
    if one["low"] is None:
        return one["value"]
    return wording.Interval(one["value"], one["low"], one["high"])


def _said(one: Mapping[str, Any] | None) -> str:
    return wording.shown(_cell(one), 3)
