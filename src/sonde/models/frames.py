"""What one forward pass is about: which token of which episode stands in which cell.

A Frame says for every cell of the input its position in the episode (what interventions and recordings speak of) and
its slot in the cache (what the model's rotary embedding and mask speak of). They differ only after a context policy
dropped turns. Padding is -1 in both. Cost: two small integer tensors per forward pass.
"""

import dataclasses

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclasses.dataclass(slots=True, eq=False)
class Frame:
    """One forward pass.

    Attributes:
        positions: Episode position of every input cell, -1 for padding.
        slots: Cache slot of every input cell, -1 for padding.
        key_positions: Episode position of every key the queries may see, -1 for none.
        owns_mask: True in the engine, where the mask follows from the slots; False in a bare forward, where the
            model's own mask holds.
        padded: Whether any cell is padding.
        kept: How many positions, counted from the end, the caller wants logits of; 0 for all.
        turns: The rotary embedding of this pass as `lean` needs it, once a layer has worked it out.
    """

    positions: Int[Tensor, "batch pos"]
    slots: Int[Tensor, "batch pos"]
    key_positions: Int[Tensor, "batch key"]
    owns_mask: bool
    padded: bool
    kept: int = 0
    turns: tuple[Tensor, Tensor] | None = None
    _masks: dict[int | None, Tensor | None] = dataclasses.field(default_factory=dict)
    _biases: dict[tuple[int | None, torch.dtype], Tensor | None] = dataclasses.field(default_factory=dict)

    def allowed(self, window: int | None) -> Bool[Tensor, "batch 1 query key"] | None:
        """Which keys each query may see, or None where a plain causal (or, for one query, full) kernel does."""
        if window not in self._masks:
            self._masks[window] = self._build(window)
        return self._masks[window]

    def bias(self, window: int | None, dtype: torch.dtype) -> Float[Tensor, "batch 1 query key"] | None:
        """The same to be added to scores: 0 or -inf. Made once, where every layer would make it of the other."""
        key = (window, dtype)
        if key not in self._biases:
            mask = self.allowed(window)
            self._biases[key] = (
                None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
            )
        return self._biases[key]

    def _build(self, window: int | None) -> Tensor | None:
        keys = self.key_positions.shape[1]
        slots = self.slots
        first, last = int(slots[:, 0].min()), int(slots[:, -1].min())
        aligned = not self.padded and last == keys - 1 and int(slots[:, -1].max()) == last
        if aligned and (window is None or window >= keys) and (slots.shape[1] == 1 or first == 0):
            return None
        key = torch.arange(keys, device=slots.device)
        query = slots.clamp(min=0)[:, None, :, None]
        mask = key <= query
        return mask if window is None else mask & (key > query - window)
