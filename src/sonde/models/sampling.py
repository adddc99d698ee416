"""Drawing the next token: temperature, top-k, top-p, one seeded generator per episode."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sonde.models import requests


def draw(logits: Float[Tensor, " vocab"], sampling: requests.Sampling, generator: torch.Generator) -> int:
    """One token, at a temperature above 0. The n-th token depends on seed and logits only: one draw for each."""
    scores = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        kept = scores.topk(sampling.top_k)
        scores = torch.full_like(scores, -torch.inf).index_copy(0, kept.indices, kept.values)
    if sampling.top_p < 1:
        ordered, index = scores.sort(descending=True)
        mass = ordered.softmax(dim=-1).cumsum(dim=-1)
        beyond = mass - ordered.softmax(dim=-1) >= sampling.top_p
        scores = scores.index_fill(0, index[beyond], -torch.inf)
    cumulative = scores.softmax(dim=-1).double().cumsum(dim=-1)
    point = torch.rand(1, generator=generator, dtype=torch.float64).to(cumulative.device) * cumulative[-1]
    return int(torch.searchsorted(cumulative, point, right=True).clamp(max=len(cumulative) - 1))


def without(
    logits: Float[Tensor, "batch vocab"], rows: Sequence[int], tokens: Int[Tensor, " token"]
) -> Float[Tensor, "batch vocab"]:
    """The logits, with some tokens out of the question in some rows."""
    if not rows:
        return logits
    kept = logits.clone()
    kept[torch.tensor(rows, device=logits.device)[:, None], tokens] = -torch.inf
    return kept


def logprobs_of(logits: Float[Tensor, "batch vocab"], tokens: list[int]) -> list[float]:
    """Log-probability of the chosen tokens under the model's own distribution."""
    index = torch.tensor(tokens, device=logits.device)[:, None]
    return logits.float().log_softmax(dim=-1).gather(1, index)[:, 0].tolist()
