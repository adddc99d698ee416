"""Keys and values kept from step to step: what can be reused, and exactly when.

Every row of a Slab holds one conversation; the column of a key is its slot in that conversation, so rows of any
length share a batch without padding in the cache. A cached prefix carries its *lineage*: which interventions were
applied at which slots when it was made. It is reused up to the first slot at which tokens, their positions in the
episode (by which interventions and recordings choose), lineage, or what a recorder already has, differ. That is exact:
for a causal model nothing later can matter.

Cost of a match: one comparison of token arrays per cached conversation. Cost of reuse: none if the same conversations
go on together; if some of them stay behind, as many rows change places; otherwise one copy of each prefix.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from sonde.core import spans

GROWTH = 256
#: A conversation that goes on in another way after all but so many slots takes over the row of the one it left.
TAIL = 64
NEVER = 2**62
Lineage = Mapping[str, spans.Spans]
_clock = itertools.count()


class Slab:
    """Key and value storage for a fixed number of rows.

    A batch runs on the first rows of the tensors. Rows can change places, so a conversation knows its row by a number
    that stays, and `place` says where that row is now.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        """Allocates nothing yet: shapes come with the first keys."""
        self.rows, self.capacity = rows, capacity
        self.place = list(range(rows))
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    @property
    def nbytes(self) -> int:
        """Memory held."""
        # all stages have one shape and type
        return 2 * len(self.keys) * self.keys[0].nbytes if self.keys else 0

    def stage(self, index: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one stage of the network, `row kv slot d_head`, allocated when first met."""
        while len(self.keys) <= index:
            shape = (self.rows, like.shape[1], self.capacity, like.shape[3])
            self.keys.append(like.new_zeros(shape))
            self.values.append(like.new_zeros(shape))
        return self.keys[index], self.values[index]

    def copy_row(self, row: int, source: "Slab", source_row: int, length: int) -> None:
        """Takes over a prefix from another slab."""
        for index, (keys, values) in enumerate(zip(source.keys, source.values, strict=True)):
            mine, there = self.stage(index, keys), source.place[source_row]
            mine[0][self.place[row], :, :length] = keys[there, :, :length]
            mine[1][self.place[row], :, :length] = values[there, :, :length]

    def to_front(self, rows: Sequence[int]) -> list[int]:
        """Brings some rows to the first places, where others change with them; says which place each has then."""
        asked, count = set(rows), len(rows)
        leaving = [row for row, place in enumerate(self.place) if place < count and row not in asked]
        for row in rows:
            if self.place[row] >= count:
                self._swap(row, leaving.pop())
        return [self.place[row] for row in rows]

    def _swap(self, row: int, other: int) -> None:
        here, there = self.place[row], self.place[other]
        for stored in (*self.keys, *self.values):
            stored[[here, there]] = stored[[there, here]]
        self.place[row], self.place[other] = there, here


class SlabCache:
    """What transformers sees as the cache during one run: writes at slots, reads everything so far.

    Stages are counted in the order in which they run, so a layer that runs twice has two.
    """

    is_compileable = False

    def __init__(self, slab: Slab) -> None:
        """Starts on a slab."""
        self.slab = slab
        self._stage = 0
        self._length = 0
        self._slots: Tensor | None = None
        self._run: tuple[int, int] | None = None
        self._places: tuple[Tensor | None, Tensor] | None = None
        self._rows: Tensor | None = None

    @contextlib.contextmanager
    def only(self, rows: Sequence[int]) -> Iterator[None]:
        """Forward passes in the block concern these rows of the slab alone."""
        self._rows = torch.tensor(rows)
        try:
            yield
        finally:
            self._rows = None

    def begin(self, slots: Tensor, length: int) -> None:
        """Declares the slots of the next forward pass (-1: not kept) and the length of the longest row after it."""
        self._stage, self._length, self._slots, self._places = 0, length, slots, None
        first, width = int(slots[0, 0]), slots.shape[1]
        expected = torch.arange(first, first + width, device=slots.device)
        self._run = (first, width) if first >= 0 and bool((slots == expected).all()) else None

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes the new keys and values, returns all of them."""
        keys, values = self.slab.stage(self._stage, key)
        self._stage += 1
        assert self._slots is not None
        count = len(self._slots)
        if self._rows is None and count < self.slab.rows:
            keys, values = keys[:count], values[:count]
        if self._run is not None and self._rows is None:
            start, width = self._run
            keys.narrow(2, start, width).copy_(key)
            values.narrow(2, start, width).copy_(value)
        else:
            self._places = self._places or _places(self._slots, self._rows, key.shape[1], self.slab.capacity)
            kept, place = self._places
            for new, stored in ((key, keys), (value, values)):
                lines = new.reshape(-1, new.shape[-1])
                stored.view(-1, stored.shape[-1]).index_copy_(0, place, lines if kept is None else lines[kept])
        keys, values = keys.narrow(2, 0, self._length), values.narrow(2, 0, self._length)
        if self._rows is None:
            return keys, values
        rows = self._rows.to(keys.device)
        return keys.index_select(0, rows), values.index_select(0, rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Length of the longest row."""
        return self._length


def _places(slots: Tensor, rows: Tensor | None, heads: int, capacity: int) -> tuple[Tensor | None, Tensor]:
    """Which of the new lines, `row kv pos` flattened, are kept (None: all), and their place in a stage, flattened too."""
    where = torch.arange(len(slots)) if rows is None else rows
    place = (
        where.to(slots.device)[:, None, None] * heads + torch.arange(heads, device=slots.device)[:, None]
    ) * capacity + slots[:, None, :]
    kept = (slots >= 0)[:, None, :].expand_as(place).flatten()
    return (None, place.flatten()) if bool(kept.all()) else (kept.nonzero().flatten(), place.flatten()[kept])


def cells(tokens: Sequence[int] | np.ndarray, positions: Sequence[int] | np.ndarray) -> Int[np.ndarray, "pos 2"]:
    """What stands in the slots of a conversation: token ids and their positions in the episode."""
    return np.stack([np.asarray(tokens, dtype=np.int64), np.asarray(positions, dtype=np.int64)], axis=1)


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """One cached conversation.

    Attributes:
        cells: Token id and episode position of each slot.
        lineage: For each intervention (by digest) that was applied, the slots.
        order: The layer order it was made under.
        slab: Where its keys and values are.
        row: In which of its rows; see `Slab.place`.
        coverage: For each recorder, the index of the record of each slot.
    """

    cells: Int[np.ndarray, "pos 2"]
    lineage: Lineage
    order: Hashable
    slab: Slab
    row: int
    coverage: dict[Hashable, np.ndarray]
    used: int = dataclasses.field(default_factory=lambda: next(_clock))

    def reusable(self, wanted: Int[np.ndarray, "pos 2"], lineage: Lineage, recorders: Sequence[Hashable]) -> int:
        """How many slots can be reused for a request that wants these cells."""
        shared = min(len(wanted), len(self.cells))
        different = np.flatnonzero((wanted[:shared] != self.cells[:shared]).any(axis=1))
        length = int(different[0]) if len(different) else shared
        for digest in {*self.lineage, *lineage}:
            first = spans.first_difference(
                spans.clip(self.lineage.get(digest, ()), 0, length), spans.clip(lineage.get(digest, ()), 0, length)
            )
            length = length if first is None else min(length, first)
        length = min(length, _first_swap(self.lineage, lineage))
        for recorder in recorders:
            length = min(length, len(self.coverage.get(recorder, ())))
        return length


def _first_swap(left: Lineage, right: Lineage) -> int:
    """The first slot that interventions in another order can have touched: two of them at one Site need not commute."""
    mine, other = ([key for key in a if a[key] and b.get(key)] for a, b in ((left, right), (right, left)))
    same = next((index for index, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1]), len(mine))
    return min((left[key][0].start for key in mine[same:]), default=NEVER)


class Pool:
    """All cached conversations of a model, the longest unused dropped when they exceed a budget."""

    def __init__(self, budget: int) -> None:
        """Starts empty.

        Args:
            budget: Bytes of keys and values to keep.
        """
        self.budget = budget
        self.entries: list[Entry] = []

    def match(
        self,
        wanted: Int[np.ndarray, "pos 2"],
        lineage: Lineage,
        *,
        order: Hashable,
        recorders: Sequence[Hashable],
        limit: int,
    ) -> tuple[Entry | None, int]:
        """The entry that saves most, and how many slots of it can be reused (at most `limit`)."""
        best: tuple[Entry | None, int] = (None, 0)
        for entry in self.entries:
            if entry.order == order:
                length = min(entry.reusable(wanted, lineage, recorders), limit)
                if length > best[1]:
                    best = (entry, length)
        return best

    def seat(self, matches: Sequence[tuple[Entry | None, int]], need: int) -> tuple[Slab, list[int]]:
        """A slab whose first rows have the reused prefixes of the requests, and the place of each.

        Args:
            matches: For each request its entry and reusable length.
            need: Slots that the longest row will need.
        """
        near = [entry for entry, length in matches if entry is not None and len(entry.cells) - length <= TAIL]
        slabs = {id(entry.slab): entry.slab for entry in near}
        rows = [entry.row for entry in near]
        if len(near) == len(matches) and len(slabs) == 1 and len(set(rows)) == len(rows):
            (slab,) = slabs.values()
            # A slab of which less than half is used makes room: the rest may never be asked for again.
            if slab.rows <= 2 * len(rows) and slab.capacity >= need:
                self.remove(near)
                return slab, slab.to_front(rows)
        continued = [entry for entry, length in matches if entry is not None and length == len(entry.cells)]
        capacity = -(-need * 5 // 4 // GROWTH) * GROWTH
        slab = Slab(len(matches), capacity)
        for row, (entry, length) in enumerate(matches):
            if entry is not None:
                slab.copy_row(row, entry.slab, entry.row, length)
                entry.used = next(_clock)
        self.remove(continued)
        return slab, list(range(len(matches)))

    def add(self, entry: Entry) -> None:
        """Keeps a conversation, dropping the longest unused ones if the budget is exceeded."""
        self.entries.append(entry)
        while len(self.entries) > 1 and self.nbytes > self.budget:
            self.remove([min(self.entries, key=lambda one: one.used)])

    def remove(self, gone: Sequence[Entry]) -> None:
        """Forgets conversations."""
        drop = {id(entry) for entry in gone}
        self.entries = [entry for entry in self.entries if id(entry) not in drop]

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum({id(entry.slab): entry.slab.nbytes for entry in self.entries}.values())
