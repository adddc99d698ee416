"""Which runs are there, without opening them all?

One SQLite file beside the runs remembers what their folders say. It is only a cache: a run whose files changed
(sizes, times, inodes) is read again, and an index that is missing, damaged, locked or not writable is done
without, as is one that somebody else made up. Costs one stat per file of every run, and reading only the runs that
changed.
"""

import contextlib
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.store import damage, documents, files, layout, names, run, steplog

NAME = "index.sqlite"
_SCHEMA = 2
_TIMEOUT = 10.0  # seconds to wait for another process
_LONGEST = 1000  # characters of a kind or a model's name: nobody reads more in a list
_CREATE = """CREATE TABLE runs (
    id TEXT PRIMARY KEY, created TEXT, kind TEXT, model TEXT, status TEXT,
    episodes INTEGER, steps INTEGER, bytes INTEGER, stamp INTEGER, seal INTEGER
)"""
_CELLS = (str, str, str, str, str, int, int, int, int, int)


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run at a glance, episodes and steps with those of the runs within it.

    Its status is `running`, `interrupted`, `finished`, `failed`, `damaged` or `newer` (made by a newer Sonde).
    """

    id: str
    created: str
    kind: str
    model: str
    status: str
    episodes: int
    steps: int
    bytes: int
    folder: Path


class Index:
    """All runs of a folder."""

    def __init__(self, runs_dir: Path | str | None = None) -> None:
        self.runs_dir = Path(runs_dir if runs_dir is not None else names.default_runs_dir()).resolve()

    def runs(self) -> list[RunRow]:
        """Returns one row per run, in the order of their ids; always what the folders say now."""
        ids = layout.list_runs(self.runs_dir)
        if not ids:
            return []
        known = self._remembered()
        rows: list[RunRow] = []
        news: list[tuple[RunRow, int]] = []
        for id in ids:
            size, stamp = _measure(self.runs_dir / id)
            row = known.get((id, stamp))
            if row is None:
                row = _read(self.runs_dir / id, size)
                news.append((row, stamp))
            rows.append(replace(row, status=run.state(row.folder, row.status)))
        if news or len(known) != len(ids):
            self._remember(news, ids)
        return rows

    def _remembered(self) -> dict[tuple[str, int], RunRow]:
        """Returns the rows of the index by run and stamp; none if it cannot be read."""
        known: dict[tuple[str, int], RunRow] = {}
        if not (self.runs_dir / NAME).exists():
            return known
        try:
            with self._connect() as db:
                for row in db.execute("SELECT * FROM runs"):
                    *cells, stamp, seal = row
                    if tuple(map(type, row)) == _CELLS and seal == _seal(cells, stamp):
                        known[cells[0], stamp] = RunRow(*cells, folder=self.runs_dir / cells[0])
        except sqlite3.Error as error:
            self._drop_if_broken(error)
            return {}
        return known

    def _remember(self, news: list[tuple[RunRow, int]], ids: list[str]) -> None:
        """Writes new rows and forgets runs that are gone; an index that cannot be written is done without."""
        lines = [(*cells, stamp, _seal(cells, stamp)) for row, stamp in news for cells in [astuple(row)[:-1]]]
        lines = [line for line in lines if _text(line[0]) == line[0]]  # a name that is no Unicode is read each time
        ids = [id for id in ids if _text(id) == id]
        for _ in range(2):  # once more if the first try found it broken and dropped it
            try:
                with self._connect() as db, db:
                    db.executemany("INSERT OR REPLACE INTO runs VALUES (?,?,?,?,?,?,?,?,?,?)", lines)
                    gone = {id for (id,) in db.execute("SELECT id FROM runs")} - set(ids)
                    db.executemany("DELETE FROM runs WHERE id = ?", [(id,) for id in gone])
                return
            except sqlite3.Error as error:
                if not self._drop_if_broken(error):
                    return

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        path = self.runs_dir / NAME
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise sqlite3.OperationalError(f"{path} is not a regular file")
        with contextlib.closing(sqlite3.connect(path, timeout=_TIMEOUT)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != _SCHEMA:
                db.execute("PRAGMA journal_mode = WAL")
                with db:
                    db.execute("DROP TABLE IF EXISTS runs")
                    db.execute(_CREATE)
                    db.execute(f"PRAGMA user_version = {_SCHEMA}")
            # A view or a trigger could compute without end.
            if db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall() != [(_CREATE,)]:
                raise sqlite3.DatabaseError(f"{path} is no index of runs")
            yield db

    def _drop_if_broken(self, error: sqlite3.Error) -> bool:
        """Deletes the index if it is broken rather than busy or protected; returns whether it did."""
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return False
        try:
            for suffix in ("", "-wal", "-shm"):
                (self.runs_dir / f"{NAME}{suffix}").unlink(missing_ok=True)
        except OSError:
            return False
        return True


def runs_within(folder: Path) -> list[RunRow]:
    """Returns one row per run within a run, such as the games of a study; ids are paths below the folder."""
    _, *inner = layout.with_runs_within(folder)
    rows = [_read(place, _measure(place)[0]) for place in inner]
    return [
        replace(row, id=row.folder.relative_to(folder).as_posix(), status=run.state(row.folder, row.status))
        for row in rows
    ]


def _seal(cells: Any, stamp: int) -> int:
    """Returns a checksum of a row: SQLite has none of its own."""
    return zlib.crc32(repr((list(cells), stamp)).encode("utf-8", "backslashreplace"))


def _measure(folder: Path) -> tuple[int, int]:
    """Returns how many bytes a run takes, and a stamp that changes whenever one of its files does."""
    size, stamp = 0, 0
    todo = [str(folder)]
    while todo:
        try:
            entries = sorted(os.scandir(todo.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(OSError):  # gone meanwhile
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                    continue
                found = entry.stat(follow_symlinks=False)
                size += found.st_size
                sign = (entry.path[len(str(folder)) :], found.st_size, found.st_mtime_ns, found.st_ino)
                stamp = zlib.crc32(repr(sign).encode("utf-8", "backslashreplace"), stamp)
    return min(size, 2**63 - 1), stamp


def _read(folder: Path, size: int) -> RunRow:
    """Returns a run's row from its files."""
    manifest: dict[str, Any] = {}
    try:
        manifest = documents.read(folder / layout.MANIFEST, "manifest")
        layout.check(folder)
        status = manifest["status"]
    except errors.VersionError:
        status = "newer"
    except errors.StoreError:
        status = "damaged"
    model = manifest.get("model", {})
    episodes = layout.all_episodes(folder)
    if status != "newer" and any((folder / layout.EPISODES / id).is_symlink() for id in layout.list_episodes(folder)):
        status = "damaged"
    return RunRow(
        id=folder.name,
        created=_text(manifest.get("created")),
        kind=_text(manifest.get("kind")),
        model=_text(model.get("name") or model.get("id")),
        status=status,
        episodes=len(episodes),
        steps=sum(map(_count_steps, episodes)),
        bytes=size,
        folder=folder,
    )


def _text(value: object) -> str:
    """Returns the value as text that SQLite can hold."""
    return "" if value is None else str(value)[:_LONGEST].encode("utf-8", "backslashreplace").decode("utf-8")


def _count_steps(folder: Path) -> int:
    """Returns the number of finished steps of an episode, amendments not counted; 0 if that cannot be told."""
    count, rest = 0, b""
    try:
        with files.opened(folder / steplog.NAME) as file:
            files.size_of(file, steplog.LIMIT)
            while (chunk := file.read(steplog.CHUNK)) and b"\0" not in chunk:  # a hole in a file has no lines
                count += chunk.count(b"\n") - (rest + chunk).count(steplog.AMENDS)
                rest = chunk[1 - len(steplog.AMENDS) :]
    except (OSError, damage.UnreadableError):
        return 0
    return count
