"""How are activations kept while an episode is still running?

In a file that only grows: 8 bytes of magic, then one record per step.

    "STEP"  u32 head size  u64 body size  u32 CRC-32 of the head  u32 CRC-32 of the 20 bytes before
    head    JSON: {"index": 3, "arrays": [{"name", "dtype", "shape", "crc32"}]}
    body    the arrays' bytes, one after the other

Integers are little-endian. Costs one write and one fsync per step, plus the CRC of what is written.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sonde.core import errors
from sonde.store import arrays, columns, damage, documents, files

NAME = "activations.journal"
MAGIC = b"SONDEJ1\n"
HEAD_LIMIT = 16 << 20
_PREFIX = struct.Struct("<4sIQI")
_PREFIX_CRC = struct.Struct("<I")
_PREFIX_SIZE = _PREFIX.size + _PREFIX_CRC.size


@dataclass(frozen=True, slots=True)
class Record:
    """One step's record: its index, where it ends, and its arrays as (name, dtype, shape, start, CRC-32)."""

    index: int
    end: int
    arrays: tuple[tuple[str, str, tuple[int, ...], int, int], ...]


def encode(index: int, values: Mapping[str, arrays.Array]) -> tuple[list[memoryview | bytes], dict[str, int]]:
    """Returns the chunks of a record, and the CRC-32 of each array."""
    crcs = {name: zlib.crc32(value.data) for name, value in values.items()}
    entries = [
        {"name": name, "dtype": value.dtype, "shape": value.shape, "crc32": f"{crcs[name]:08x}"}
        for name, value in values.items()
    ]
    head = json.dumps({"index": index, "arrays": entries}, separators=(",", ":")).encode("ascii")
    body_size = sum(len(value.data) for value in values.values())
    prefix = _PREFIX.pack(b"STEP", len(head), body_size, zlib.crc32(head))
    return [prefix + _PREFIX_CRC.pack(zlib.crc32(prefix)) + head, *(value.data for value in values.values())], crcs


def read_record(file: BinaryIO, start: int, *, size: int) -> Record:
    """Reads what a record says about itself, not its body.

    Args:
        file: The journal.
        start: Where the record begins.
        size: How much of the file counts.

    Raises:
        UnreadableError: No whole, undamaged record begins there.
    """
    if start + _PREFIX_SIZE > size:
        raise damage.UnreadableError(f"the file ends at byte {size}, before the record at byte {start} is complete")
    file.seek(start)
    prefix = file.read(_PREFIX_SIZE)
    if len(prefix) < _PREFIX_SIZE or prefix[_PREFIX.size :] != _PREFIX_CRC.pack(zlib.crc32(prefix[: _PREFIX.size])):
        raise damage.UnreadableError(f"the checksum of the record at byte {start} does not match")
    _, head_size, body_size, head_crc = _PREFIX.unpack(prefix[: _PREFIX.size])
    body_start = start + _PREFIX_SIZE + head_size
    if body_start + body_size > size:
        raise damage.UnreadableError(
            f"the file ends at byte {size}, the record at byte {start} at {body_start + body_size}"
        )
    if head_size > HEAD_LIMIT:
        raise damage.UnreadableError(
            f"the head of the record at byte {start} has {head_size} bytes, more than it may have"
        )
    head = file.read(head_size)
    if zlib.crc32(head) != head_crc:
        raise damage.UnreadableError(f"the checksum of the head of the record at byte {start} does not match")
    record = _parse_head(documents.parse(head, "record"), body_start)
    if record.end != body_start + body_size:
        raise damage.UnreadableError(f"the record at byte {start} has {body_size} bytes, its arrays need others")
    return record


def _parse_head(head: Mapping[str, Any], body_start: int) -> Record:
    entries: list[tuple[str, str, tuple[int, ...], int, int]] = []
    at = body_start
    for entry in head["arrays"]:
        shape = tuple(entry["shape"])
        try:
            arrays.check_shape(shape)
        except errors.StoreError as error:
            raise damage.UnreadableError(f"array {entry['name']!r}: {error}") from None
        entries.append((entry["name"], entry["dtype"], shape, at, int(entry["crc32"], 16)))
        at += math.prod(shape) * arrays.ITEM_BYTES[entry["dtype"]]
    if len({name for name, *_ in entries}) < len(entries):
        raise damage.UnreadableError(f"step {head['index']} has two arrays of one name")
    return Record(head["index"], at, tuple(entries))


def scan(path: Path, size: int) -> dict[str, columns.Column]:
    """Returns where every array of the first `size` bytes of a journal lies, reading heads only.

    Raises:
        DamagedError: A record is damaged.
    """
    table: dict[str, columns.Column] = {}
    start, index = len(MAGIC), 0
    try:
        with files.opened(path) as file:
            while start < size:
                record = read_record(file, start, size=size)
                add_to_columns(table, record)
                start, index = record.end, index + 1
    except damage.UnreadableError as error:
        raise damage.Damage(path, str(error), step=index).error() from error
    return table


def add_to_columns(table: dict[str, columns.Column], record: Record) -> None:
    """Notes in the table of columns where a record's arrays lie.

    Raises:
        UnreadableError: They do not fit the ones before them.
    """
    for name, dtype, shape, start, crc in record.arrays:
        column = table.setdefault(name, columns.Column(dtype, shape[1:]))
        if (dtype, shape[1:]) != (column.dtype, column.tail):
            raise damage.UnreadableError(
                f"the rows of array {name!r} in step {record.index} do not fit the earlier ones"
            )
        rows = range(column.rows, column.rows + shape[0])
        column.add(record.index, rows, start=start, crc32=crc)
