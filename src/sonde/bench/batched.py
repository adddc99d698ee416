"""How are many small transformers run at once, with the outputs of chosen nodes swapped?

    weights = batched.draw(shape, seeds=[0, 1, 2])                       # Float[seed parameter]: one row per model
    found = batched.run(shape, weights, tokens)                          # logits and what every node wrote
    other = batched.run(shape, weights, tokens, swap=batched.Swap(found.kept, nodes))

The models are `plain.PlainForCausalLM`s of one shape; `to_plain` and `from_plain` convert one. All parameters of a model are
one row of a matrix, so that gradients are clipped, and Adam steps, per model with a handful of operations.

1. Activations are `seed feature position row`: rows last, so that the many tiny products of narrow heads run over long
   vectors; wide heads go through torch's attention kernel.
2. A swap has its values from an earlier run on other tokens: `where(mask, there, here)` after each head and each MLP. Masks
   are per model and row. With several `groups` the same tokens run several times, each group with masks of its own.

Costs, with narrow heads, per layer and row about as much as the products and activations themselves; the overhead of an
operation is paid once for all models.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from sonde.bench import attending
from sonde.core import errors
from sonde.models import plain

NARROW = 16
SHORT = 16
ACTIVATIONS: Mapping[str, Any] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model.

    Attributes:
        n_layers: Layers.
        n_heads: Heads in each.
        d_model: Width of the stream.
        d_head: Width of a head.
        d_mlp: Width of an MLP.
        d_vocab: Tokens.
        d_out: Width of the logits.
        n_positions: Positions, the first for BOS.
        causal: Whether a position sees only those before it.
        activation: Of the MLPs, by transformers' name.
    """

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    d_vocab: int
    d_out: int
    n_positions: int
    causal: bool = True
    activation: str = "gelu_pytorch_tanh"

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters, in the order in which a row holds them: transformers' names."""
        inner, layers = self.n_heads * self.d_head, range(self.n_layers)
        linear = {"lm_head": (self.d_out, self.d_model)}
        for layer in layers:
            at = f"model.layers.{layer}"
            for name in "qkv":
                linear[f"{at}.self_attn.{name}_proj"] = (inner, self.d_model)
            linear[f"{at}.self_attn.o_proj"] = (self.d_model, inner)
            linear[f"{at}.mlp.fc_in"] = (self.d_mlp, self.d_model)
            linear[f"{at}.mlp.fc_out"] = (self.d_model, self.d_mlp)
        found: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.d_vocab, self.d_model),
            "model.embed_positions.weight": (self.n_positions, self.d_model),
        }
        for name, size in linear.items():
            found |= {f"{name}.weight": size, f"{name}.bias": size[:1]}
        return found

    @property
    def n_parameters(self) -> int:
        """How many numbers a model has."""
        return sum(math.prod(size) for size in self.parameters.values())

    def config(self) -> plain.PlainConfig:
        """The same as a configuration for transformers."""
        return plain.PlainConfig(
            vocab_size=self.d_vocab,
            hidden_size=self.d_model,
            intermediate_size=self.d_mlp,
            num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads,
            head_dim=self.d_head,
            max_position_embeddings=self.n_positions,
            hidden_act=self.activation,
            d_out=self.d_out,
            use_bidirectional_attention=not self.causal,
        )

    @classmethod
    def of(cls, config: plain.PlainConfig) -> "Shape":
        """The shape of a plain model."""
        sizes: Any = config
        return cls(
            n_layers=sizes.num_hidden_layers,
            n_heads=sizes.num_attention_heads,
            d_model=sizes.hidden_size,
            d_head=sizes.head_dim,
            d_mlp=sizes.intermediate_size,
            d_vocab=sizes.vocab_size,
            d_out=sizes.d_out,
            n_positions=sizes.max_position_embeddings,
            causal=not sizes.use_bidirectional_attention,
            activation=sizes.hidden_act,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """What the nodes wrote.

    Attributes:
        heads: Per layer, before the output projection.
        mlps: Per layer.
    """

    heads: tuple[Float[Tensor, "seed head d_head pos row"], ...]
    mlps: tuple[Float[Tensor, "seed d_model pos row"], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Swap:
    """Whose outputs are replaced by those of an earlier run.

    Attributes:
        there: The earlier run: as many rows as tokens are given.
        nodes: Per model, group and row; nodes as in `Graph.sources` without `input`: each layer's heads, then its MLP.
    """

    there: Kept
    nodes: Bool[Tensor, "seed group row node"]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a run gave.

    Attributes:
        logits: Per model and group.
        kept: What the nodes wrote, after swaps; rows are all groups' rows, one group after the other.
    """

    logits: Float[Tensor, "seed group row pos d_out"]
    kept: Kept


def draw(shape: Shape, seeds: Sequence[int]) -> Float[Tensor, "seed parameter"]:
    """Fresh weights, normal with a deviation of 0.8 / sqrt(d_model), embeddings three times that; biases are 0.

    A seed's row is its own. Larger embeddings make heads look somewhere sooner.
    """
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            torch.zeros(size)
            if name.endswith("bias")
            else torch.randn(size, generator=generator) * (2.4 if "embed" in name else 0.8) * shape.d_model**-0.5
            for name, size in shape.parameters.items()
        ]
        rows.append(torch.cat([part.flatten() for part in drawn]))
    return torch.stack(rows)


def to_plain(shape: Shape, row: Float[Tensor, "parameter"]) -> plain.PlainForCausalLM:
    """One model for transformers."""
    hf: Any = plain.PlainForCausalLM(shape.config())
    hf.load_state_dict(named(shape, row))
    return hf.eval()


def named(shape: Shape, row: Float[Tensor, "parameter"]) -> dict[str, Tensor]:
    """A model's parameters by name."""
    return {name: part[0] for name, part in parts(shape, row.detach()[None].clone()).items()}


def from_plain(hf: plain.PlainForCausalLM) -> Float[Tensor, "1 parameter"]:
    """The row of a model of transformers."""
    config: Any = hf.config
    return joined(Shape.of(config), hf.state_dict())


def joined(shape: Shape, values: Mapping[str, Tensor]) -> Float[Tensor, "1 parameter"]:
    """The row of parameters by name.

    Raises:
        RequestError: They are those of another shape.
    """
    wanted, there = shape.parameters, {name: tuple(value.shape) for name, value in values.items()}
    if there != wanted:
        odd = sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))
        raise errors.RequestError(
            f"these are the weights of another model: {odd[0]} is {there.get(odd[0], 'not there')}, expected "
            f"{wanted.get(odd[0], 'no such parameter')}; {len(odd)} of {len(wanted)} parameters differ"
        )
    return torch.cat([values[name].detach().float().flatten() for name in wanted])[None]


def run(
    shape: Shape,
    weights: Float[Tensor, "seed parameter"],
    tokens: Int[Tensor, "row pos"],
    *,
    swap: Swap | None = None,
    groups: int = 1,
) -> Found:
    """Runs every model on the same tokens, once per group of swaps."""
    values, (rows, length) = parts(shape, weights), tokens.shape
    hot = F.one_hot(tokens.T.flatten(), shape.d_vocab).T.to(weights.dtype)
    stream = values["model.embed_tokens.weight"].transpose(1, 2) @ hot
    places = values["model.embed_positions.weight"][:, :length].transpose(1, 2)
    stream = (stream.unflatten(-1, (length, 1, rows)) + places[..., None, None]).expand(-1, -1, -1, groups, -1)
    stream = stream.reshape(len(weights), shape.d_model, -1)
    heads, mlps = [], []
    masks = None if swap is None else swap.nodes.unflatten(-1, (shape.n_layers, -1)).permute(3, 0, 4, 1, 2)
    for layer in range(shape.n_layers):
        at = f"model.layers.{layer}"
        query, key, value = (_linear(values, f"{at}.self_attn.{name}_proj", stream) for name in "qkv")
        mixed = _attend(shape, query, key, value, length)
        if swap is not None and masks is not None:
            mixed = _swapped(mixed, swap.there.heads[layer], masks[layer][:, :-1, None])
        heads.append(mixed)
        stream = stream + _linear(values, f"{at}.self_attn.o_proj", mixed.flatten(3).flatten(1, 2))
        inner = ACTIVATIONS[shape.activation](_linear(values, f"{at}.mlp.fc_in", stream))
        wrote = _linear(values, f"{at}.mlp.fc_out", inner).unflatten(-1, (length, -1))
        if swap is not None and masks is not None:
            wrote = _swapped(wrote, swap.there.mlps[layer], masks[layer][:, -1:])
        mlps.append(wrote)
        stream = stream + wrote.flatten(2)
    logits = _linear(values, "lm_head", stream).unflatten(-1, (length, groups, rows))
    return Found(logits.permute(0, 3, 4, 2, 1), Kept(tuple(heads), tuple(mlps)))


def parts(shape: Shape, weights: Float[Tensor, "seed parameter"]) -> dict[str, Tensor]:
    """The parameters of all models by name: views."""
    sizes = shape.parameters
    pieces = weights.split(
        [math.prod(size) for size in sizes.values()], dim=1
    )  # one operation: its gradient is one cat
    return {name: piece.unflatten(1, size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)}


def _linear(values: Mapping[str, Tensor], name: str, stream: Tensor) -> Tensor:
    return torch.baddbmm(values[f"{name}.bias"].unsqueeze(-1), values[f"{name}.weight"], stream)


def _swapped(here: Tensor, there: Tensor, mask: Bool[Tensor, "..."]) -> Tensor:
    """`here` with rows of all groups, `there` with those of one; the mask lacks the axis of positions."""
    groups, rows = mask.shape[-2:]
    chosen = torch.where(mask.unsqueeze(-3), there.unsqueeze(-2), here.unflatten(-1, (groups, rows)))
    return chosen.flatten(-2)


def _attend(
    shape: Shape, query: Tensor, key: Tensor, value: Tensor, length: int
) -> Float[Tensor, "seed head d_head pos row"]:
    size = (shape.n_heads, shape.d_head)
    query, key, value = (part.unflatten(1, size).unflatten(-1, (length, -1)) for part in (query, key, value))
    if shape.d_head <= NARROW and length <= SHORT:
        return attending.narrow(query, key, value, causal=shape.causal)
    seeds = len(query)
    query, key, value = (part.permute(0, 4, 1, 3, 2).flatten(0, 1) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=shape.causal)
    return mixed.unflatten(0, (seeds, -1)).permute(0, 2, 4, 3, 1)
