"""Attention kernels: the model's own, with scores and pattern computed beside it, and an explicit one for edits.

Registered with transformers under the names `sonde_sdpa` and `sonde_eager`; the engine and bare forwards switch to
one of them only while something needs it. Rules:

1. Recording never changes the run: the output comes from the same kernel whether or not scores are recorded.
2. Only an edit of scores or pattern switches a layer to the explicit kernel.
3. In the engine, heads that share keys and values share them in the kernel too: nothing is copied per query head.

Recording a pattern costs one more query-by-key product in that layer.
"""

import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import masking_utils, modeling_utils
from transformers.integrations import sdpa_attention

if TYPE_CHECKING:
    from sonde.models import wiring as model_wiring

INNER = ("sdpa", "eager")
#: From so many rows on, decoding on a CPU takes attention as two products.
MANY_ROWS = 8
_local = threading.local()


def current() -> "model_wiring.Wiring | None":
    """The wiring whose forward pass runs in this thread."""
    return getattr(_local, "wiring", None)


def set_current(wiring: "model_wiring.Wiring | None") -> None:
    """Declares whose forward pass runs in this thread."""
    _local.wiring = wiring


def kernel_name(implementation: str | None) -> str:
    """The Sonde kernel that wraps a model's own attention implementation."""
    return f"sonde_{implementation if implementation in INNER else 'sdpa'}"


def scores_of(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv key d_head"],
    allowed: Tensor | None,
    *,
    scaling: float,
    softcap: float | None,
) -> Float[Tensor, "batch head query key"]:
    """Attention scores as TransformerLens defines them: scaled, capped, forbidden cells -inf."""
    scores = torch.matmul(_grouped(query, key.shape[1]), key.transpose(-1, -2)) * scaling
    scores = _ungrouped(scores, query.shape[1])
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if allowed is None:
        return scores
    return scores.masked_fill(~allowed, -torch.inf)


def pattern_of(scores: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query key"]:
    """Softmax over the keys; a query with no key left attends to nothing."""
    pattern = torch.softmax(scores.float(), dim=-1).to(scores.dtype)
    return torch.nan_to_num(pattern, nan=0.0)


def weighted(
    pattern: Float[Tensor, "batch head query key"], value: Float[Tensor, "batch kv key d_head"]
) -> Float[Tensor, "batch query head d_head"]:
    """Values weighted by a pattern, grouped so that shared values are not copied."""
    summed = torch.matmul(_grouped(pattern, value.shape[1]), value)
    return _ungrouped(summed, pattern.shape[1]).transpose(1, 2)


def _grouped(per_head: Tensor, kv_heads: int) -> Tensor:
    """`batch head query x` as `batch kv (group query) x`: one product serves all heads that share keys or values."""
    return per_head.reshape(len(per_head), kv_heads, -1, per_head.shape[-1])


def _ungrouped(grouped: Tensor, heads: int) -> Tensor:
    """The way back."""
    batch, kv_heads, rows, width = grouped.shape
    return grouped.reshape(batch, heads, rows * kv_heads // heads, width)


def attend(
    inner: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """What transformers calls for attention: records and edits as the wiring in this thread asks."""
    wiring = current()
    if wiring is None or wiring.frame is None:
        return _own_kernel(inner, module, query, key, value, attention_mask, **kwargs)
    softcap = kwargs.get("softcap")
    scaling = kwargs.get("scaling") or float(cast(Any, module).head_dim ** -0.5)
    layer = int(module.layer_idx)  # pyright: ignore[reportArgumentType]
    owns_mask = wiring.frame.owns_mask
    # A cache of transformers' own forgets keys that have left the window; to edits and recordings they are forbidden.
    forgotten = wiring.frame.key_positions.shape[1] - key.shape[2]
    edited, recorded = wiring.edits_kernel(layer), wiring.records_kernel(layer)
    window = kwargs.get("sliding_window")
    if edited or recorded:
        allowed = wiring.frame.allowed(window) if owns_mask else _boolean(attention_mask)
        if allowed is None and query.shape[2] > 1:
            allowed = _causal(query, key)
        scores = scores_of(query, key, allowed, scaling=scaling, softcap=softcap)
        scores = F.pad(scores, (forgotten, 0), value=-torch.inf) if forgotten else scores
        scores = wiring.visit_kernel(layer, "attn.hook_attn_scores", scores)
        pattern = wiring.visit_kernel(layer, "attn.hook_pattern", pattern_of(scores))
        if edited:
            return weighted(pattern[..., forgotten:], value), None
    if not owns_mask:
        return _own_kernel(inner, module, query, key, value, attention_mask, **kwargs)
    if softcap is not None:
        allowed = wiring.frame.allowed(window)
        allowed = _causal(query, key) if allowed is None and query.shape[2] > 1 else allowed
        return weighted(pattern_of(scores_of(query, key, allowed, scaling=scaling, softcap=softcap)), value), None
    return _engine_kernel(query, key, value, wiring.frame.bias(window, query.dtype), scaling), None


def _engine_kernel(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float) -> Tensor:
    """Torch's kernel. For one query per row, heads that share keys are its queries: the keys are read once for them.

    Many such rows on a CPU are two products instead.
    """
    if query.shape[2] > 1:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, is_causal=bias is None, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2)
    grouped = _grouped(query, key.shape[1])
    if len(query) >= MANY_ROWS and query.device.type == "cpu" and query.dtype == torch.float32:
        out = _two_products(grouped * scaling, key, value, bias)
    else:
        out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=bias, scale=scaling)
    return _ungrouped(out, query.shape[1]).transpose(1, 2)


def _two_products(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """The same for scaled queries, step by step: a few percent faster on a CPU where there are many rows."""
    scores = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).mT)
    if bias is not None:
        scores.view(*query.shape[:3], -1).add_(bias)
    return torch.bmm(torch.softmax(scores, dim=-1), value.flatten(0, 1)).view_as(query)


def _own_kernel(inner: str, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    if inner == "sdpa":
        return sdpa_attention.sdpa_attention_forward(module, *args, **kwargs)
    return sys.modules[type(module).__module__].eager_attention_forward(module, *args, **kwargs)


def _causal(query: Tensor, key: Tensor) -> Tensor:
    """Every query sees the keys up to itself; the queries are the last ones."""
    queries, keys = query.shape[2], key.shape[2]
    return torch.ones(queries, keys, dtype=torch.bool, device=key.device).tril(keys - queries)


def _boolean(mask: Tensor | None) -> Tensor | None:
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask == 0


def _register() -> None:
    for inner in INNER:

        def kernel(*args: Any, inner: str = inner, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
            return attend(inner, *args, **kwargs)

        modeling_utils.AttentionInterface.register(f"sonde_{inner}", kernel)
        mask = masking_utils.sdpa_mask if inner == "sdpa" else masking_utils.eager_mask
        masking_utils.AttentionMaskInterface.register(f"sonde_{inner}", mask)


_register()
