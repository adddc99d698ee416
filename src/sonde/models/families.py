"""Which module holds which Site: one table row per model family.

A row names modules relative to the model or to one layer. Everything else in this room is written against rows, so a
new architecture is one row here. Costs nothing until a model is loaded.
"""

import dataclasses
from typing import Literal

from sonde.core import errors

Fused = Literal["concat", "per_head"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Where the Sites of an architecture are.

    Attributes:
        name: What the family is called.
        model_types: `config.model_type` values it serves.
        layers: Path of the ModuleList of blocks; the other top-level paths likewise.
        attn: Attention module inside a block; `o` is its output projection inside it.
        q: Query projection inside `attn` (k and v likewise); None where `qkv` is one fused projection.
        fused: How `qkv` is laid out: all q, then all k, then all v; or q k v for each head in turn.
        attn_out: Module in a block whose output is what attention adds to the stream.
        resid_mid: Module in a block whose input is the stream between attention and MLP; None if they run in parallel.
        attn_norm: Norm in a block that attention reads through; `mlp_norm` the MLP's.
        mlp_pre: Projection whose output enters the non-linearity; `mlp_linear` the other branch of a gated MLP;
            `mlp_down` the projection back.
        mlp_out: Module in a block whose output is what the MLP adds.
    """

    name: str
    model_types: tuple[str, ...]
    embed: str = "model.embed_tokens"
    pos_embed: str | None = None
    layers: str = "model.layers"
    final_norm: str = "model.norm"
    unembed: str = "lm_head"
    attn: str = "self_attn"
    q: str | None = "q_proj"
    k: str | None = "k_proj"
    v: str | None = "v_proj"
    qkv: str | None = None
    fused: Fused | None = None
    o: str = "o_proj"
    attn_out: str = "self_attn"
    resid_mid: str | None = "post_attention_layernorm"
    attn_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    mlp_pre: str = "mlp.gate_proj"
    mlp_linear: str | None = "mlp.up_proj"
    mlp_down: str = "mlp.down_proj"
    mlp_out: str = "mlp"


LLAMA = Family(name="llama", model_types=("llama", "mistral", "qwen2", "qwen3"))
GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    embed="transformer.wte",
    pos_embed="transformer.wpe",
    layers="transformer.h",
    final_norm="transformer.ln_f",
    attn="attn",
    q=None,
    k=None,
    v=None,
    qkv="c_attn",
    fused="concat",
    o="c_proj",
    attn_out="attn",
    resid_mid="ln_2",
    attn_norm="ln_1",
    mlp_norm="ln_2",
    mlp_pre="mlp.c_fc",
    mlp_linear=None,
    mlp_down="mlp.c_proj",
)
NEOX = Family(
    name="gpt_neox",
    model_types=("gpt_neox",),
    embed="gpt_neox.embed_in",
    layers="gpt_neox.layers",
    final_norm="gpt_neox.final_layer_norm",
    attn="attention",
    q=None,
    k=None,
    v=None,
    qkv="query_key_value",
    fused="per_head",
    o="dense",
    attn_out="attention",
    mlp_pre="mlp.dense_h_to_4h",
    mlp_linear=None,
    mlp_down="mlp.dense_4h_to_h",
)
GEMMA = Family(
    name="gemma",
    model_types=("gemma2", "gemma3_text"),
    attn_out="post_attention_layernorm",
    resid_mid="pre_feedforward_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_out="post_feedforward_layernorm",
)
PLAIN = Family(
    name="plain",
    model_types=("sonde_plain",),
    pos_embed="model.embed_positions",
    mlp_pre="mlp.fc_in",
    mlp_linear=None,
    mlp_down="mlp.fc_out",
)
FAMILIES = (LLAMA, GPT2, NEOX, GEMMA, PLAIN)


def register(family: Family) -> None:
    """Adds a row, before the others, so that it can also replace one."""
    global FAMILIES
    FAMILIES = (family, *FAMILIES)


def refuse_encoder(config: object) -> None:
    """Refuses a transformers config of a model that reads both ways.

    Raises:
        FamilyError: It is an encoder, or an encoder and a decoder.
    """
    from transformers.models.auto import modeling_auto

    model_type = getattr(config, "model_type", None)
    masked = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    if masked or getattr(config, "is_encoder_decoder", False):
        raise errors.FamilyError(
            f"a model of type {model_type!r} is an encoder and not a causal language model: it does not continue a text. "
            "Give a model that does, such as GPT-2 or Llama"
        )


def of_config(config: object) -> Family:
    """The row for a transformers config.

    Raises:
        FamilyError: There is none; the message says how to add one, or that the model is not causal.
    """
    model_type = getattr(config, "model_type", None)
    for family in FAMILIES:
        if model_type in family.model_types:
            if family is NEOX and getattr(config, "use_parallel_residual", True):
                return dataclasses.replace(family, resid_mid=None)
            return family
    refuse_encoder(config)
    known = sorted(kind for family in FAMILIES for kind in family.model_types)
    raise errors.FamilyError(
        f"no family row for model type {model_type!r} (known: {', '.join(known)}). Add one:\n"
        "    from sonde.models import families\n"
        f"    families.register(families.Family(name={model_type!r}, model_types=({model_type!r},), …))\n"
        "naming its modules as the rows in sonde/models/families.py do; loading then proves the row against the model."
    )
