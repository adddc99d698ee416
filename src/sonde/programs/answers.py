"""What models answer about programs, as an experiment: a stage for each model, an item for each batch.

    asked = answers.Programs(config)
    experiments.run(asked, config, run="binding")
    asked.found.summary["by_model"]

1. Make and label the programs: the same for every model.
2. For each model, ask in fixed batches, because what shares a batch changes the last bits.
3. Summarise, with intervals and the heuristics' scores, and draw.

Costs the generation; models stay open until they are closed, or go at once with `no_cache`.
"""

import functools
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from sonde import experiments as kernel
from sonde.core import errors
from sonde.programs import answering, experiments, heuristics, outcomes, parsers, plotting, prompts
from sonde.report import page, wording
from sonde.store import schemas

_ODD = re.compile(r"[^\w.-]", re.ASCII)
_Context = kernel.Context[Any]


class _Made(pydantic.BaseModel):
    digest: schemas.Text


class _Held(pydantic.BaseModel):
    held: schemas.Data | None


class _Rows(pydantic.BaseModel):
    rows: Annotated[list[outcomes.RowSchema], pydantic.Field(fail_fast=True)]


MADE = schemas.register("digest of programs", _Made)
HELD = schemas.register("record of a model", _Held)
ROWS = schemas.register("batch of results", _Rows)
RESULTS = schemas.register("results of an experiment on programs", schemas.Data)


class Programs(kernel.Experiment[experiments.ExperimentConfig]):
    """The experiment."""

    kind, verb, results_kind = "programs", ("programs", "run"), RESULTS
    settings_type = experiments.ExperimentConfig

    def __init__(
        self,
        config: experiments.ExperimentConfig,
        answerers: answering.Answerers | None = None,
        *,
        no_cache: bool = False,
        output_dir: Path | None = None,
    ) -> None:
        """Asks nothing yet.

        Args:
            config: What to ask, and whom.
            answerers: Who is open already.
            no_cache: Close each model once it has answered.
            output_dir: Where the files of the seed's names are written as well.
        """
        super().__init__()
        self.config, self.no_cache, self.output_dir = config, no_cache, output_dir
        self.answerers = answerers if answerers is not None else answering.Answerers()
        self.found: outcomes.ExperimentResult
        self._keys = {name: f"{at}-{_ODD.sub('_', name)}" for at, name in enumerate(config.models)}
        stages: list[kernel.Stage | kernel.Items] = [kernel.Stage("programs", _made, MADE)]
        for name, key in self._keys.items():
            asked, joined = functools.partial(_asked, name), functools.partial(_joined, name)
            stages.append(kernel.Stage(f"model-{key}", functools.partial(_held, name), HELD))
            stages.append(kernel.Items(f"answers-{key}", ROWS, _batches, asked, ROWS, joined))
        self.stages = tuple(stages)

    @functools.cached_property
    def made(self) -> list[experiments.Item]:
        """The programs."""
        return experiments.items(self.config)

    def batch(self, first: int) -> list[experiments.Item]:
        """The programs from one on that are asked about together."""
        return self.made[first : first + self.config.batch_size]

    def digest(self) -> str:
        """Changes when any program or label does."""
        told = [(one.program, one.answer) for one in self.made]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def unsaved(self) -> outcomes.ExperimentResult:
        """The same without a run: nothing is kept."""
        rows = []
        for name in self.config.models:
            for first in range(0, len(self.made), self.config.batch_size):
                rows += ask(self.config, name, self.answerers(name), self.batch(first))
            if self.no_cache:
                self.answerers.close(name)
        return outcomes.ExperimentResult.of(self.config.name, rows, None)

    def record(self) -> dict[str, Any]:
        """Who answers; who that is exactly, each model's own stage says."""
        return {"name": ", ".join(self.config.models)}

    def check(self, settings: experiments.ExperimentConfig) -> None:
        """Makes the programs, which refuses wrong labels."""
        assert self.made

    def headline(self, settings: experiments.ExperimentConfig) -> str:
        """Sizes."""
        lengths, models = len(settings.seq_lens), len(settings.models)
        return f"{settings.name}: {settings.num_seqs} programs of each of {lengths} lengths, {models} models"

    def model_of(self, context: _Context, name: str) -> dict[str, Any] | None:
        """Which model answers under a name; None if it is none of Sonde's."""
        return context.found(f"model-{self._keys[name]}")["held"]

    def results(self, context: _Context) -> dict[str, Any]:
        """Summary and rows."""
        rows = [row for key in self._keys.values() for row in context.found(f"answers-{key}")["rows"]]
        folder = context.folder
        if self.output_dir is not None:
            folder = self.output_dir / f"{self.config.name}_{context.run.id}"
        self.found = outcomes.ExperimentResult.of(self.config.name, rows, folder)
        return {**self.found.summary, "rows": rows}

    def save(self, context: _Context, results: Mapping[str, Any]) -> None:
        """The files of the seed's names, where they are wanted."""
        if self.output_dir is not None:
            known = {name: self.model_of(context, name) for name in self.config.models}
            outcomes.write(self.found, self.config.to_json(), {name: one for name, one in known.items() if one})
            plotting.save_accuracy(self.found)

    def summary(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Accuracy by model."""
        return {"by_model": results["by_model"]}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """Accuracy over length."""
        beside = ", ".join(f"{rule} {score:.0%}" for rule, score in results["heuristics"]["overall"].items())
        said = [
            f"{model}: {wording.shown(_score(one))} of {one['n']} programs right ({beside})."
            for model, one in results["by_model"].items()
        ]
        charts = (plotting.accuracy_chart(self.config.name, self.found.rows),)
        section = page.Section("Accuracy", charts=charts, tables=self.highlights(results))
        title = f"What models answer: {self.config.name}"
        return page.Report(title, tuple(said), (section,), settings=self.config.to_json())

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """A row per model, with the heuristics."""
        rules = [results["heuristics"]["overall"][rule] for rule in heuristics.NAMES]
        rows = [(self.config.name, model, one["n"], _score(one), *rules) for model, one in results["by_model"].items()]
        columns = ("experiment", "model", "programs", "accuracy", *heuristics.NAMES)
        return (page.Table(columns, tuple(rows), "95 % intervals over programs.", folded=False),)

    def command(self, settings: experiments.ExperimentConfig) -> str:
        """The command of a shipped experiment; none for a generator of one's own."""
        known = experiments.SHIPPED.get(settings.name)
        if known is None or known.generator is not settings.program_generator:
            return ""
        models = [word for name in settings.models for word in ("-m", name)]
        return shlex.join(["sonde", *self.verb, settings.name, *models, *settings.typed()])


def ask(
    config: experiments.ExperimentConfig, name: str, answerer: answering.Answerer, batch: Sequence[experiments.Item]
) -> list[outcomes.Row]:
    """Asks a model about a batch of programs; one row each."""
    asked = [prompts.asking(config.prompt_template, item.program, item.answer) for item in batch]
    sampling: answering.Sampling = {
        "max_new_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        "seed": config.seed,
    }
    texts = answerer.ask(asked, sampling)
    return [_row(config, name, item, text) for item, text in zip(batch, texts, strict=True)]


def _made(context: _Context) -> dict[str, Any]:
    return {"digest": context.experiment.digest()}


def _held(name: str, context: _Context) -> dict[str, Any]:
    return {"held": context.experiment.answerers.held(name)}


def _batches(context: _Context) -> list[dict[str, Any]]:
    experiment = context.experiment
    return [{"first": first} for first in range(0, len(experiment.made), experiment.config.batch_size)]


def _asked(name: str, context: _Context, item: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a batch, by the model and about the programs that the run was started with."""
    experiment = context.experiment
    if context.found("programs")["digest"] != experiment.digest():
        raise errors.RequestError(
            f"run {context.run.id} was begun with other programs: the generator of that name has changed; give it another name"
        )
    experiment.answerers.check(name, experiment.model_of(context, name), what=f"run {context.run.id}")
    return {"rows": ask(experiment.config, name, experiment.answerers(name), experiment.batch(item["first"]))}


def _joined(name: str, context: _Context, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if context.experiment.no_cache:
        context.experiment.answerers.close(name)
    return {"rows": [row for part in parts for row in part["rows"]]}


def _score(one: Mapping[str, Any]) -> wording.Interval | float:
    return one["accuracy"] if one["low"] is None else wording.Interval(one["accuracy"], one["low"], one["high"])


def _row(config: experiments.ExperimentConfig, name: str, item: experiments.Item, text: str) -> Mapping[str, Any]:
    parse = config.answer_parser or parsers.parser_for(item.answer)
    said = parse(text)
    return {
        "experiment": config.name,
        "model_id": name,
        "seq_len": item.seq_len,
        "seq_id": item.seq_id,
        "program": item.program,
        "true_answer": item.answer,
        "predicted_answer": said,
        "correct": parsers.is_correct(said, item.answer),
        "raw_output": text,
        "metadata": dict(item.metadata),
    }
