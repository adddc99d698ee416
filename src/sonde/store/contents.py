"""What does an episode folder hold, and do its files agree with each other?

One loader serves reading, resuming and verifying, for open, crashed and closed episodes. It reads the step
lines (all checksums compared) and the heads of the data (lengths compared), never the data itself: its cost
grows with the number of steps, not with the size of the activations.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sonde.core import errors
from sonde.store import columns, damage, documents, journal, steplog, tensors

NAME = "episode.json"


@dataclass(frozen=True, slots=True)
class Contents:
    """An episode as its files tell it."""

    folder: Path
    document: dict[str, Any]
    log: steplog.Log
    columns: dict[str, columns.Column]
    entries: dict[str, tensors.Entry]
    journal_end: int = 0
    problems: list[damage.Damage] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """Whether the data lies in the safetensors file rather than in the journal."""
        return self.document["status"] == "closed"

    @property
    def data_file(self) -> Path:
        """The file that holds the arrays."""
        return self.folder / (tensors.NAME if self.closed else journal.NAME)


def load(folder: Path) -> Contents:
    """Loads an episode; what is damaged in steps and data is listed in `problems`.

    Raises:
        StoreError: There is no episode here.
        DamagedError: episode.json is damaged.
        VersionError: A newer Sonde wrote it.
    """
    path = folder / NAME
    if not path.is_file():
        raise errors.StoreError(f"no episode at {folder}: {NAME} is missing")
    document = documents.read(path)
    while True:
        try:
            return _load_closed(folder, document) if document["status"] == "closed" else _load_open(folder, document)
        except FileNotFoundError as error:
            again = documents.read(path)
            if again == document:  # else its writer closed it while we were looking
                missing = damage.Damage(Path(str(error.filename)), "the file is missing")
                empty = steplog.Log([], 0, False, [])
                return Contents(folder, document, empty, {}, {}, problems=[missing])
            document = again


def _load_closed(folder: Path, document: dict[str, Any]) -> Contents:
    path = folder / steplog.NAME
    data = path.read_bytes()
    log = steplog.parse(path, data)
    problems = list(log.problems)
    if len(data) != document["steps_bytes"]:
        problems.append(damage.Damage(path, f"the file has {len(data)} bytes, expected {document['steps_bytes']}"))
    elif log.unterminated or log.end != len(data):
        problems.append(damage.Damage(path, "the end of the last line is damaged", step=document["steps"] - 1))
    target = folder / tensors.NAME
    table: dict[str, columns.Column] = {}
    entries: dict[str, tensors.Entry] = {}
    try:
        crc = int(document["data_header_crc32"], 16)
        entries = tensors.read_header(target, size=document["data_bytes"], crc32=crc)
        table = {name: columns.Column(entry.dtype, entry.shape[1:]) for name, entry in entries.items()}
        problems += _place_rows(path, log, table, entries)
    except damage.UnreadableError as error:
        problems.append(damage.Damage(target, str(error)))
    return Contents(folder, document, log, table, entries, problems=problems)


def _place_rows(
    path: Path, log: steplog.Log, table: dict[str, columns.Column], entries: dict[str, tensors.Entry]
) -> list[damage.Damage]:
    """Notes which rows of the safetensors file each step added."""
    problems: list[damage.Damage] = []
    for line in log.lines:
        for name, (first, stop, crc) in line.arrays.items():
            column = table.get(name)
            if column is None or stop > entries[name].shape[0]:
                problems.append(damage.Damage(path, "refers to rows that are not there", array=name, step=line.index))
                continue
            start = entries[name].start + first * column.row_bytes
            column.add(line.index, range(first, stop), start=start, crc32=crc)
    return problems


def _load_open(folder: Path, document: dict[str, Any]) -> Contents:
    path, source = folder / steplog.NAME, folder / journal.NAME
    promised = source.stat().st_size  # before the steps are read: a live writer may add to both meanwhile
    log = steplog.parse(path, path.read_bytes())
    problems = list(log.problems)
    table: dict[str, columns.Column] = {}
    with source.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if file.read(len(journal.MAGIC)) != journal.MAGIC:
            problems.append(damage.Damage(source, "the first 8 bytes are not those of a journal"))
        for line in log.lines:
            problems += _place_record(file, size, line, table)
        end = log.lines[-1].record[1] if log.lines else len(journal.MAGIC)
        if not problems and _records_after(file, end, promised) > 1:
            problem = f"steps after {len(log.lines) - 1} are in the journal but not here: the file was cut short"
            problems.append(damage.Damage(path, problem, step=len(log.lines)))
    return Contents(folder, document, log, table, {}, journal_end=end, problems=problems)


def _place_record(
    file: BinaryIO, size: int, line: steplog.Line, table: dict[str, columns.Column]
) -> list[damage.Damage]:
    """Notes where a step's rows lie in the journal, after comparing its record with its line."""
    path = Path(file.name)
    try:
        record = journal.read_record(file, line.record[0], size=size)
    except damage.UnreadableError as error:
        return [damage.Damage(path, str(error), array=name, step=line.index) for name in line.arrays or [None]]
    told = {name: (stop - start, crc) for name, (start, stop, crc) in line.arrays.items()}
    found = {name: (shape[0], crc) for name, _, shape, _, crc in record.arrays}
    if (record.index, record.end, found) != (line.index, line.record[1], told):
        return [damage.Damage(path, "the record is not the one that the step's line describes", step=line.index)]
    journal.add_to_columns(table, record)
    return []


def _records_after(file: BinaryIO, start: int, size: int) -> int:
    """Counts the whole records after the last step: one may be in flight, two cannot."""
    count = 0
    try:
        while count < 2:
            start = journal.read_record(file, start, size=size).end
            count += 1
    except damage.UnreadableError:
        pass
    return count
