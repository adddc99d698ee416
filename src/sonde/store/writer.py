"""How is an episode written so that no finished step is ever lost?

1. `append_step` writes the arrays to the journal and fsyncs, then the step's line to steps.jsonl and fsyncs. When it
   returns, the step survives a kill or a power cut. When it fails (a full disk), both files are cut back.
2. `close` packs the journal into a safetensors file, renames it into place, marks episode.json closed, and
   only then deletes the journal: a crash anywhere in between leaves one complete source of truth.

Costs two fsyncs per step, and twice the disk space of the episode for a moment while it closes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sonde.core import errors
from sonde.store import arrays, columns, contents, disk, documents, folders, journal, plain, steplog, tensors


@dataclass(frozen=True, slots=True)
class _Tail:
    """Where the next step goes: its index, the ends of both files, and per array dtype, row shape and rows."""

    index: int
    journal: int
    steps: int
    arrays: Mapping[str, tuple[str, tuple[int, ...], int]]


class EpisodeWriter:
    """Writes one episode, step by step; use `create` or `resume`, not the constructor."""

    def __init__(self, folder: Path, tail: _Tail, *, data: disk.AppendFile, steps: disk.AppendFile) -> None:
        self.folder = folder
        self._tail = tail
        self._data = data
        self._steps = steps
        self._state = "open"

    @classmethod
    def create(
        cls, folder: Path | str, *, metadata: Mapping[str, Any] | None = None, overwrite: bool = False
    ) -> "EpisodeWriter":
        """Starts a new episode in a folder of its own.

        Args:
            folder: Where; folders above it are made.
            metadata: About the episode; what JSON lacks is stored as its repr, marked.
            overwrite: Replace an episode that is there already, with all its steps.

        Raises:
            StoreError: The folder is taken, or cannot be written.
        """
        folder = Path(folder).resolve()
        with disk.explained(folder, doing="make"), folders.fresh(folder, overwrite=overwrite) as new:
            documents.write(new / contents.NAME, folders.opened(folder.name, metadata))
            data = disk.AppendFile(new / journal.NAME)
            steps = disk.AppendFile(new / steplog.NAME)
            data.append(journal.MAGIC)
        return cls(folder, _Tail(0, len(journal.MAGIC), 0, {}), data=data, steps=steps)

    @classmethod
    def resume(cls, folder: Path | str) -> "EpisodeWriter":
        """Continues an episode whose writer stopped: keeps all finished steps, drops what was in flight.

        Raises:
            StoreError: The episode is closed, or another writer has it.
            DamagedError: A finished step is damaged.
        """
        folder = Path(folder).resolve()
        found = contents.load(folder)
        if found.closed:
            raise errors.StoreError(f"the episode at {folder} is closed; start a new one to add steps")
        with disk.explained(folder, doing="resume"):
            data = disk.AppendFile(folder / journal.NAME)
            steps = disk.AppendFile(folder / steplog.NAME)
            try:
                found = contents.load(folder)  # again, now that nobody else can write
                if found.problems:
                    raise found.problems[0].error()
                data.cut(found.journal_end)
                steps.cut(found.log.end)
                end = found.log.end + (steps.append(b"\n") if found.log.unterminated else 0)
                folders.tidy(folder)
            except BaseException:
                data.close()
                steps.close()
                raise
        known = {name: (column.dtype, column.tail, column.rows) for name, column in found.columns.items()}
        tail = _Tail(len(found.log.lines), found.journal_end, end, known)
        return cls(folder, tail, data=data, steps=steps)

    @property
    def step_count(self) -> int:
        """How many steps are finished."""
        return self._tail.index

    def rows(self, name: str) -> int:
        """Returns how many rows are stored under a name so far; 0 if there are none."""
        return self._tail.arrays[name][2] if name in self._tail.arrays else 0

    def append_step(self, step: Mapping[str, Any], values: Mapping[str, arrays.Array] | None = None) -> None:
        """Adds a step; it is durable when this returns, and leaves no trace if this raises.

        Args:
            step: What happened; what JSON lacks is stored as its repr, marked.
            values: Rows to append along axis 0 of the arrays of these names.

        Raises:
            StoreError: Rows do not fit the earlier ones, or the disk is full.
        """
        self._check_open()
        before, values = self._tail, values or {}
        known = {**before.arrays}
        for name, value in values.items():
            columns.check_storable(name, value)
            dtype, tail, rows = known.get(name, (value.dtype, value.shape[1:], 0))
            columns.check_fits(name, value, dtype=dtype, tail=tail)
            known[name] = (dtype, tail, rows + value.shape[0])
        chunks, crcs = journal.encode(before.index, values)
        end = before.journal + sum(len(chunk) for chunk in chunks)
        rows_added = {name: (self.rows(name), known[name][2], crcs[name]) for name in values}
        line = steplog.encode(steplog.Line(before.index, (before.journal, end), rows_added, plain.jsonable(dict(step))))
        try:
            then = f"append step {before.index} again (the {before.index} finished steps are safe)"
            with disk.explained(self.folder, doing=f"write step {before.index} to", then=then):
                self._data.append(*chunks)
                self._steps.append(line)
            self._tail = _Tail(before.index + 1, end, before.steps + len(line), known)
        except BaseException:
            self._take_back(before)
            raise

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Packs the episode for reading; it takes no steps afterwards. Closing twice does nothing.

        Args:
            summary: About the whole episode; `reward` in it is kept as the episode's reward.

        Raises:
            StoreError: The disk is full; the writer stays open, so that closing can be tried again.
            DamagedError: What was written before is damaged; the journal is kept.
        """
        if self._state == "closed":
            return
        self._check_open()
        tail, source, path = self._tail, self.folder / journal.NAME, self.folder / contents.NAME
        table = journal.scan(source, tail.journal)
        then = "close the episode again (all its steps are safe)"
        with disk.explained(self.folder, doing="close", then=then):
            packed = tensors.pack(source, self.folder / tensors.NAME, table)
            sizes = {"steps": tail.index, "steps_bytes": tail.steps}
            documents.write(
                path, {**documents.read(path, "episode"), **folders.closed(table, packed, summary), **sizes}
            )
        self._let_go("closed")
        with disk.explained(self.folder, doing="tidy"):
            source.unlink(missing_ok=True)
            disk.fsync_dir(self.folder)

    def abort(self) -> None:
        """Stops without packing: finished steps stay readable, and `resume` can go on with them."""
        if self._state == "open":
            self._let_go("aborted")

    def __enter__(self) -> Self:
        """Returns the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes the episode, or aborts it if the block failed."""
        if kind is None and self._state == "open":
            self.close()
        else:
            self.abort()

    def _check_open(self) -> None:
        if self._state != "open":
            what = "start a new episode" if self._state == "closed" else "use EpisodeWriter.resume"
            raise errors.StoreError(f"the episode at {self.folder} was {self._state}; {what} to add steps")

    def _let_go(self, state: str) -> None:
        self._state = state
        self._data.close()
        self._steps.close()

    def _take_back(self, tail: _Tail) -> None:
        """Cuts both files back to the last finished step; gives up the episode if even that fails."""
        self._tail = tail
        try:
            self._steps.cut(tail.steps)  # first: a line without its record would be damage, the reverse is not
            self._data.cut(tail.journal)
        except OSError as error:
            self._let_go("aborted")
            raise errors.StoreError(
                f"cannot take back the unfinished step {tail.index} in {self.folder}: {error.strerror}; the finished "
                "steps are safe, continue with EpisodeWriter.resume"
            ) from error
