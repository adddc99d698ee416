"""How do groups of rows take over what one group of them wrote?

    wrote = exchanging.exchange(wrote, mask, detached=False)         # Float[... group row]; the first group is where from
    stream = exchanging.spread(stream, groups)                       # the same rows for more groups

The first group are other inputs; it stays as it is. Each of the others, where its mask says so, gets the first one's value.
While the others are all the same there is one of them, and the exchange gives as many as the mask has. Forward and backward
are one pass over the data each, where slices and `where` would be several.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def exchange(
    wrote: Float[Tensor, "*any given row"], mask: Bool[Tensor, "*masked group row"], *, detached: bool
) -> Float[Tensor, "*any all row"]:
    """The first group, then the others with what they take from it; `detached`, no gradient flows through that."""
    found: Any = _Exchange.apply(wrote, mask, detached)
    return found


def spread(rows: Float[Tensor, "*any given row"], groups: int) -> Float[Tensor, "*any group row"]:
    """The first group, then the second as often as it takes; as it is when there are enough."""
    given = rows.shape[-2]
    if given == groups:
        return rows
    first, second = rows.split([1, given - 1], dim=-2)
    return torch.cat([first, second.expand(*second.shape[:-2], groups - 1, -1)], dim=-2)


class _Exchange(torch.autograd.Function):
    """`where` with a group of the same tensor."""

    @staticmethod
    def forward(ctx: Any, wrote: Tensor, mask: Tensor, detached: bool) -> Tensor:
        """Takes over."""
        first, others = wrote.split([1, wrote.shape[-2] - 1], dim=-2)
        found = wrote.new_empty(*wrote.shape[:-2], 1 + mask.shape[-2], wrote.shape[-1])
        found[..., :1, :] = first
        torch.where(mask, first, others, out=found[..., 1:, :])
        ctx.save_for_backward(mask)
        ctx.given, ctx.detached = wrote.shape[-2], detached
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Gives back: to the first group what was taken over, to the others what was their own."""
        (gradient,), (mask,) = gradients, ctx.saved_tensors
        first, others = gradient.split([1, gradient.shape[-2] - 1], dim=-2)
        taken = others * mask
        found = gradient.new_empty(*gradient.shape[:-2], ctx.given, gradient.shape[-1])
        if ctx.given == gradient.shape[-2]:
            torch.sub(others, taken, out=found[..., 1:, :])
        else:
            torch.sum(others - taken, dim=-2, keepdim=True, out=found[..., 1:, :])
        found[..., :1, :] = first if ctx.detached else first + taken.sum(dim=-2, keepdim=True)
        return found, None, None
