"""The search for programs that all models get right, to have something to trace; as an experiment.

For each case (hops and length; 17 lines with 3 hops first) seeds are tried in their order until one gives a program that
every model answers correctly. Finding one says little by itself: at 10 % by luck, one model needs about ten tries. So
the case tells how many were tried, and tracing must still show its effects on other programs. Costs generation: models
are opened one after the other and stay for all cases; the first model rules most seeds out for the others.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pydantic

from sonde import experiments as kernel
from sonde.core import settings as core_settings
from sonde.programs import answering, answers, experiments, generators, prompts
from sonde.report import page
from sonde.store import schemas

CASES = ((3, 17), (2, 17), (1, 17), (3, 5), (2, 5), (1, 5))


@dataclasses.dataclass(frozen=True, slots=True)
class RobustSeed:
    """What the search found for one case.

    Attributes:
        hops: Assignments from the query's down to the constant.
        seq_len: Assignments in all.
        tried: How many seeds were tried.
        seed: The first that all models answer correctly; None if there was none.
        program: Its program.
        answer: Its answer.
        root_line: The line of its constant.
    """

    hops: int
    seq_len: int
    tried: int
    seed: int | None = None
    program: str | None = None
    answer: int | None = None
    root_line: int | None = None

    def __str__(self) -> str:
        """In a sentence."""
        case = f"{self.hops} hops, {self.seq_len} lines"
        if self.seed is None:
            return f"{case}: none of {self.tried} seeds"
        return f"{case}: seed {self.seed} ({self.tried} tried), answer {self.answer}, root on line {self.root_line}"


class SeedsSettings(core_settings.Settings):
    """How to search; all models must be right."""

    models: tuple[str, ...] = core_settings.field(..., "All must be right.", option="", min_length=1)
    cases: tuple[tuple[int, int], ...] = core_settings.field(CASES, "Hops and length of each.", option="", min_length=1)
    max_seeds: int = core_settings.field(100, "Give a case up after so many seeds.", ge=1)
    template: str = core_settings.field(prompts.VARIABLE_BINDING, "The prompt, with `{code}`.", option="")
    max_new_tokens: int = core_settings.field(6, "Tokens of an answer.", option="", ge=1)
    batch_size: int = core_settings.field(16, "Seeds that are tried together.", option="", ge=1)


class _Models(pydantic.BaseModel):
    held: dict[str, schemas.Data | None]


class _Cases(pydantic.BaseModel):
    cases: list[schemas.Data]


MODELS = schemas.register("records of models", _Models)
CASE = schemas.register("robust seed", schemas.strict(RobustSeed, extra="ignore"))
FOUND = schemas.register("robust seeds", _Cases)
RESULTS = schemas.register("results of a search for seeds", _Cases)


class Seeds(kernel.Experiment[SeedsSettings]):
    """The experiment."""

    kind, verb, results_kind = "seeds", ("programs", "seeds"), RESULTS
    settings_type = SeedsSettings

    def __init__(self, models: Sequence[str], answerers: answering.Answerers | None = None) -> None:
        """Opens nothing yet."""
        super().__init__()
        self.models, self.answerers = models, answerers if answerers is not None else answering.Answerers()
        self.stages = (
            kernel.Stage("models", _models, MODELS),
            kernel.Items("cases", FOUND, _cases, _case, CASE, lambda context, found: {"cases": list(found)}),
        )

    def record(self) -> dict[str, Any]:
        """Who answers; who that is exactly, the stage of models says."""
        return {"name": ", ".join(self.models)}

    def headline(self, settings: SeedsSettings) -> str:
        """Sizes."""
        return f"{len(settings.cases)} cases, up to {settings.max_seeds} seeds each, {len(settings.models)} models"

    def results(self, context: kernel.Context[SeedsSettings]) -> dict[str, Any]:
        """The cases."""
        return context.found("cases")

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """A sentence per case, and the programs."""
        found = [RobustSeed(**one) for one in results["cases"]]
        rows = tuple((one.hops, one.seq_len, one.seed, one.program) for one in found if one.seed is not None)
        table = page.Table(("hops", "lines", "seed", "program"), rows, "Programs that all models answer correctly.")
        sections = (page.Section("Programs", tables=(table,)),) if rows else ()
        title = f"Robust seeds of {', '.join(self.models)}"
        return page.Report(title, tuple(map(str, found)), sections)

    def command(self, settings: SeedsSettings) -> str:
        """With the models."""
        models = [word for name in settings.models for word in ("-m", name)]
        return shlex.join(["sonde", *self.verb, *models, *settings.typed()])


def find_robust_seeds(
    settings: SeedsSettings, *, opener: answering.Opener = answering.open_model, **place: Any
) -> list[RobustSeed]:
    """Searches each case in its order.

    Args:
        settings: What to search with.
        opener: Gives something to ask for a model's name.
        **place: Of `experiments.run`: `run`, `runs_dir`, `engine`, `on_progress`.
    """
    search = Seeds(settings.models, answering.Answerers(opener))
    try:
        return [RobustSeed(**one) for one in kernel.run(search, settings, **place).results["cases"]]
    finally:
        search.answerers.close()


def _models(context: kernel.Context[Any]) -> dict[str, Any]:
    """Opens them all."""
    return {"held": {name: context.experiment.answerers.held(name) for name in context.settings.models}}


def _cases(context: kernel.Context[Any]) -> list[dict[str, Any]]:
    return [{"hops": hops, "seq_len": seq_len} for hops, seq_len in context.settings.cases]


def _case(context: kernel.Context[Any], item: Mapping[str, Any]) -> dict[str, Any]:
    settings, answerers, (hops, seq_len) = (
        context.settings,
        context.experiment.answerers,
        (item["hops"], item["seq_len"]),
    )
    for name, held in context.found("models")["held"].items():
        answerers.check(name, held, what=f"run {context.run.id}")
    for first in range(0, settings.max_seeds, settings.batch_size):
        last = min(first + settings.batch_size, settings.max_seeds)
        right = [_item(seed, hops, seq_len) for seed in range(first, last)]
        for name in settings.models:
            rows = answers.ask(_config(settings, name), name, answerers(name), right) if right else []
            right = [item for item, row in zip(right, rows, strict=True) if row["correct"]]
        context.tell(f"{hops} hops, {seq_len} lines", settings.max_seeds if right else last, settings.max_seeds)
        if right:
            one = right[0]
            line = one.metadata["root_line"]
            found = RobustSeed(hops, seq_len, one.seq_id + 1, one.seq_id, one.program, int(one.answer), line)
            return dataclasses.asdict(found)
    return dataclasses.asdict(RobustSeed(hops, seq_len, settings.max_seeds))


def _item(seed: int, hops: int, seq_len: int) -> experiments.Item:
    made = generators.make_variable_binding_program_with_metadata(seq_len, np.random.default_rng(seed), hops=hops)
    return experiments.Item(seq_len, seed, *made)


def _config(settings: SeedsSettings, name: str) -> experiments.ExperimentConfig:
    return experiments.ExperimentConfig(
        name="seeds",
        prompt_template=settings.template,
        program_generator=generators.make_variable_binding_program,
        models=(name,),
        max_new_tokens=settings.max_new_tokens,
        batch_size=settings.batch_size,
    )
