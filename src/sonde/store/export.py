"""How do other tools get at a run: as one JSON file, or as Parquet tables?

Episodes are read one after the other, so memory holds one episode at a time. JSON costs one pass over the steps,
Parquet two: the first learns which columns there are and what they hold.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.store import disk, reader, run, tables

ROWS_BYTES = 8 << 20  # of array data per row group


def export_json(source: run.Run, out: Path | str) -> Path:
    """Writes manifest, metadata and all steps as one JSON file (arrays by dtype and shape only).

    Args:
        source: The run.
        out: The file to write; one that is there is replaced.

    Returns:
        The file.

    Raises:
        StoreError: The file cannot be written.
    """
    path = Path(out).resolve()
    with disk.explained(path, doing="export to"):
        disk.make_dirs(path.parent)
        with disk.replacing(path) as fd, os.fdopen(fd, "w", encoding="ascii", closefd=False) as file:
            file.write(f'{{"run": {json.dumps(source.manifest)},\n"episodes": [')
            for number, episode in enumerate(source.episodes()):
                file.write((",\n" if number else "\n") + json.dumps(_summary(episode)))
            file.write("\n]}\n")
    return path


def _summary(episode: reader.EpisodeReader) -> dict[str, Any]:
    reward = episode.reward
    return {
        "id": episode.id,
        "created": episode.created,
        "status": episode.status,
        "reward": reward if reward is None or abs(reward) < float("inf") else repr(reward),
        "metadata": episode.metadata,
        "summary": episode.summary,
        "arrays": {name: {"dtype": episode.dtype(name), "shape": episode.shape(name)} for name in episode.names},
        "steps": episode.steps,
    }


def export_parquet(source: run.Run, out: Path | str, arrays: Sequence[str] = ()) -> list[Path]:
    """Writes `steps.parquet`, and one Parquet file of rows for each chosen array.

    The steps table has the columns run, episode, step, and one per field of the steps; nested fields are JSON
    strings. An array table has run, episode, step, row and value, a list of one row's numbers (BF16 as float32).

    Args:
        source: The run.
        out: The folder to write into; files of the same names are replaced.
        arrays: Names of the arrays to export.

    Returns:
        The files.

    Raises:
        MissingExtraError: pyarrow is not installed.
        StoreError: An array was not recorded, changes its shape between episodes, or cannot be written.
    """
    tables.import_pyarrow()
    folder = Path(out).resolve()
    with disk.explained(folder, doing="export to"):
        disk.make_dirs(folder)
        kinds = {name: _row_kind(source, name) for name in arrays}
        files = [folder / "steps.parquet"]
        fields = tables.learn_fields(step for episode in source.episodes() for step in episode.steps)
        tables.write(files[0], tables.steps_schema(fields), _step_batches(source, fields))
        for name, (dtype, tail) in kinds.items():
            files.append(folder / f"{tables.file_name(name)}.parquet")
            tables.write(files[-1], tables.rows_schema(name, dtype, tail), _row_batches(source, name))
    return files


def _step_batches(source: run.Run, fields: dict[str, str]) -> Iterator[dict[str, Any]]:
    for episode in source.episodes():
        count = len(episode.steps)
        if count:
            keys = {"run": [source.id] * count, "episode": [episode.id] * count, "step": list(range(count))}
            yield keys | tables.step_columns(episode.steps, fields)


def _row_kind(source: run.Run, name: str) -> tuple[str, tuple[int, ...]]:
    """Returns dtype and row shape of an array, which must be the same in all episodes."""
    found: dict[tuple[str, tuple[int, ...]], str] = {}
    known: set[str] = set()
    for episode in source.episodes():
        known.update(episode.names)
        if name in episode.names:
            found.setdefault((episode.dtype(name), episode.shape(name)[1:]), episode.id)
    if not found:
        raise errors.StoreError(f"no array {name!r} in run {source.id}{errors.suggest(name, known)}")
    if len(found) > 1:
        kinds = ", ".join(f"{dtype} {shape} in episode {id}" for (dtype, shape), id in found.items())
        raise errors.StoreError(f"array {name!r} cannot be one table, its rows differ between episodes: {kinds}")
    return next(iter(found))


def _row_batches(source: run.Run, name: str) -> Iterator[dict[str, Any]]:
    for episode in source.episodes():
        if name not in episode.names:
            continue
        whole = episode.array(name)
        steps = [step for step in range(len(episode.steps)) for _ in episode.rows(name, step)]
        width = max(1, len(whole.data) // max(1, whole.shape[0]))
        jump = max(1, ROWS_BYTES // width)
        for start in range(0, whole.shape[0], jump):
            stop = min(start + jump, whole.shape[0])
            yield {
                "run": [source.id] * (stop - start),
                "episode": [episode.id] * (stop - start),
                "step": steps[start:stop],
                "row": list(range(start, stop)),
                "value": whole.rows(start, stop).to_numpy(widen=True),
            }
