"""How a Site is read and written: module, side, and the view of the module's tensor that is the Site's value.

A tap is resolved from the family row once per model and Site. Attaching a tap is one PyTorch hook; a model without
attached taps is the bare transformers model.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn

from sonde.core import errors, sites
from sonde.models import config as model_config
from sonde.models import families

Side = Literal["in", "out"]


@dataclasses.dataclass(frozen=True, slots=True)
class Tap:
    """Where one Site is.

    Attributes:
        site: The Site.
        module: The module to hook.
        side: Whether the value is the module's input or output.
        view: From the module's tensor to the Site's value, as a view of the same storage.
        in_place: The value must be changed in place, because the model keeps using the same tensor elsewhere.
    """

    site: sites.Site
    module: nn.Module
    side: Side
    view: Callable[[torch.Tensor], torch.Tensor]
    in_place: bool = False


def site_names(family: families.Family, cfg: model_config.ModelConfig) -> list[str]:
    """The Sites a model has, from input to output."""
    absent = {
        kind
        for kind, path in (("hook_resid_mid", family.resid_mid), ("mlp.hook_pre_linear", family.mlp_linear))
        if path is None
    }
    kinds = [kind for kind in sites.BLOCK_KINDS if kind not in absent]
    first = ["hook_embed"] + (["hook_pos_embed"] if family.pos_embed else [])
    blocks = [f"blocks.{layer}.{kind}" for layer in range(cfg.n_layers) for kind in kinds]
    return [*first, *blocks, "ln_final.hook_out", "unembed.hook_out"]


def value_shape(site: sites.Site, cfg: model_config.ModelConfig) -> tuple[int, ...]:
    """The shape of a Site's value at one position (for query-by-key Sites: of its head axis)."""
    heads = {"attn.hook_k": cfg.n_key_value_heads, "attn.hook_v": cfg.n_key_value_heads}.get(site.kind, cfg.n_heads)
    if site.is_query_key:
        return (heads,)
    if site.kind == "attn.hook_result":
        return (heads, cfg.d_model)
    if site.has_heads:
        return (heads, cfg.d_head)
    if site.kind.startswith("mlp."):
        return (cfg.d_mlp,)
    return (cfg.d_vocab,) if site.kind == "unembed.hook_out" else (cfg.d_model,)


def resolve_all(
    names: Iterable[str], hf: nn.Module, family: families.Family, cfg: model_config.ModelConfig
) -> dict[str, Tap]:
    """The taps of all Sites that live at a module's border (attention scores and pattern live inside the kernel)."""
    parsed = [sites.Site.parse(name) for name in names]
    return {str(site): _resolve(site, hf, family, cfg) for site in parsed if not site.is_query_key}


def _resolve(site: sites.Site, hf: nn.Module, row: families.Family, cfg: model_config.ModelConfig) -> Tap:
    tops: dict[str, str | None] = {
        "hook_embed": row.embed,
        "hook_pos_embed": row.pos_embed,
        "ln_final.hook_out": row.final_norm,
        "unembed.hook_out": row.unembed,
    }
    if site.layer is None:
        return Tap(site, submodule(hf, str(tops[site.kind]), row), "out", _same)
    block = submodule(hf, f"{row.layers}.{site.layer}", row)
    paths: dict[str, tuple[str, Side]] = {
        "hook_resid_pre": ("", "in"),
        "hook_resid_post": ("", "out"),
        "hook_resid_mid": (row.resid_mid or "", "in"),
        "hook_attn_out": (row.attn_out, "out"),
        "hook_mlp_out": (row.mlp_out, "out"),
        "mlp.hook_pre": (row.mlp_pre, "out"),
        "mlp.hook_pre_linear": (row.mlp_linear or "", "out"),
        "mlp.hook_post": (row.mlp_down, "in"),
        "attn.hook_z": (f"{row.attn}.{row.o}", "in"),
        "attn.hook_result": (f"{row.attn}.{row.o}", "out"),
    }
    if site.kind in paths:
        path, side = paths[site.kind]
        view = _heads(cfg.d_head) if site.kind == "attn.hook_z" else _same
        return Tap(site, submodule(block, path, row), side, view, in_place=site.kind == "hook_resid_mid")
    letter = site.kind[-1]
    if row.qkv:
        return Tap(site, submodule(block, f"{row.attn}.{row.qkv}", row), "out", _fused(letter, row, cfg))
    path = {"q": row.q, "k": row.k, "v": row.v}[letter]
    return Tap(site, submodule(block, f"{row.attn}.{path}", row), "out", _heads(cfg.d_head))


def submodule(root: nn.Module, path: str, family: families.Family) -> nn.Module:
    """The module at a path.

    Raises:
        FamilyError: The row names a module that the model does not have.
    """
    try:
        return root.get_submodule(path)
    except AttributeError as error:
        raise errors.FamilyError(
            f"the {family.name!r} row names module {path!r}, which {type(root).__name__} does not have"
        ) from error


def first_tensor(value: Any) -> torch.Tensor:
    """The tensor of a module's output, which may be a tuple that starts with it."""
    return value[0] if isinstance(value, tuple) else value


def output_weight(projection: nn.Module, n_heads: int) -> torch.Tensor:
    """The output projection as `head d_head d_model`, whether a Linear or GPT-2's transposed Conv1D."""
    weight = projection.weight
    assert isinstance(weight, torch.Tensor)
    matrix = weight.T if isinstance(projection, nn.Linear) else weight
    return matrix.reshape(n_heads, -1, matrix.shape[-1])


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _heads(d_head: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.unflatten(-1, (-1, d_head))


def _fused(letter: str, row: families.Family, cfg: model_config.ModelConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    index = "qkv".index(letter)
    if row.fused == "concat":
        return lambda tensor: tensor.unflatten(-1, (3, cfg.n_heads, cfg.d_head)).select(-3, index)
    return lambda tensor: tensor.unflatten(-1, (cfg.n_heads, 3, cfg.d_head)).select(-2, index)
