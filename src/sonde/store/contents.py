"""What does an episode folder hold, and do its files agree with each other?

One loader serves reading, resuming and verifying, for open, crashed and closed episodes. It reads the step
lines (all checksums compared) and the heads of the data (lengths compared), never the data itself: its cost
grows with the number of steps, not with the size of the activations. No number in a file is believed: every row lies
where the rows before it end, and inside the file.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sonde.core import errors
from sonde.store import columns, damage, documents, files, journal, steplog, tensors

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
    if not os.path.lexists(path):
        raise errors.StoreError(f"no episode at {folder}: {NAME} is missing")
    document = documents.read(path, "episode")
    while True:
        try:
            return _load_closed(folder, document) if document["status"] == "closed" else _load_open(folder, document)
        except FileNotFoundError as error:
            again = documents.read(path, "episode")
            if again == document:  # else its writer closed it while we were looking
                missing = damage.Damage(Path(str(error.filename)), "the file is missing")
                empty = steplog.Log([], 0, 0, False, [])
                return Contents(folder, document, empty, {}, {}, problems=[missing])
            document = again


def _load_closed(folder: Path, document: dict[str, Any]) -> Contents:
    path = folder / steplog.NAME
    log = steplog.load(path)
    problems = list(log.problems)
    if not problems:
        problems += _lengths(path, log, document)
    target = folder / tensors.NAME
    table: dict[str, columns.Column] = {}
    entries: dict[str, tensors.Entry] = {}
    try:
        crc = int(document["data_header_crc32"], 16)
        entries = tensors.read_header(target, size=document["data_bytes"], crc32=crc)
        table = {name: columns.Column(entry.dtype, entry.shape[1:]) for name, entry in entries.items()}
        told = {name: (one["dtype"], tuple(one["shape"])) for name, one in document["arrays"].items()}
        if told != {name: (entry.dtype, entry.shape) for name, entry in entries.items()}:
            problems.append(damage.Damage(target, f"the arrays are not those that {NAME} describes"))
        problems += _place_rows(path, log, table, entries)
    except damage.UnreadableError as error:
        problems.append(damage.Damage(target, str(error)))
    return Contents(folder, document, log, table, entries, problems=problems)


def _lengths(path: Path, log: steplog.Log, document: dict[str, Any]) -> list[damage.Damage]:
    """Compares how much is in the steps with how much was promised."""
    if log.size != document["steps_bytes"]:
        return [damage.Damage(path, f"the file has {log.size} bytes, expected {document['steps_bytes']}")]
    if log.unterminated or log.end != log.size:
        return [damage.Damage(path, "the end of the last line is damaged", step=document["steps"] - 1)]
    if len(log.lines) != document["steps"]:
        return [damage.Damage(path, f"there are {len(log.lines)} steps, {NAME} promises {document['steps']}")]
    return []


def _place_rows(
    path: Path, log: steplog.Log, table: dict[str, columns.Column], entries: dict[str, tensors.Entry]
) -> list[damage.Damage]:
    """Notes which rows of the safetensors file each step added."""
    problems: list[damage.Damage] = []
    gaps = bool(log.problems)  # where a line is damaged, its rows are missing
    for line in log.lines:
        for name, (first, stop, crc) in line.arrays.items():
            column = table.get(name)
            if column is None or stop > entries[name].shape[0]:
                problems.append(damage.Damage(path, "refers to rows that are not there", array=name, step=line.index))
            elif first < column.rows or (first > column.rows and not gaps):
                problem = f"has rows {first} to {stop}, expected them to begin at {column.rows}"
                problems.append(damage.Damage(path, problem, array=name, step=line.index))
            else:
                start = entries[name].start + first * column.row_bytes
                column.add(line.index, range(first, stop), start=start, crc32=crc)
    if not problems and not gaps:
        problems += [
            damage.Damage(path, f"accounts for {column.rows} of {entries[name].shape[0]} rows", array=name)
            for name, column in table.items()
            if column.rows != entries[name].shape[0]
        ]
    return problems


def _load_open(folder: Path, document: dict[str, Any]) -> Contents:
    path, source = folder / steplog.NAME, folder / journal.NAME
    table: dict[str, columns.Column] = {}
    try:
        with files.opened(source) as file:
            promised = file.seek(0, 2)  # before the steps are read: a live writer may add to both meanwhile
            log = steplog.load(path)
            size, problems = file.seek(0, 2), list(log.problems)
            file.seek(0)
            if file.read(len(journal.MAGIC)) != journal.MAGIC:
                problems.append(damage.Damage(source, "the first 8 bytes are not those of a journal"))
            for line in log.lines:
                problems += _place_record((source, file), size, line, table)
            problems += _overlaps(path, log)
            end = log.lines[-1].record[1] if log.lines else len(journal.MAGIC)
            if not problems and _records_after(file, end, promised) > 1:
                problem = f"steps after {len(log.lines) - 1} are in the journal but not here: the file was cut short"
                problems.append(damage.Damage(path, problem, step=len(log.lines)))
    except damage.UnreadableError as error:
        log = steplog.load(path)
        problems, end = [*log.problems, damage.Damage(source, str(error))], len(journal.MAGIC)
    return Contents(folder, document, log, table, {}, journal_end=end, problems=problems)


def _overlaps(path: Path, log: steplog.Log) -> list[damage.Damage]:
    """Checks that each step's record and rows begin where those before them end."""
    problems: list[damage.Damage] = []
    end, rows = len(journal.MAGIC), dict[str, int]()
    for line in [] if log.problems else log.lines:  # where a line is damaged, its rows are missing
        if line.record[0] != end:
            problem = f"its record begins at byte {line.record[0]}, expected {end}"
            problems.append(damage.Damage(path, problem, step=line.index))
        for name, (first, stop, _) in line.arrays.items():
            if first != rows.get(name, 0):
                problem = f"has rows {first} to {stop}, expected them to begin at {rows.get(name, 0)}"
                problems.append(damage.Damage(path, problem, array=name, step=line.index))
            rows[name] = stop
        end = line.record[1]
    return problems


def _place_record(
    held: tuple[Path, BinaryIO], size: int, line: steplog.Line, table: dict[str, columns.Column]
) -> list[damage.Damage]:
    """Notes where a step's rows lie in the journal, after comparing its record with its line."""
    path, file = held
    try:
        record = journal.read_record(file, line.record[0], size=size)
    except damage.UnreadableError as error:
        return [damage.Damage(path, str(error), array=name, step=line.index) for name in line.arrays or [None]]
    told = {name: (stop - start, crc) for name, (start, stop, crc) in line.arrays.items()}
    found = {name: (shape[0], crc) for name, _, shape, _, crc in record.arrays}
    if (record.index, record.end, found) != (line.index, line.record[1], told):
        return [damage.Damage(path, "the record is not the one that the step's line describes", step=line.index)]
    try:
        journal.add_to_columns(table, record)
    except damage.UnreadableError as error:
        return [damage.Damage(path, str(error), step=line.index)]
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
