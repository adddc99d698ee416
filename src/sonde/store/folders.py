"""How does an episode folder come to be, and what does its episode.json say at birth and at the end?

A new folder is filled beside its place and moved there as a whole, so that no half-made episode is ever seen and
nothing of an overwritten one stays behind. Costs a few fsyncs per episode.
"""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.store import columns, contents, disk, documents, journal, names, plain, tensors


@contextlib.contextmanager
def fresh(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Gives a hidden folder to fill, which becomes `folder` when the block ends well.

    Raises:
        StoreError: The place is taken.
    """
    disk.make_dirs(folder.parent)
    _check_free(folder, overwrite=overwrite)
    new = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.new")
    new.mkdir()
    try:
        yield new
        disk.fsync_dir(new)
        _put(new, folder, overwrite=overwrite)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _check_free(folder: Path, *, overwrite: bool) -> None:
    """Checks that an episode may be put here."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / contents.NAME).is_file():
        raise errors.StoreError(f"{folder} holds something that is not an episode; choose another folder")
    if not overwrite:
        raise _taken(folder)
    if disk.is_locked(folder / journal.NAME):
        raise errors.StoreError(f"the episode at {folder} is being written; close its writer before replacing it")


def _put(new: Path, folder: Path, *, overwrite: bool) -> None:
    """Renames the new folder into place, moving an old episode out of the way as a whole."""
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    moved = overwrite and folder.exists()
    if moved:
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError as error:
        if moved:
            old.rename(folder)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another process was quicker
            raise _taken(folder) from error
        raise
    disk.fsync_dir(folder.parent)
    if moved:
        shutil.rmtree(old, ignore_errors=True)


def _taken(folder: Path) -> errors.StoreError:
    return errors.StoreError(f"there is an episode at {folder} already; pass overwrite=True to replace it")


def tidy(folder: Path) -> None:
    """Removes what a killed writer left half-written beside the real files, or had no time to delete.

    The journal of a closed episode is such a thing: its rows are in the packed file.
    """
    for leftover in folder.glob(".*.tmp"):
        with contextlib.suppress(IsADirectoryError):  # no writer of ours left it
            leftover.unlink(missing_ok=True)
    if os.path.lexists(folder / journal.NAME) and os.path.lexists(folder / tensors.NAME):
        with contextlib.suppress(errors.StoreError):  # what is damaged stays as it is
            if documents.read(folder / contents.NAME, "episode")["status"] == "closed":
                (folder / journal.NAME).unlink(missing_ok=True)


def opened(name: str, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns what episode.json says while the episode is open."""
    return {
        "format": documents.FORMAT,
        "id": name,
        "created": names.timestamp(),
        "versions": {"sonde": documents.sonde_version()},
        "metadata": plain.jsonable(dict(metadata or {})),
        "status": "open",
    }


def closed(
    table: Mapping[str, columns.Column], packed: tensors.Packed, summary: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns what episode.json says in addition once the episode is closed."""
    summary = dict(summary or {})
    return {
        "status": "closed",
        "closed": names.timestamp(),
        "reward": plain.jsonable(_number(summary.get("reward"))),
        "summary": plain.jsonable(summary),
        "data_bytes": packed.size,
        "data_header_crc32": f"{packed.header_crc32:08x}",
        "arrays": {
            name: {"dtype": column.dtype, "shape": column.shape, "crc32": f"{packed.arrays[name]:08x}"}
            for name, column in table.items()
        },
    }


def _number(value: Any) -> Any:
    """Returns numpy and torch scalars as the floats they are, so that a reward is a plain JSON number."""
    try:
        return value if value is None or isinstance(value, bool | int) else float(value)
    except Exception:  # not a number after all: jsonable will mark it
        return value
