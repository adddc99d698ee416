"""What the model would say if a stream were its last: final norm, unembedding, and the soft cap where there is one.

    logits = readout.logits(model, stream)          # of the stream after the last layer, or of any earlier one
    logits = readout.unembedded(model, normed)      # of what the final norm gave

The model's own modules do the work. Costs one unembedding.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sonde.models import model as models_model


def logits(model: models_model.Model, stream: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_vocab"]:
    """Logits if this were the stream after the last layer."""
    with model.lock, torch.no_grad():
        return unembedded(model, model.parts.taps["ln_final.hook_out"].module(stream))


def unembedded(model: models_model.Model, normed: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_vocab"]:
    """Logits of what the final norm gave."""
    with model.lock, torch.no_grad():
        return capped(model, model.parts.taps["unembed.hook_out"].module(normed))


def capped(model: models_model.Model, raw: Float[Tensor, "*rows d_vocab"]) -> Float[Tensor, "*rows d_vocab"]:
    """What the unembedding gave, with the soft cap of families that have one."""
    config: Any = model.hf.config
    cap = getattr(config, "final_logit_softcapping", None)
    return torch.tanh(raw / cap) * cap if cap else raw
