"""Tables that grow: rows of one kind, each a sealed line that is durable once `append` returns.

    with run.table("points", POINT_KIND) as table:
        table.rows                      # what was there
        table.append({"name": "eap", "value": 0.5})

Half a row at the end, left by a writer that was killed, is cut off when the table is opened again. One writer at a time.
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sonde.store import disk, documents, plain


class Table:
    """A table that is open for appending."""

    def __init__(self, path: Path, kind: str) -> None:
        """Opens the table, making it if it is missing.

        Args:
            path: Its file.
            kind: The schema of its rows, as registered.

        Raises:
            StoreError: It cannot be written, or another process is writing it.
            DamagedError: A row is whole and yet none of this kind.
        """
        self.path = path
        with disk.explained(path):
            disk.make_dirs(path.parent)
            self._file = disk.AppendFile(path)
        try:
            self.rows, end = documents.whole_lines(path, kind)
            for row in self.rows:
                row.pop("crc32", None)
            with disk.explained(path):
                self._file.cut(end)
        except BaseException:
            self._file.close()
            raise

    def append(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps a row, durably; returns it as it will be read back."""
        kept = plain.jsonable(dict(row))
        with disk.explained(self.path, then="give the same command again"):
            self._file.append(documents.seal_line(kept))
        self.rows.append(kept)
        return kept

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        """Returns the table."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()


def read(path: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the whole rows of a table, none if it is not there; raises what `Table` does."""
    if not path.exists():
        return []
    found, _ = documents.whole_lines(path, kind)
    for row in found:
        row.pop("crc32", None)
    return found
