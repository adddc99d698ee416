"""Where are the figures of a leaderboard kept, so that it can be stopped and taken up?

    kept = board_rows.Kept(folder, {"pairs": 100, "metric": None})
    kept.add(row); kept.rows["embedded", "3", 0, "eap"]; kept.close()

    folder/
        settings.json     what the rows have in common
        rows.jsonl        a checksummed line per model and method; of two for the same, the later one counts

A row is durable once it was added; half a line at the end is cut off when the folder is opened again. Two writers are refused.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.store import disk, documents, schemas

SETTINGS, ROWS = "settings.json", "rows.jsonl"
Key = tuple[str, str, int, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method on one model.

    Attributes:
        kind: Where the model is from.
        case: Its case.
        seed: Its seed.
        method: The method.
        digest: Of the model's weights.
        code: Of the file that the method is from; empty for one of the house.
        metric: What the method looked at.
        level: Whether it scored edges or nodes.
        node_auroc: Of heads and MLPs.
        head_auroc: Of heads alone; None where all of them are true, or none is.
        edge_auroc: Of edges, heads whole.
        true_nodes: How many nodes of the circuit are judged.
        left_out: How many are not, because they never matter in an exchange.
        passes: Forward and backward passes over all pairs.
        seconds: On the clock.
    """

    kind: str
    case: str
    seed: int
    method: str
    digest: str
    code: str
    metric: str
    level: str
    node_auroc: float | None
    head_auroc: float | None
    edge_auroc: float | None
    true_nodes: int
    left_out: int
    passes: float
    seconds: float

    @property
    def key(self) -> Key:
        """What there is one of."""
        return self.kind, self.case, self.seed, self.method


SETTINGS_KIND = schemas.register("settings of a leaderboard", schemas.Data)
ROW_KIND = schemas.register("row of a leaderboard", schemas.strict(Row, extra="ignore"))


class Kept:
    """The folder of a leaderboard."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Makes the folder, or takes up what is there.

        Raises:
            RequestError: The folder holds rows with other settings.
            StoreError: It cannot be written, or somebody else is writing it.
        """
        self.folder = folder
        with disk.explained(folder):
            disk.make_dirs(folder)
            if not (folder / SETTINGS).exists():
                disk.write_atomic(folder / SETTINGS, json.dumps(dict(settings), indent=1).encode())
        _check(folder, settings)
        with disk.explained(folder / ROWS):
            self._file = disk.AppendFile(folder / ROWS)
            self.rows, end = _rows(folder / ROWS)
            self._file.cut(end)

    def add(self, row: Row) -> None:
        """Keeps a row."""
        with disk.explained(self.folder / ROWS, then="give the same command again"):
            self._file.append(documents.seal_line(dataclasses.asdict(row)))
        self.rows[row.key] = row

    def close(self) -> None:
        """Lets go of the folder."""
        self._file.close()


def read(folder: Path, settings: Mapping[str, Any]) -> dict[Key, Row]:
    """The rows of a folder, none if it is not there.

    Raises:
        RequestError: The folder holds rows with other settings.
    """
    if not (folder / SETTINGS).exists():
        return {}
    _check(folder, settings)
    return _rows(folder / ROWS)[0] if (folder / ROWS).exists() else {}


def _check(folder: Path, settings: Mapping[str, Any]) -> None:
    there = documents.read_results(folder / SETTINGS, SETTINGS_KIND)
    if there != dict(settings):
        odd = [f"{name} {there.get(name)} / {value}" for name, value in settings.items() if there.get(name) != value]
        raise errors.RequestError(
            f"{folder} holds rows with other settings (there / asked: {', '.join(odd)}): give those, or another folder"
        )


def _rows(path: Path) -> tuple[dict[Key, Row], int]:
    """What was written whole, and where the last of it ends."""
    lines, end = documents.whole_lines(path, ROW_KIND)
    names = {field.name for field in dataclasses.fields(Row)}
    rows = [Row(**{name: value for name, value in line.items() if name in names}) for line in lines]
    return {row.key: row for row in rows}, end
