"""The records of an episode: one per encoded token, each stored once, in memory or on disk.

For a causal model an activation at a position does not depend on what comes later, so a token's activations are
recorded when it is first encoded and every later step refers to the same record. A step is a list of record numbers.
An episode costs its tokens, not the sum of its prompts.

Query-by-key Sites are ragged: a token's record holds one row per key it can see.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonde import store
from sonde.core import errors, sites
from sonde.store import damage

TOKENS, KEYS = "records.token", "records.keys"
#: Where episodes of the first format, whose steps name no positions, keep those at which a token was first encoded.
POSITIONS = "records.position"
_STORED = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}
_LOADED = {name: dtype for dtype, name in _STORED.items()}


class Records:
    """What was recorded of an episode so far."""

    def __init__(self) -> None:
        """Empty, in memory."""
        self.count = 0
        self._parts: dict[str, list[Tensor]] = {}
        self._folder: Path | None = None
        self._reader: store.EpisodeReader | None = None
        self._offsets: Tensor | None = None

    @classmethod
    def of_reader(cls, reader: store.EpisodeReader) -> "Records":
        """The records of an episode on disk."""
        records = cls()
        records._reader = reader
        records.count = reader.shape(TOKENS)[0] if TOKENS in reader.names else 0
        for name in {TOKENS, KEYS, POSITIONS} & {*reader.names}:
            if (reader.dtype(name), reader.shape(name)) != ("I64", (records.count,)):
                problem = f"is {reader.dtype(name)} of shape {reader.shape(name)}, expected I64 of {(records.count,)}"
                raise damage.Damage(reader.folder, problem, array=name).error()
        return records

    @property
    def names(self) -> list[str]:
        """The Sites recorded."""
        return [name for name in self._columns if not name.startswith("records.")]

    @property
    def _columns(self) -> set[str]:
        reader = self._opened()
        return {*self._parts, *(reader.names if reader else ())}

    @classmethod
    def of_columns(cls, columns: Mapping[str, Tensor]) -> "Records":
        """Records in memory. A column that is shorter than the others was not recorded in the last ones."""
        records = cls()
        records._parts = {name: [column] for name, column in columns.items()}
        records.count = len(columns[TOKENS]) if columns else 0
        return records

    def head(self, count: int) -> dict[str, Tensor]:
        """Every column of the first records; none for no records."""
        if not count:
            return {}
        keys = int(self.whole(KEYS)[:count].sum())
        return {name: self.whole(name)[: keys if _ragged(name) else count] for name in self._columns}

    def append(self, tokens: Sequence[int], keys: Sequence[int], values: Mapping[str, Tensor]) -> int:
        """Adds records; returns the number of the first."""
        first = self.count
        self.count += len(tokens)
        columns = {
            TOKENS: torch.tensor(tokens, dtype=torch.long),
            KEYS: torch.tensor(keys, dtype=torch.long),
            **values,
        }
        for name, value in columns.items():
            self._parts.setdefault(name, []).append(value)
        self._offsets = None
        return first

    def pending(self) -> dict[str, store.Array]:
        """What is not on disk yet, ready to be written."""
        return {name: to_array(torch.cat(parts)) for name, parts in self._parts.items()}

    def flushed(self, folder: Path) -> None:
        """Declares everything written to a folder, and frees it here."""
        self._parts.clear()
        self._folder, self._reader = folder, None

    def check_count(self) -> None:
        """Refuses a folder that has not exactly the records made here.

        Raises:
            CaptureError: It has others: what was run again was recorded otherwise than the first time.
        """
        reader = self._opened()
        there = reader.shape(TOKENS)[0] if reader is not None and TOKENS in reader.names else 0
        if there != self.count:
            raise errors.CaptureError(
                f"{self._folder} has {there} recorded tokens where running its steps again gave {self.count}: it was "
                "recorded by another version, or its last step was cut off; play the episode anew"
            )

    def whole(self, name: str) -> Tensor:
        """All rows of a column."""
        parts = list(self._parts.get(name, ()))
        reader = self._opened()
        if reader is not None and name in reader.names:
            parts.insert(0, from_array(reader.array(name)))
        if not parts:
            raise errors.CaptureError(f"{name!r} was not recorded{errors.suggest(name, self.names)}")
        if len(parts) > 1 and reader is None:
            parts = self._parts[name] = [torch.cat(parts)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def values(self, name: str, chosen: np.ndarray) -> Tensor:
        """A Site's value for records: `pos …`, or `head query key` for query-by-key Sites."""
        rows = self.whole(name)
        index = torch.from_numpy(np.ascontiguousarray(chosen, dtype=np.int64))
        if not _ragged(name):
            _check_there(name, int(index.max()) < len(rows) if len(index) else True)
            return rows[index.to(rows.device)]
        keys = self.whole(KEYS)
        if rows.ndim != 2 or bool((keys < 0).any()):
            raise errors.StoreError(f"{name!r} is not recorded as a number per head for each key: record it again")
        if self._offsets is None:
            self._offsets = torch.cumsum(keys, 0) - keys
        counts, starts = keys[index].tolist(), self._offsets[index].tolist()
        _check_there(name, all(start + count <= len(rows) for start, count in zip(starts, counts, strict=True)))
        width = max(counts, default=0)
        fill = -torch.inf if name.endswith("attn_scores") else 0.0
        out = rows.new_full((rows.shape[1], len(counts), width), fill)
        for query, (start, count) in enumerate(zip(starts, counts, strict=True)):
            out[:, query, :count] = rows[start : start + count].T
        return out

    def first_positions(self, chosen: np.ndarray) -> np.ndarray:
        """Where the tokens of records stood when they were first encoded, in episodes whose steps do not say."""
        positions = np.arange(len(chosen))
        if bool((chosen >= 0).any()):
            positions[chosen >= 0] = self.whole(POSITIONS).numpy()[chosen[chosen >= 0]]
        return positions

    def _opened(self) -> store.EpisodeReader | None:
        if self._reader is None and self._folder is not None:
            self._reader = store.EpisodeReader.open(self._folder)
        return self._reader


def _ragged(name: str) -> bool:
    return not name.startswith("records.") and sites.Site.parse(name).is_query_key


def _check_there(name: str, there: bool) -> None:
    if not there:
        raise errors.CaptureError(f"{name!r} was not recorded in this step, only in others of the trajectory")


def to_array(value: Tensor) -> store.Array:
    """A tensor's bytes for the store."""
    plain = value.detach().to("cpu").contiguous()
    if plain.dtype not in _STORED:
        raise errors.StoreError(f"dtype {plain.dtype} cannot be stored; record as one of {sorted(map(str, _STORED))}")
    data = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
    return store.Array(_STORED[plain.dtype], tuple(plain.shape), data)


def from_array(array: store.Array) -> Tensor:
    """A tensor on the store's bytes, without a copy."""
    if array.dtype not in _LOADED:
        raise errors.StoreError(
            f"an array of {array.dtype} is nothing that a capture records: expected one of {sorted(_LOADED)}"
        )
    dtype: Any = _LOADED[array.dtype]
    if not len(array.data):
        return torch.zeros(array.shape, dtype=dtype)
    return torch.frombuffer(array.data, dtype=dtype).reshape(array.shape)
