"""How is a finished episode packed into one safetensors file, and how is that file checked?

1. The journal's record heads say where every step's rows lie.
2. The header is written: larger items first, so that every array is aligned to its item size.
3. Array by array, step by step, the rows are copied in chunks, and their checksums compared on the way.

Costs one read and one write of the data and 1 MiB of memory, however long the episode was.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy.typing as npt

from sonde.core import errors
from sonde.store import arrays, columns, damage, disk, documents, files

NAME = "activations.safetensors"
CHUNK = 1 << 20
STUDY_LIMIT = 64 << 30
HEADER_LIMIT = 100_000_000  # that of safetensors
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Packed:
    """What episode.json notes about the file: its size, the CRC-32 of its header, and of each array."""

    size: int
    header_crc32: int
    arrays: Mapping[str, int]


def pack(source: Path, target: Path, table: Mapping[str, columns.Column]) -> Packed:
    """Writes the arrays of a journal as a safetensors file, atomically and durably.

    Raises:
        DamagedError: Rows in the journal do not match their checksum.
        UnreadableError: The journal is not a regular file.
        OSError: The target cannot be written.
    """
    order = sorted(table, key=lambda name: (-arrays.ITEM_BYTES[table[name].dtype], name))
    header = _header(order, table)
    crcs: dict[str, int] = {}
    size = len(header)
    with files.opened(source) as file, disk.replacing(target) as fd:
        disk.write_all(fd, header)
        for name in order:
            crcs[name] = _copy(file, fd, source, (name, table[name]))
            size += table[name].size
    return Packed(size, zlib.crc32(header), crcs)


def _header(order: list[str], table: Mapping[str, columns.Column]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"sonde_format": "1"}}
    start = 0
    for name in order:
        column = table[name]
        entries[name] = {"dtype": column.dtype, "shape": column.shape, "data_offsets": [start, start + column.size]}
        start += column.size
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + _LENGTH.size) % 64)  # data begins at a multiple of 64 bytes
    return _LENGTH.pack(len(text)) + text


def _copy(file: BinaryIO, fd: int, source: Path, named: tuple[str, columns.Column]) -> int:
    """Copies one array's rows; returns the CRC-32 of all of them."""
    name, column = named
    whole = 0
    for part in column.parts():
        file.seek(part.start)
        left, crc = part.size, 0
        while left:
            chunk = file.read(min(left, CHUNK))
            if not chunk:
                raise damage.Damage(source, "the file ends too early", array=name, step=part.step).error()
            disk.write_all(fd, chunk)
            crc, whole, left = zlib.crc32(chunk, crc), zlib.crc32(chunk, whole), left - len(chunk)
        if crc != part.crc32:
            raise damage.Damage(source, "the checksum does not match", array=name, step=part.step).error()
    return whole


def read_numpy(path: Path, *, crc32: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of a safetensors file that a study wrote, and whose checksum it may have noted.

    Raises:
        StoreError: There is no such file.
        DamagedError: It is no safetensors file of numbers that numpy has.
    """
    import safetensors
    import safetensors.numpy

    try:
        with disk.explained(path, doing="read"):
            data = files.read(path, STUDY_LIMIT)
            if crc32 is not None and zlib.crc32(data) != crc32:
                raise damage.UnreadableError("the checksum does not match the content")
            return safetensors.numpy.load(data)
    except (damage.UnreadableError, safetensors.SafetensorError, LookupError, TypeError, ValueError) as error:
        raise damage.Damage(
            path, f"{error}" if isinstance(error, damage.UnreadableError) else f"is no safetensors file: {error}"
        ).error() from error


@dataclass(frozen=True, slots=True)
class Entry:
    """One array as the header tells it; `start` counts from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


def read_header(path: Path, *, size: int, crc32: int) -> dict[str, Entry]:
    """Returns the arrays of a safetensors file.

    Args:
        path: The file.
        size: How long it must be.
        crc32: The checksum its header must have.

    Raises:
        FileNotFoundError: There is no such file.
        UnreadableError: Length or checksum differ, or it is no safetensors file.
    """
    with files.opened(path) as file:
        actual = file.seek(0, 2)
        if actual != size:
            raise damage.UnreadableError(f"the file has {actual} bytes, expected {size}")
        file.seek(0)
        prefix = file.read(_LENGTH.size)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < _LENGTH.size or length > min(size - _LENGTH.size, HEADER_LIMIT):
            raise damage.UnreadableError("the length of the header is wrong")
        header = prefix + file.read(length)
    if zlib.crc32(header) != crc32:
        raise damage.UnreadableError("the checksum of the header does not match")
    return _entries(header, size)


def _entries(header: bytes, size: int) -> dict[str, Entry]:
    """Returns what a header says, if the arrays fill the file without gaps, as safetensors demands."""
    text = header[_LENGTH.size :]
    told = documents.parse(text, "header")
    told.pop("__metadata__", None)
    at, found = len(header), {}
    for name, entry in sorted(told.items(), key=lambda item: item[1]["data_offsets"]):
        first, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        try:
            arrays.check_shape(shape)
        except errors.StoreError as error:
            raise damage.UnreadableError(f"array {name!r}: {error}") from None
        expected = math.prod(shape) * arrays.ITEM_BYTES[entry["dtype"]]
        if (len(header) + first, end - first) != (at, expected):
            raise damage.UnreadableError(f"array {name!r} is not where its shape and the arrays before it put it")
        found[name] = Entry(entry["dtype"], shape, at)
        at += expected
    if at != size:
        raise damage.UnreadableError(f"the arrays end at byte {at}, the file at {size}")
    return found
