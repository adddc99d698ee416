"""Where in a file lie the rows that each step added to an array?

A `Column` answers it for the journal and for the safetensors file alike. Costs 40 bytes of memory per array
and step, whatever the size of the rows.
"""

import array
import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from sonde.core import errors
from sonde.store import arrays


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes that one step added to an array."""

    step: int
    start: int
    size: int
    crc32: int


class Column:
    """One array of an episode: its dtype, the shape of a row, and where each step's rows are."""

    def __init__(self, dtype: str, tail: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.tail = tail
        self.row_bytes = arrays.row_bytes(dtype, tail)
        self._steps = array.array("Q")
        self._firsts = array.array("Q")
        self._stops = array.array("Q")
        self._starts = array.array("Q")
        self._crcs = array.array("Q")

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._stops[-1] if self._stops else 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return (self.rows, *self.tail)

    @property
    def size(self) -> int:
        """How many bytes the whole array takes."""
        return self.rows * self.row_bytes

    def add(self, step: int, rows: range, *, start: int, crc32: int) -> None:
        """Notes that a step added rows, which begin at byte `start` of the file."""
        self._firsts.append(rows.start)
        self._stops.append(rows.stop)
        self._steps.append(step)
        self._starts.append(start)
        self._crcs.append(crc32)

    def rows_of(self, step: int) -> range:
        """Returns which rows a step added; an empty range if it added none."""
        at = bisect.bisect_left(self._steps, step)
        if at == len(self._steps) or self._steps[at] != step:
            return range(0)
        return range(self._firsts[at], self._stops[at])

    def parts(self) -> Iterator[Part]:
        """Yields the bytes of each step, in order."""
        places = zip(self._steps, self._firsts, self._stops, self._starts, self._crcs, strict=True)
        for step, first, stop, start, crc in places:
            yield Part(step, start, (stop - first) * self.row_bytes, crc)


def check_fits(name: str, value: arrays.Array, *, dtype: str, tail: tuple[int, ...]) -> None:
    """Checks that rows can follow the rows already stored under their name.

    Raises:
        StoreError: dtype or trailing shape differ.
    """
    if (value.dtype, value.shape[1:]) != (dtype, tail):
        raise errors.StoreError(
            f"array {name!r}: got {value.dtype} rows of shape {value.shape[1:]}, expected {dtype} rows of shape "
            f"{tail} as in earlier steps; store it under another name or convert it"
        )


def check_storable(name: str, value: arrays.Array) -> None:
    """Checks that an array can be appended at all.

    Raises:
        StoreError: No such shape is stored, or its name cannot stand in a safetensors file.
    """
    try:
        arrays.check_shape(value.shape)
    except errors.StoreError as error:
        raise errors.StoreError(f"array {name!r}: {error}") from None
    if not name or name == "__metadata__" or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise errors.StoreError(f"{name!r} cannot be the name of an array in a safetensors file; choose another")
