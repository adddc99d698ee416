"""What a run recorded, before it is sorted by episode: whole batches, one chunk per forward pass.

A chunk is one private copy of a Site's tensor; nothing else happens while the model runs. Rows and padding are
separated once, at the end.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from sonde.core import errors, sites
from sonde.models import frames


@dataclasses.dataclass(slots=True, eq=False)
class Tape:
    """Chunks per Site.

    Attributes:
        wanted: The Sites to record.
        passes: The forward passes, in order.
        chunks: For each Site one tensor per forward pass.
    """

    wanted: frozenset[str]
    passes: list[frames.Frame] = dataclasses.field(default_factory=list)
    chunks: dict[str, dict[int, Tensor]] = dataclasses.field(default_factory=dict)

    def put(self, name: str, value: Tensor) -> None:
        """Keeps a copy. A layer that runs twice in one forward pass keeps its last value."""
        self.chunks.setdefault(name, {})[len(self.passes) - 1] = value.detach().clone()

    def chunk(self, name: str) -> dict[int, Tensor]:
        """The chunks of a Site by forward pass.

        Raises:
            CaptureError: It never ran.
        """
        if name not in self.chunks:
            raise errors.CaptureError(f"{name!r} was not recorded: the layer order in force does not run its layer")
        return self.chunks[name]

    def row(self, row: int, names: Iterable[str]) -> Mapping[str, Tensor]:
        """Values of one row, padding removed, in the order in which they were encoded.

        Query-by-key Sites come ragged: for each position its keys up to itself, `key head`, one after the other.
        """
        columns = [frame.positions[row] >= 0 for frame in self.passes]
        values = {}
        for name in names:
            parts = self.chunk(name)
            if sites.Site.parse(name).is_query_key:
                values[name] = torch.cat([self._ragged(parts[i][row], i, row) for i in sorted(parts)])
            else:
                values[name] = torch.cat([parts[i][row][columns[i]] for i in sorted(parts)])
        return values

    def _ragged(self, value: Tensor, index: int, row: int) -> Tensor:
        frame = self.passes[index]
        slots = frame.slots[row]
        seen = (torch.arange(value.shape[-1], device=value.device) <= slots[:, None]) & (slots[:, None] >= 0)
        return value.permute(1, 2, 0)[seen & (frame.key_positions[row] >= 0)]
