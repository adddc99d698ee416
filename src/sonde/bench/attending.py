"""How do very many very narrow heads attend, quickly?

    mixed = attending.narrow(query, key, value, seen=[1, 2, 3])     # each Float[seed head d_head pos row]

Thousands of products of 5 x 3 matrices are slow one by one: most of the time goes into starting them. With rows last every
operation runs over long vectors:

1. For each query, scores with the keys it may see, the first `seen` of them: products summed over the head's width.
2. Softmax over the keys, then the values' weighted sum.
3. The gradient goes through the same positions, with the patterns that were kept.

What lies after a causal query is never computed. Costs, per row and head, positions x positions x width multiplications,
and P kernel launches of each kind for all models together; for wide heads torch's own kernel is better.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def narrow(
    query: Float[Tensor, "seed head d_head asking row"],
    key: Float[Tensor, "seed head d_head pos row"],
    value: Float[Tensor, "seed head d_head pos row"],
    seen: Sequence[int],
) -> Float[Tensor, "seed head d_head asking row"]:
    """The mean of values that each head attends to, before its output projection; of how many of them, for each query."""
    found: Any = _Narrow.apply(query * query.shape[2] ** -0.5, key, value, seen)
    return found


class _Narrow(torch.autograd.Function):
    """Attention of scaled queries."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, seen: Sequence[int]) -> Tensor:
        """Goes through the queries one by one."""
        mixed, patterns = torch.empty_like(query), []
        for at, n in enumerate(seen):
            scores = (query[:, :, :, at : at + 1] * key[:, :, :, :n]).sum(dim=2)
            patterns.append(scores.softmax(dim=2))
            mixed[:, :, :, at] = (patterns[-1].unsqueeze(2) * value[:, :, :, :n]).sum(dim=3)
        ctx.save_for_backward(query, key, value, *patterns)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The same queries, once more."""
        (gradient,) = gradients
        query, key, value, *patterns = ctx.saved_tensors
        to_query, to_key, to_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for at, pattern in enumerate(patterns):
            n, here = pattern.shape[2], gradient[:, :, :, at : at + 1]
            to_pattern = (here * value[:, :, :, :n]).sum(dim=2)
            to_value[:, :, :, :n].addcmul_(pattern.unsqueeze(2), here)
            to_scores = pattern * (to_pattern - (pattern * to_pattern).sum(dim=2, keepdim=True))
            to_query[:, :, :, at] = (to_scores.unsqueeze(2) * key[:, :, :, :n]).sum(dim=3)
            to_key[:, :, :, :n].addcmul_(to_scores.unsqueeze(2), query[:, :, :, at : at + 1])
        return to_query, to_key, to_value, None
