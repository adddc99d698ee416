"""Is the header of a GGUF file what it must be? Checked before any library reads it.

1. Counts, lengths and offsets lie inside the file; arrays hold plain values; no key or tensor comes twice.
2. The tensors lie inside the file, and are those of as many blocks as the metadata say.
3. The sizes that the metadata give are whole numbers above 0, and can be; positions are not scaled.

Costs a walk through the metadata: a tenth of a second for a vocabulary of 150,000 words.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any

from sonde.core import errors

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_ENTRIES = 65_536
MOST_VALUES = 2**22
LONGEST_STRING = 2**20
MOST_DIMENSIONS = 4
MOST_BLOCKS = 1_000
MOST = 2**31 - 1
#: The smallest quantisations take 1.5 bits a weight.
WEIGHTS_PER_BYTE = 6
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_SIZES = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "vocab_size",
)


def check(path: Path) -> dict[str, int]:
    """Refuses a file whose header is not what it must be; returns how many weights each of its tensors has.

    Raises:
        ModelError: Says what is wrong.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise errors.ModelError(f"{path.name} is no GGUF file: it does not begin with {MAGIC.decode()}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Header(data).check()
            except (struct.error, UnicodeDecodeError) as error:
                raise errors.ModelError(f"{path.name} is damaged: {error}") from error
            except _BadHeaderError as error:
                raise errors.ModelError(f"{path.name} is damaged: {error}") from None


class _BadHeaderError(Exception):
    """What is wrong with a header."""


class _Header:
    """Walks a header; never reads, or counts, past the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4

    def check(self) -> dict[str, int]:
        """Walks all of it; returns how many weights each tensor has."""
        (version,), (tensors, entries) = self.numbers("<I"), self.numbers("<QQ")
        if version not in VERSIONS:
            raise _BadHeaderError(f"version {version}, expected one of {VERSIONS}")
        if max(tensors, entries) > MOST_ENTRIES:
            raise _BadHeaderError(f"{tensors} tensors and {entries} entries, expected at most {MOST_ENTRIES}")
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self.string()
            if key in metadata:
                raise _BadHeaderError(f"the entry {key!r} comes twice")
            metadata[key] = self.value(self.numbers("<I")[0])
        names: dict[str, int] = {}
        for _ in range(tensors):
            name, weights = self.tensor()
            if name in names:
                raise _BadHeaderError(f"the tensor {name!r} comes twice")
            names[name] = weights
        self.check_sizes(metadata, set(names))
        return names

    def numbers(self, form: str) -> tuple[Any, ...]:
        """The next numbers."""
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def string(self) -> str:
        """The next string."""
        (length,) = self.numbers("<Q")
        if length > LONGEST_STRING:
            raise _BadHeaderError(f"a string of {length} bytes, expected at most {LONGEST_STRING}")
        return self.raw(length).decode()

    def raw(self, length: int) -> bytes:
        """The next bytes."""
        if self.at + length > len(self.data):
            raise _BadHeaderError("it ends in the middle of its header")
        self.at += length
        return self.data[self.at - length : self.at]

    def value(self, kind: int) -> Any:
        """The next value; of an array, how many values it has."""
        if kind in _FORMATS:
            return self.numbers(_FORMATS[kind])[0]
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise _BadHeaderError(f"a value of type {kind}")
        inner, count = self.numbers("<IQ")
        if count > MOST_VALUES:
            raise _BadHeaderError(f"an array of {count} values, expected at most {MOST_VALUES}")
        if inner in _FORMATS:
            self.raw(count * struct.calcsize(_FORMATS[inner]))
        elif inner == _STRING:
            for _ in range(count):
                self.string()
        else:
            raise _BadHeaderError(f"an array of values of type {inner}")
        return [count]

    def tensor(self) -> tuple[str, int]:
        """The next tensor's name and number of weights."""
        name, (dimensions,) = self.string(), self.numbers("<I")
        if dimensions > MOST_DIMENSIONS:
            raise _BadHeaderError(f"the tensor {name!r} has {dimensions} dimensions")
        shape = self.numbers(f"<{dimensions}Q")
        _, offset = self.numbers("<IQ")
        weights = math.prod(shape)
        if not 1 <= weights <= len(self.data) * WEIGHTS_PER_BYTE or offset > len(self.data):
            raise _BadHeaderError(f"the tensor {name!r} has the shape {shape} at offset {offset}")
        return name, weights

    def check_sizes(self, metadata: dict[str, Any], names: set[str]) -> None:
        """Compares what the metadata say with what can be, and with the tensors."""
        family = metadata.get("general.architecture")
        if not isinstance(family, str):
            raise _BadHeaderError("it does not say its architecture")
        for size in _SIZES:
            value = metadata.get(f"{family}.{size}", 1)
            most = MOST_BLOCKS if size == "block_count" else MOST
            if not isinstance(value, list) and (type(value) is not int or not 1 <= value <= most):
                raise _BadHeaderError(f"{family}.{size} must be a whole number from 1 to {most}, got {value!r}")
        for key in (f"{family}.rope.scaling.type", f"{family}.rope.scaling.factor", f"{family}.rope.scale_linear"):
            if metadata.get(key, "none") not in ("none", 1.0):
                raise errors.ModelError(
                    f"its positions are scaled ({key} is {metadata[key]!r:.40}), which transformers does not read from a "
                    "GGUF file: load the folder that it was made from"
                )
        held = {name.split(".")[1] for name in names if name.startswith("blk.")}
        said = metadata.get(f"{family}.block_count")
        if said is not None and held != {str(block) for block in range(said)}:
            raise _BadHeaderError(f"it says that it has {said} blocks, and has tensors of {len(held)}")
