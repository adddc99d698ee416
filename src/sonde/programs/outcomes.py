"""The rows of an experiment, their summary, and the files of the seed's names.

    results/debug_experiments/{name}_{run}/
        settings.json        what was asked
        models.json          which models answered: see `models.identity`
        results.json         one row per model and program
        summary.json         accuracy with 95 % intervals, by model and by length, beside the heuristics'
        accuracy_plot.png

The experiment's run holds the same, and is what is resumed. Costs nothing much.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic

from sonde.analysis import stats
from sonde.core import errors
from sonde.programs import heuristics
from sonde.store import disk, documents, plain, schemas

Row = Mapping[str, Any]
MODELS = "models.json"
SETTINGS, RESULTS, SUMMARY = "settings.json", "results.json", "summary.json"
PLOT, HEATMAP = "accuracy_plot.png", "accuracy_heatmap.png"


class RowSchema(pydantic.BaseModel):
    """One model and program, as far as it is counted again."""

    seq_len: schemas.Count
    seq_id: Any
    model_id: schemas.Text
    program: schemas.Text
    true_answer: Any
    correct: pydantic.StrictBool


class _Summary(pydantic.BaseModel):
    """summary.json, as far as it is looked into."""

    experiment: schemas.Text


RESULTS_KIND = schemas.register("table of results", Annotated[list[RowSchema], pydantic.Field(fail_fast=True)])
SUMMARY_KIND = schemas.register("summary of an experiment", _Summary)


@dataclasses.dataclass(frozen=True, slots=True)
class ExperimentResult:
    """A finished experiment.

    Attributes:
        experiment: Its name.
        rows: One per model and program: experiment, model_id, seq_len, seq_id, program, true_answer, predicted_answer,
            correct, raw_output, metadata.
        summary: As in summary.json.
        folder: Where it is kept; None if it was not saved.
    """

    experiment: str
    rows: tuple[Row, ...]
    summary: Mapping[str, Any]
    folder: Path | None

    @classmethod
    def of(cls, experiment: str, rows: Sequence[Row], folder: Path | None) -> "ExperimentResult":
        """The result of these rows."""
        return cls(experiment, tuple(rows), summarise(experiment, rows), folder)


def write(found: ExperimentResult, settings: Mapping[str, Any], held: Mapping[str, Any]) -> None:
    """Writes an experiment into its folder, with its settings and who answered."""
    assert found.folder is not None
    contents = {SETTINGS: settings, MODELS: held, RESULTS: list(found.rows), SUMMARY: found.summary}
    with disk.explained(found.folder):
        disk.make_dirs(found.folder)
        for name, content in contents.items():
            text = json.dumps(plain.jsonable(content), indent=1, allow_nan=False) + "\n"
            disk.write_atomic(found.folder / name, text.encode())


def finished(folder: Path) -> ExperimentResult:
    """Reads a finished experiment.

    Raises:
        StoreError: There is none, or it cannot be read.
    """
    rows, summary = (
        documents.read_results(folder / RESULTS, RESULTS_KIND),
        documents.read_results(folder / SUMMARY, SUMMARY_KIND),
    )
    return ExperimentResult(summary["experiment"], tuple(rows), summary, folder)


def latest(base: Path, name: str) -> ExperimentResult:
    """Reads the latest finished experiment of a name, by its folder's name.

    Raises:
        StoreError: There is none.
    """
    found = sorted(path.parent for path in base.glob(f"*/{SUMMARY}") if path.parent.name.startswith(f"{name}_"))
    fitting = [
        folder for folder in found if documents.read_results(folder / SUMMARY, SUMMARY_KIND)["experiment"] == name
    ]
    if not fitting:
        raise errors.StoreError(f"no finished experiment {name!r} in {base}: run it first")
    return finished(fitting[-1])


def summarise(experiment: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Accuracy over all rows, by model and by length, each with n and a 95 % interval, and the heuristics' scores."""
    lengths, models = (list(dict.fromkeys(row[key] for row in rows)) for key in ("seq_len", "model_id"))
    return {
        "experiment": experiment,
        "total_samples": len(rows),
        "overall_accuracy": float(np.mean([row["correct"] for row in rows])) if rows else None,
        "by_model": {model: accuracy(_where(rows, model_id=model)) for model in models},
        "by_seq_len": {str(length): accuracy(_where(rows, seq_len=length)) for length in lengths},
        "heuristics": {
            "overall": dict(heuristic_scores(rows)),
            "by_seq_len": {str(length): dict(heuristic_scores(_where(rows, seq_len=length))) for length in lengths},
        },
    }


def accuracy(rows: Sequence[Row]) -> dict[str, Any]:
    """The share of correct rows with its interval over programs; a single program has no interval."""
    correct = np.array([bool(row["correct"]) for row in rows])
    programs = np.array([f"{row['seq_len']}/{row['seq_id']}" for row in rows])
    if len(set(programs)) < 2:
        return {"accuracy": float(correct.mean()), "low": None, "high": None, "n": len(rows)}
    found = stats.mean_interval(correct, programs)
    return {"accuracy": found.value, "low": found.low, "high": found.high, "n": found.n}


def heuristic_scores(rows: Iterable[Row]) -> Mapping[str, float]:
    """What the heuristics score on the programs of these rows, each program once."""
    each = {(row["seq_len"], row["seq_id"]): (row["program"], row["true_answer"]) for row in rows}
    return heuristics.scores(each.values())


def _where(rows: Sequence[Row], **fields: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]
