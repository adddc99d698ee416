"""How does accuracy go with length, and what are the mistakes? Charts and counts from the rows of an experiment.

Bands are 95 % intervals over programs; the line-1 and line-2 heuristics are drawn in. Costs a second or so a picture.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.core import errors
from sonde.programs import heuristics, outcomes, parsers
from sonde.report import charts, drawing

KINDS = ("no answer", *heuristics.NAMES, "another constant of the program", "other")


def accuracy_chart(experiment: str, rows: Sequence[outcomes.Row]) -> charts.Lines:
    """Accuracy over length: a line with a band per model, and a line per heuristic."""
    lengths = sorted({row["seq_len"] for row in rows})
    models = list(dict.fromkeys(row["model_id"] for row in rows))
    series = [_series(model, [row for row in rows if row["model_id"] == model], lengths) for model in models]
    by_length = [outcomes.heuristic_scores([row for row in rows if row["seq_len"] == length]) for length in lengths]
    series += [charts.Series(name, np.array([one[name] for one in by_length])) for name in heuristics.NAMES]
    counts = sorted({sum(row["seq_len"] == length for row in rows) // len(models) for length in lengths})
    return charts.Lines(
        key="accuracy_plot",
        title=f"{experiment}: accuracy by program length",
        x=np.array(lengths, dtype=float),
        series=tuple(series),
        x_name="assignments",
        y_name="share of correct answers",
        caption=f"{' to '.join(map(str, counts[:1] + counts[1:][-1:]))} programs per length and model; bands: 95 % "
        "intervals over programs.",
        y_range=(-0.03, 1.03),
    )


def save_accuracy(found: outcomes.ExperimentResult) -> None:
    """Draws accuracy over length into an experiment's folder."""
    assert found.folder is not None
    drawing.save(drawing.figure(accuracy_chart(found.experiment, found.rows)), found.folder / outcomes.PLOT)


def heatmap_chart(experiment: str, rows: Sequence[outcomes.Row], down: str, across: str) -> charts.Heatmap:
    """Accuracy by any two fields of the rows or of their metadata, such as depth and root_line.

    Raises:
        AnalysisError: No row has such a field.
    """
    cells: dict[tuple[Any, Any], list[outcomes.Row]] = collections.defaultdict(list)
    for row in rows:
        cells[field(row, down), field(row, across)].append(row)
    for name, at in ((down, 0), (across, 1)):
        if all(key[at] is None for key in cells):
            known = sorted({*rows[0], *rows[0]["metadata"]} - {"metadata"})
            raise errors.AnalysisError(f"no row has a field {name!r}{errors.suggest(name, known)} Fields: {known}")
    tall, wide = ([one for one in _sorted({key[at] for key in cells}) if one is not None] for at in (0, 1))
    found = [[outcomes.accuracy(cells[a, b]) if (a, b) in cells else None for b in wide] for a in tall]
    return charts.Heatmap(
        key="accuracy_heatmap",
        title=f"{experiment}: accuracy",
        cells=np.array([[one["accuracy"] if one else np.nan for one in line] for line in found], dtype=float),
        rows=tuple(map(str, tall)),
        columns=tuple(map(str, wide)),
        x_name=across,
        y_name=down,
        value_name="share of correct answers",
        caption=f"{len(rows)} answers.",
        limits=(0.0, 1.0),
        hover=tuple(tuple(_told(one) for one in line) for line in found),
    )


def errors_of(rows: Sequence[outcomes.Row]) -> dict[str, Any]:
    """For each model: answers, how many are wrong, of which kind, and up to three examples of each kind.

    A wrong answer has the first kind that fits: no answer in the text, what the line-1 or the line-2 heuristic says,
    another constant of the program, other.
    """
    told: dict[str, Any] = {}
    for model in dict.fromkeys(row["model_id"] for row in rows):
        mine = [row for row in rows if row["model_id"] == model]
        wrong: dict[str, list[outcomes.Row]] = {kind: [] for kind in KINDS}
        for row in mine:
            if not row["correct"]:
                wrong[kind_of(row)].append(row)
        told[model] = {
            "answers": len(mine),
            "wrong": sum(map(len, wrong.values())),
            "kinds": {kind: len(held) for kind, held in wrong.items()},
            "examples": {kind: [dict(row) for row in held[:3]] for kind, held in wrong.items() if held},
        }
    return told


def kind_of(row: outcomes.Row) -> str:
    """The kind of a wrong answer."""
    said, program = row["predicted_answer"], row["program"]
    if said is None:
        return KINDS[0]
    for name, rule in zip(heuristics.NAMES, (heuristics.line_1, heuristics.line_2), strict=True):
        if parsers.is_correct(said, rule(program)):
            return name
    constants = [heuristics.line_constant(program, line) for line in range(1, program.count("\n") + 1)]
    return KINDS[3] if any(parsers.is_correct(said, one) for one in constants) else KINDS[4]


def field(row: outcomes.Row, name: str) -> Any:
    """A field of a row, or of its metadata; None if it has none."""
    return row[name] if name in row else row["metadata"].get(name)


def _series(model: str, rows: Sequence[outcomes.Row], lengths: Sequence[int]) -> charts.Series:
    found = [outcomes.accuracy([row for row in rows if row["seq_len"] == length]) for length in lengths]
    values, low, high = (
        np.array([np.nan if one[end] is None else one[end] for one in found], dtype=float)
        for end in ("accuracy", "low", "high")
    )
    return charts.Series(model, values, low, high)


def _sorted(values: set[Any]) -> list[Any]:
    return sorted(values, key=lambda one: (isinstance(one, str), one is None, one if one is not None else 0))


def _told(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "no programs"
    ends = "" if one["low"] is None else f" [{one['low']:.2f}, {one['high']:.2f}]"
    return f"{one['accuracy']:.2f}{ends}, n {one['n']}"
