"""Checksums of the files of a run that carry none themselves: results, reports, figures, tensors.

    seals.add(folder, [folder / "report.html"])
    seals.verify(folder)            # what is missing or other than it was

They stand in `seals.json`, a document of its own in the run's folder. A file that is written anew is sealed anew. Finds
accidents, not forgeries. Costs one read of each file.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pydantic

from sonde.store import damage, disk, documents, files, schemas, tensors

NAME = "seals.json"


class _Seal(pydantic.BaseModel):
    bytes: schemas.Count
    crc32: schemas.Crc


class _Seals(schemas.Document):
    files: dict[str, _Seal]


KIND = schemas.register("seals", _Seals)


def add(folder: Path, paths: Iterable[Path]) -> None:
    """Seals files of a run as they are now, and drops the seals of those that are gone.

    Raises:
        StoreError: One cannot be read, or the seals cannot be written.
        DamagedError: One is a link or no regular file.
    """
    known: dict[str, Any] = documents.kept(folder / NAME, KIND)["files"] if (folder / NAME).exists() else {}
    for path in paths:
        try:
            with disk.explained(path, doing="read"):
                known[path.relative_to(folder).as_posix()] = _measured(path)
        except damage.UnreadableError as error:
            raise damage.Damage(path, str(error)).error() from error
    there = {name: seal for name, seal in sorted(known.items()) if (folder / name).is_file()}
    documents.keep(folder / NAME, {"files": there})


def verify(folder: Path) -> list[damage.Damage]:
    """Returns the sealed files of a run that are missing or are not as they were."""
    if not (folder / NAME).exists():
        return []
    try:
        sealed = documents.examine(folder / NAME, KIND)["files"]
    except (damage.UnreadableError, OSError):
        return []  # named by whoever verifies the documents
    found: list[damage.Damage] = []
    for name, seal in sealed.items():
        path = folder / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            found.append(damage.Damage(folder / NAME, "names a file outside of the run"))
            continue
        try:
            if _measured(path) != seal:
                found.append(damage.Damage(path, "is not as it was sealed"))
        except FileNotFoundError:
            found.append(damage.Damage(path, "is missing"))
        except (OSError, damage.UnreadableError) as error:
            found.append(damage.Damage(path, f"cannot be read: {error}"))
    return found


def _measured(path: Path) -> dict[str, Any]:
    crc, size = 0, 0
    with files.opened(path) as file:
        while chunk := file.read(tensors.CHUNK):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": f"{crc:08x}"}
