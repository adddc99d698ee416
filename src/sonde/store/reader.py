"""What was recorded in an episode?

Opens an episode folder whether it is closed, still being written, or left behind by a crash. Opening reads the
steps and compares lengths; arrays are mapped, not read: a closed episode's array costs no memory until touched,
an open one's is put together from the journal, with checksums compared. `verify` reads everything.
"""

import mmap
import sys
import zlib
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.store import arrays, contents, damage, disk, files, plain, verify


class EpisodeReader:
    """One episode as it stood when it was opened; use `open`, not the constructor."""

    def __init__(self, found: contents.Contents) -> None:
        self._found = found
        self._map: mmap.mmap | None = None if found.closed else _map(found.data_file)
        self.folder = found.folder
        self.steps: list[dict[str, Any]] = [line.step for line in found.log.lines]

    @classmethod
    def open(cls, folder: Path | str) -> "EpisodeReader":
        """Opens an episode for reading.

        Raises:
            StoreError: There is no episode here.
            DamagedError: A length or a step's checksum does not match; says which file, array and step.
            VersionError: A newer Sonde wrote it.
        """
        folder = Path(folder).resolve()
        while True:
            found = contents.load(folder)
            if found.problems:
                raise found.problems[0].error()
            try:
                return cls(found)
            except FileNotFoundError:  # its writer closed it, and so deleted the journal, meanwhile: look again
                continue

    @property
    def id(self) -> str:
        """The episode's id."""
        return self._found.document["id"]

    @property
    def created(self) -> str:
        """When it was started, ISO 8601 in UTC."""
        return self._found.document["created"]

    @property
    def status(self) -> str:
        """`open` (being written, or left by a crash) or `closed`."""
        return self._found.document["status"]

    @property
    def metadata(self) -> dict[str, Any]:
        """What was known when the episode was started."""
        return self._found.document["metadata"]

    @property
    def summary(self) -> dict[str, Any]:
        """What was added when it was closed."""
        return self._found.document.get("summary", {})

    @property
    def reward(self) -> float | None:
        """The reward, if the summary had one that is a number."""
        value = self._found.document.get("reward")
        special = plain.special_float(value)
        if special is not None:
            return special
        return float(value) if isinstance(value, int | float) and abs(value) <= sys.float_info.max else None

    @property
    def names(self) -> list[str]:
        """The names of the arrays, sorted."""
        return sorted(self._found.columns)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of an array, without reading it."""
        self._check(name)
        return self._found.entries[name].shape if self._found.closed else self._found.columns[name].shape

    def dtype(self, name: str) -> str:
        """Returns the safetensors dtype name of an array, without reading it."""
        self._check(name)
        return self._found.columns[name].dtype

    def rows(self, name: str, step: int) -> range:
        """Returns which rows of an array a step added; an empty range if none."""
        self._check(name)
        if not 0 <= step < len(self.steps):
            raise errors.CaptureError(f"no step {step} in episode {self.id!r}: it has {len(self.steps)}")
        return self._found.columns[name].rows_of(step)

    def array(self, name: str) -> arrays.Array:
        """Returns a whole array: of a closed episode a view on the mapped file, of an open one a copy.

        The mapping is private: writing into the view never reaches the disk.

        Raises:
            CaptureError: No array of that name was recorded.
            DamagedError: Rows in the journal of an open episode do not match their checksum.
        """
        self._check(name)
        if self._map is None:
            with disk.explained(self._found.data_file, doing="map"):
                self._map = _map(self._found.data_file)
        column = self._found.columns[name]
        if self._found.closed:
            entry = self._found.entries[name]
            size = entry.shape[0] * column.row_bytes
            return arrays.Array(entry.dtype, entry.shape, memoryview(self._map)[entry.start : entry.start + size])
        whole = bytearray(column.size)
        at = 0
        for part in column.parts():
            piece = memoryview(self._map)[part.start : part.start + part.size]
            if zlib.crc32(piece) != part.crc32:
                problem = "the checksum does not match"
                raise damage.Damage(self._found.data_file, problem, array=name, step=part.step).error()
            whole[at : at + part.size] = piece
            at += part.size
        return arrays.Array(column.dtype, column.shape, memoryview(whole))

    def verify(self) -> list[damage.Damage]:
        """Reads everything on disk and returns what is damaged; an empty list if nothing is."""
        return verify.verify_episode(self.folder)

    def _check(self, name: str) -> None:
        if name not in self._found.columns:
            hint = errors.suggest(name, self.names) or f"; it has: {', '.join(self.names) or 'no arrays'}"
            raise errors.CaptureError(f"no array {name!r} in episode {self.id!r}{hint}")


def _map(path: Path) -> mmap.mmap:
    """Maps a file for reading; privately writable where memory allows, because torch wants writable buffers."""
    try:
        with files.opened(path) as file, disk.explained(path, doing="map"):
            try:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except OSError:  # larger than the system will promise memory for
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (damage.UnreadableError, ValueError) as error:  # cut to nothing since it was opened
        raise damage.Damage(path, str(error)).error() from error
