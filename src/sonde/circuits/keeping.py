"""Where is a search for circuits kept, so that it can be stopped and taken up?

    folder/
        settings.json          what was asked, and of which model: see `models.identity`
        scores/{method}.json   what each method found, with a checksum
        points.jsonl           the metric of each pair for each circuit that was run alone, one checksummed line each
        results.json           at the end: curves, CPR, CMD, the circuit

Everything is durable as soon as it is written; half a line at the end is cut off when the folder is opened again. Costs a
durable write for each method and circuit.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from jaxtyping import Float

from sonde.circuits import scores
from sonde.core import errors
from sonde.models import identity
from sonde.store import damage, disk, documents, files, plain, schemas

SETTINGS, SCORES, POINTS, RESULTS = "settings.json", "scores", "points.jsonl", "results.json"
HELD = "held"


class _Settings(pydantic.BaseModel):
    """settings.json: what was asked, and the record of the model that was."""

    held: schemas.Data = {}


class _Point(pydantic.BaseModel):
    """A line of points.jsonl."""

    name: schemas.Text
    n_edges: schemas.Count
    values: Annotated[list[schemas.Number], pydantic.Field(fail_fast=True)]


SETTINGS_KIND = schemas.register("settings of a search", _Settings)
SCORES_KIND = schemas.register("file of scores", schemas.Data)
POINT_KIND = schemas.register("point of a curve", _Point)
_ODD = re.compile(r"[^\w.-]", re.ASCII)


class Kept:
    """The folder of a search under way."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], held: Mapping[str, Any]) -> None:
        """Makes the folder, or takes up the search that is there.

        Args:
            folder: Where it is.
            settings: What is asked.
            held: The model's record.

        Raises:
            RequestError: The folder holds a search with other settings, or of another model.
            StoreError: It cannot be written, or somebody else is writing it.
        """
        self.folder = folder
        told, path = plain.jsonable(settings), folder / SETTINGS
        with disk.explained(folder):
            disk.make_dirs(folder / SCORES)
            if not path.exists():
                disk.write_atomic(path, _text({**told, HELD: plain.jsonable(held)}))
        known = documents.read_results(path, SETTINGS_KIND)
        before = known.pop(HELD, {})
        _check_same(folder, known, told)
        identity.check(before, held, what=f"the search in {folder}")
        with disk.explained(folder / POINTS):
            self._file = disk.AppendFile(folder / POINTS)
            points, end = documents.whole_lines(folder / POINTS, POINT_KIND)
            self._file.cut(end)
        self._points: dict[tuple[str, int], Float[np.ndarray, "pair"]] = {
            (one["name"], one["n_edges"]): np.array(one["values"], dtype=np.float64) for one in points
        }

    def point(self, name: str, n_edges: int) -> Float[np.ndarray, "pair"] | None:
        """The metric of each pair, for a circuit that was run before."""
        return self._points.get((name, n_edges))

    def points(self, name: str) -> dict[int, Float[np.ndarray, "pair"]]:
        """All that is known under a name, by number of edges."""
        return {count: values for (known, count), values in self._points.items() if known == name}

    def add_point(self, name: str, n_edges: int, values: Float[np.ndarray, "pair"]) -> None:
        """Keeps the metric of each pair."""
        line = {"name": name, "n_edges": n_edges, "values": values.tolist()}
        with disk.explained(self.folder / POINTS, then="give the same command again"):
            self._file.append(documents.seal_line(line))
        self._points[name, n_edges] = values

    def found(self, method: str) -> scores.Scores | None:
        """What a method found, if it has finished.

        Raises:
            DamagedError: The file is not as it was written.
        """
        path = self._path(method)
        if not path.exists():
            return None
        try:
            with disk.explained(path, doing="read"):
                content = documents.unseal_line(files.read(path, schemas.LIMIT).removesuffix(b"\n"), SCORES_KIND)
            content.pop("crc32", None)
            return scores.Scores.from_json(content)
        except (damage.UnreadableError, LookupError, TypeError, ValueError) as error:
            raise errors.DamagedError(f"{path}: {error}; delete the file, and the method runs again") from error

    def add_found(self, method: str, found: scores.Scores) -> None:
        """Keeps what a method found."""
        with disk.explained(self._path(method), then="give the same command again"):
            disk.write_atomic(self._path(method), documents.seal_line(plain.jsonable(found.to_json())))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the results; what they were made from stays."""
        with disk.explained(self.folder / RESULTS):
            disk.write_atomic(self.folder / RESULTS, _text(plain.jsonable(results)))

    def close(self) -> None:
        """Lets go of the folder."""
        self._file.close()

    def _path(self, method: str) -> Path:
        return self.folder / SCORES / f"{_ODD.sub('_', method)}.json"


def _check_same(folder: Path, known: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    different = sorted(name for name in {*known, *told} if known.get(name) != told.get(name))
    if different:
        raise errors.RequestError(
            f"{folder} holds a search with other settings: {', '.join(different)}; give the settings it was begun with, "
            "or another folder"
        )


def _text(content: Any) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
