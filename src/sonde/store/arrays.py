"""How does a block of numbers travel between models and the disk without torch?

As an `Array`: a safetensors dtype name, a shape, and little-endian row-major bytes. Costs no copy: the
bytes are the caller's own buffer on the way in, and a view on the mapped file on the way out.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sonde.core import errors

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip

#: The most axes of an array, and the most rows of one whose rows take no bytes.
MAX_AXES, MAX_EMPTY_ROWS = 32, 1 << 20

_NUMPY = {
    "F64": "<f8", "I64": "<i8", "U64": "<u8",
    "F32": "<f4", "I32": "<i4", "U32": "<u4",
    "F16": "<f2", "I16": "<i2", "U16": "<u2",
    "I8": "|i1", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_FROM_NUMPY = {code: name for name, code in _NUMPY.items()}


@dataclass(frozen=True, slots=True)
class Array:
    """Numbers as they lie on disk: safetensors dtype name, shape, little-endian row-major bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview | bytes

    def __post_init__(self) -> None:
        """Checks that the bytes are as many as dtype and shape say.

        Raises:
            StoreError: The dtype is unknown, a length is negative, or the bytes are too few or too many.
        """
        if self.dtype not in ITEM_BYTES:
            hint = errors.suggest(self.dtype, ITEM_BYTES)
            raise errors.StoreError(f"no dtype {self.dtype!r}{hint}; known: {', '.join(ITEM_BYTES)}")
        if any(length < 0 for length in self.shape):
            raise errors.StoreError(f"an array cannot have shape {self.shape}: lengths must be 0 or more")
        object.__setattr__(self, "data", _flat(self.data))
        expected = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        if len(self.data) != expected:
            raise errors.StoreError(
                f"{self.dtype} array of shape {self.shape}: got {len(self.data)} bytes, expected {expected}"
            )

    @classmethod
    def from_numpy(cls, values: npt.NDArray[Any]) -> "Array":
        """Returns the Array over a numpy array's own memory (a copy only if it is strided or big-endian)."""
        little = values.dtype.newbyteorder("<")
        name = _FROM_NUMPY.get(little.str)
        if name is None:
            raise errors.StoreError(
                f"numpy dtype {values.dtype} cannot be stored; convert it first to one of: {', '.join(_NUMPY)}"
            )
        flat = np.asarray(values, dtype=little, order="C").reshape(-1)
        return cls(name, tuple(values.shape), flat.view(np.uint8).data)

    def to_numpy(self, *, widen: bool = False) -> npt.NDArray[Any]:
        """Returns a read-only numpy view.

        Args:
            widen: Give BF16, which numpy lacks, as exactly equal float32 (this one copies).

        Raises:
            StoreError: numpy has no such dtype.
        """
        if self.dtype == "BF16" and widen:
            halves = np.frombuffer(self.data, dtype="<u2") if len(self.data) else np.zeros(0, "<u2")
            result = (halves.astype("<u4") << 16).view("<f4").reshape(self.shape)
        elif self.dtype not in _NUMPY:
            what = "pass widen=True for float32, or " if self.dtype == "BF16" else ""
            raise errors.StoreError(f"numpy has no dtype for {self.dtype}; {what}read .data with torch.frombuffer")
        elif len(self.data):
            result = np.frombuffer(self.data, dtype=_NUMPY[self.dtype]).reshape(self.shape)
        else:
            result = np.zeros(self.shape, dtype=_NUMPY[self.dtype])
        result.flags.writeable = False
        return result

    def rows(self, start: int, stop: int) -> "Array":
        """Returns rows `start` to `stop` (not included) of axis 0 as a view, without a copy."""
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise errors.StoreError(f"no rows {start} to {stop} in an array of shape {self.shape}")
        width = row_bytes(self.dtype, self.shape[1:])
        return Array(self.dtype, (stop - start, *self.shape[1:]), self.data[start * width : stop * width])


def row_bytes(dtype: str, tail: tuple[int, ...]) -> int:
    """Returns how many bytes one row takes, given the shape after axis 0."""
    return math.prod(tail) * ITEM_BYTES[dtype]


def check_shape(shape: tuple[int, ...]) -> None:
    """Checks that a shape may be stored: files can claim lengths that no memory has.

    Raises:
        StoreError: It has no axis 0, too many axes, or lengths that cannot be.
    """
    if not shape:
        raise errors.StoreError("got shape (), expected at least one axis to append along")
    if len(shape) > MAX_AXES:
        raise errors.StoreError(f"got {len(shape)} axes, expected at most {MAX_AXES}")
    # numpy refuses an empty array if its other lengths alone would be too many bytes
    if min(shape) < 0 or math.prod(length for length in shape if length) >= 2**59:
        raise errors.StoreError(f"no array has the shape {shape}")
    if 0 in shape[1:] and shape[0] > MAX_EMPTY_ROWS:
        raise errors.StoreError(f"got {shape[0]} rows without numbers, expected at most {MAX_EMPTY_ROWS}")


def _flat(data: memoryview | bytes) -> memoryview | bytes:
    """Returns the same bytes as a one-dimensional buffer of bytes."""
    if isinstance(data, bytes):
        return data
    if data.ndim == 1 and data.format == "B" and data.c_contiguous:
        return data
    return data.cast("B") if data.c_contiguous and data.nbytes else data.tobytes()
