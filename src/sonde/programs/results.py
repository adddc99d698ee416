"""What came out, how sure is it, and where is it kept? Rows, their summary, and the folder of an experiment.

    results/debug_experiments/{name}_{timestamp}/
        settings.json        what was asked
        models.json          which models answered: see `models.identity`
        rows.jsonl           while it runs: one checksummed line per batch, durable as soon as it is written
        results.json         at the end: one row per model and program
        summary.json         accuracy with 95 % intervals, by model and by length, beside the heuristics'
        accuracy_plot.png

Costs one durable write a batch.
"""

import dataclasses
import datetime
import json
import re
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
SETTINGS, ROWS, RESULTS, SUMMARY = "settings.json", "rows.jsonl", "results.json", "summary.json"
PLOT, HEATMAP = "accuracy_plot.png", "accuracy_heatmap.png"


class _Row(pydantic.BaseModel):
    """One model and program, as far as it is counted again."""

    seq_len: schemas.Count
    seq_id: Any
    model_id: schemas.Text
    program: schemas.Text
    true_answer: Any
    correct: pydantic.StrictBool


class _Batch(pydantic.BaseModel):
    """A line of rows.jsonl."""

    rows: Annotated[list[_Row], pydantic.Field(fail_fast=True)]


class _Summary(pydantic.BaseModel):
    """summary.json, as far as it is looked into."""

    experiment: schemas.Text


SETTINGS_KIND = schemas.register("settings of an experiment", schemas.Data)
RESULTS_KIND = schemas.register("table of results", Annotated[list[_Row], pydantic.Field(fail_fast=True)])
MODELS_KIND = schemas.register("records of models", dict[str, schemas.Data])
SUMMARY_KIND = schemas.register("summary of an experiment", _Summary)
BATCH_KIND = schemas.register("batch of results", _Batch)
_STAMP = re.compile(r"[\w-]{1,60}", re.ASCII)


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


class Kept:
    """The folder of an experiment under way."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], kind: str = BATCH_KIND) -> None:
        """Makes the folder, or takes up the one that is there, whose batches are of a kind.

        Raises:
            RequestError: The folder holds an experiment with other settings.
            StoreError: It cannot be written, is damaged, or somebody else is writing it.
        """
        self.folder = folder
        told = plain.jsonable(settings)
        path = folder / SETTINGS
        with disk.explained(folder):
            disk.make_dirs(folder)
            if not path.exists():
                _write(path, told)
        known = documents.read_results(path, SETTINGS_KIND)
        different = sorted(name for name in {*known, *told} if known.get(name) != told.get(name))
        if different:
            raise errors.RequestError(
                f"{folder} holds an experiment with other settings: {', '.join(different)}; give the settings it was "
                "begun with, or another timestamp"
            )
        with disk.explained(folder / ROWS):
            self._file = disk.AppendFile(folder / ROWS)
            batches, end = documents.whole_lines(folder / ROWS, kind)
            self.batches: list[list[Row]] = [batch["rows"] for batch in batches]
            self._file.cut(end)

    def check_model(self, held: Mapping[str, Any]) -> None:
        """Keeps the record of a model that is to answer.

        Raises:
            RequestError: Another one of its name has answered here before; says what differs.
        """
        from sonde.models import identity

        path = self.folder / MODELS
        known = documents.read_results(path, MODELS_KIND) if path.exists() else {}
        identity.check(known.get(held["name"], {}), held, what=f"the experiment in {self.folder}")
        with disk.explained(path):
            _write(path, {**known, held["name"]: plain.jsonable(held)})

    def add(self, rows: Sequence[Row]) -> list[Row]:
        """Keeps the rows of one batch, durably; returns them as they will be read back."""
        told = plain.jsonable(list(rows))
        with disk.explained(self.folder / ROWS, then="run the same experiment again with its timestamp"):
            self._file.append(documents.seal_line({"rows": told}))
        return told

    def finish(self, rows: Sequence[Row], summary: Mapping[str, Any]) -> None:
        """Writes results and summary; the batches are not needed any more."""
        with disk.explained(self.folder):
            _write(self.folder / RESULTS, plain.jsonable(list(rows)))
            _write(self.folder / SUMMARY, plain.jsonable(summary))
            (self.folder / ROWS).unlink()

    def close(self) -> None:
        """Lets go of the folder."""
        self._file.close()


def folder_of(base: Path, name: str, stamp: str | None) -> Path:
    """Where an experiment is kept; without a timestamp a new folder, named after the time.

    Raises:
        RequestError: The timestamp cannot be part of a folder's name.
    """
    if stamp is None:
        now = datetime.datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
        tries = (base / f"{name}_{now}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
        return next(folder for folder in tries if not folder.exists())
    if not _STAMP.fullmatch(stamp):
        raise errors.RequestError(f"a timestamp has letters, digits, '_' and '-', got {stamp!r}")
    return base / f"{name}_{stamp}"


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
    """Reads the latest finished experiment of a name, by its timestamp.

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


def _write(path: Path, content: Any) -> None:
    disk.write_atomic(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def _where(rows: Sequence[Row], **fields: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]
