"""Weights under TransformerLens' names: `W_E`, `W_U`, `W_Q` … one tensor for all layers.

    circuit = model.W_V[5, 3] @ model.W_O[5, 3]

They are what transformers runs: nothing is folded or centred. `W_K` and `W_V` have one matrix per key-value head. `W_in` is
the branch of a gated MLP that is multiplied with the activated `W_gate`. All are detached; those of all layers are copies,
those of embedding and unembedding are views. A bias that the model has not is an AttributeError, and so is `W_gate` of an
MLP without a gate; `b_U` is then zero.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sonde.models import taps as model_taps
from sonde.models import wiring

_SITES = {
    "W_E": "hook_embed",
    "W_pos": "hook_pos_embed",
    "W_U": "unembed.hook_out",
    "b_U": "unembed.hook_out",
    "W_Q": "attn.hook_q",
    "b_Q": "attn.hook_q",
    "W_K": "attn.hook_k",
    "b_K": "attn.hook_k",
    "W_V": "attn.hook_v",
    "b_V": "attn.hook_v",
    "W_O": "attn.hook_z",
    "b_O": "attn.hook_z",
    "W_gate": "mlp.hook_pre",
    "W_in": "mlp.hook_pre",
    "b_in": "mlp.hook_pre",
    "W_out": "mlp.hook_post",
    "b_out": "mlp.hook_post",
}
NAMES = frozenset(_SITES)
#: The modules at a model's ends, which can be called.
MODULES = {"embed": "hook_embed", "ln_final": "ln_final.hook_out", "unembed": "unembed.hook_out"}


class Weights:
    """The names as a type checker sees them; a Model resolves them when they are asked for."""

    W_E: Tensor
    W_pos: Tensor
    W_U: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    W_in: Tensor
    W_gate: Tensor
    W_out: Tensor
    b_Q: Tensor  # noqa: N815
    b_K: Tensor  # noqa: N815
    b_V: Tensor  # noqa: N815
    b_O: Tensor  # noqa: N815
    b_in: Tensor
    b_out: Tensor
    b_U: Tensor  # noqa: N815
    embed: nn.Module
    ln_final: nn.Module
    unembed: nn.Module


def read(parts: wiring.Parts, name: str) -> Tensor:
    """The weights of a name, `layer …` if each layer has its own.

    Raises:
        AttributeError: This model has none.
    """
    gated = parts.family.mlp_linear is not None
    kind = "mlp.hook_pre_linear" if gated and name in ("W_in", "b_in") else _SITES[name]
    places = [kind] if kind in parts.taps else [f"blocks.{layer}.{kind}" for layer in range(parts.cfg.n_layers)]
    found = [] if name == "W_gate" and not gated else [_read(parts, parts.taps.get(place), name) for place in places]
    layers = [one.detach() for one in found if one is not None]
    if not layers:
        raise AttributeError(f"{parts.cfg.model_name!r} has no {name}; its family is {parts.family.name!r}")
    return layers[0] if len(places) == 1 and kind == places[0] else torch.stack(layers)


def _read(parts: wiring.Parts, tap: model_taps.Tap | None, name: str) -> Tensor | None:
    if tap is None:
        return None
    module: Any = tap.module
    if name == "b_U" and getattr(module, "bias", None) is None:
        return torch.zeros(parts.cfg.d_vocab, dtype=module.weight.dtype, device=module.weight.device)
    if name == "W_O":
        return model_taps.output_weight(module, parts.cfg.n_heads)
    if name in ("W_E", "W_pos"):
        return module.weight
    if name.startswith("b_"):
        value = getattr(module, "bias", None)
        return value if value is None or name[-1] not in "QKV" else tap.view(value)
    matrix = module.weight.T if isinstance(module, nn.Linear) else module.weight  # GPT-2's Conv1D is transposed
    return tap.view(matrix).transpose(0, 1) if name[-1] in "QKV" else matrix
