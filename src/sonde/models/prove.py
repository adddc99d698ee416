"""Does the family row fit? A model proves its Sites when it is loaded.

One forward pass of a few tokens, recorded everywhere, must show:

1. the logits equal the bare model's, bit for bit;
2. each layer's input is the layer before's output, and the first one's is the embedding;
3. residual in + attention + MLP = residual out, in every layer;
4. the heads' results add up to the attention projection, and pattern x values gives z.

Costs two forward passes of six tokens, or as many as fit.
"""

from typing import TYPE_CHECKING

import torch

from sonde.core import errors
from sonde.models import attention, bos, taps

if TYPE_CHECKING:
    from sonde.models import model as models_model

LENGTH = 6


def prove(model: "models_model.Model") -> None:
    """Checks the row against the model.

    Raises:
        FamilyError: Something does not add up; says what and where.
        ModelError: The model computes no numbers.
    """
    cfg = model.cfg
    ids = torch.arange(min(LENGTH, cfg.n_ctx), device=model.device) * max(1, cfg.d_vocab // LENGTH - 1)
    tokens = ids[None] % cfg.d_vocab
    tokens[0, 0] = bos.added(model.tokenizer) or 0  # where it is missing, a warning would be logged
    with torch.no_grad():
        bare = model.hf(input_ids=tokens, use_cache=False).logits
    if not bare.isfinite().all():
        raise errors.ModelError(
            f"its logits are not finite in {str(bare.dtype).removeprefix('torch.')}: a weight is no number, or too large"
        )
    logits, cache = model.run_with_cache(tokens, lambda name: True)
    if not torch.equal(bare, logits.as_subclass(torch.Tensor)):
        raise _wrong(model, "logits", "recording changes them")
    stream = cache["hook_embed"]
    if "hook_pos_embed" in cache:
        stream = stream + cache["hook_pos_embed"]
    for layer in range(cfg.n_layers):
        at = f"blocks.{layer}"
        _same(model, f"{at}.hook_resid_pre", cache[f"{at}.hook_resid_pre"], stream)
        middle = stream + cache[f"{at}.hook_attn_out"]
        if f"{at}.hook_resid_mid" in cache:
            _same(model, f"{at}.hook_resid_mid", cache[f"{at}.hook_resid_mid"], middle)
        _same(model, f"{at}.hook_resid_post", cache[f"{at}.hook_resid_post"], middle + cache[f"{at}.hook_mlp_out"])
        pattern, value, z = (cache[f"{at}.attn.hook_{kind}"] for kind in ("pattern", "v", "z"))
        _same(model, f"{at}.attn.hook_z", z, attention.weighted(pattern, value.transpose(1, 2)))
        module = model.parts.taps[f"{at}.attn.hook_z"].module
        weight = taps.output_weight(module, cfg.n_heads)
        summed = torch.einsum("bphd,hdm->bpm", z, weight)
        _same(model, f"{at}.attn.hook_result", cache[f"{at}.attn.hook_result"].sum(dim=2), summed)
        stream = cache[f"{at}.hook_resid_post"]


def _same(model: "models_model.Model", where: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    scale = expected.abs().max().clamp(min=1e-3)
    tolerance = 1e-4 if got.dtype == torch.float32 else 5e-2
    if got.shape != expected.shape or not bool((got - expected).abs().max() <= tolerance * scale):
        raise _wrong(model, where, "it does not add up")


def _wrong(model: "models_model.Model", where: str, what: str) -> errors.FamilyError:
    return errors.FamilyError(
        f"the {model.parts.family.name!r} row does not fit {model.cfg.model_name!r} at {where}: {what}. "
        "Compare the row in sonde/models/families.py with the model's source."
    )
