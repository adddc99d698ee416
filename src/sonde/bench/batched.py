"""How are many small transformers run at once, with the outputs of chosen nodes swapped?

    weights = batched.draw(shape, seeds=[0, 1, 2])                       # Float[seed parameter]: one row per model
    found = batched.run(shape, weights, tokens)                          # logits and what every node wrote
    other = batched.run(shape, weights, tokens, swap=batched.Swap(found.kept, masks))

The models are `plain.PlainForCausalLM`s of one shape; `to_plain` and `from_plain` convert one. All parameters of a model are
one row of a matrix, so that gradients are clipped, and Adam steps, per model with a handful of operations.

1. Activations are `seed feature position row`: rows last, so that the many tiny products of narrow heads run over long
   vectors; wide heads go through torch's attention kernel.
2. A swap has its values from an earlier run on other tokens: `where(mask, there, here)` after each head and each MLP. Masks
   are per model and row. With several `groups` the same tokens run several times, each group with masks of its own. Tokens may
   be more or fewer than in the earlier run: positions that both have are swapped, the others keep what is their own.
3. `exchanged` is both runs in one, for training: a third less time, because much of them is the same. Runs on inputs of
   different lengths are two.

Costs, with narrow heads, per layer and row about as much as the products and activations themselves; the overhead of an
operation is paid once for all models.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from sonde.bench import attending, exchanging
from sonde.core import errors
from sonde.models import plain

NARROW = 16
SHORT = 16
EVERY = slice(None)
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
class Outputs:
    """What the nodes wrote.

    Attributes:
        heads: Per layer, before the output projection.
        mlps: Per layer.
    """

    heads: tuple[Float[Tensor, "seed head d_head pos row"], ...]
    mlps: tuple[Float[Tensor, "seed d_model pos row"], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Masks:
    """Which nodes write something else than what they would.

    Nodes are as in `Graph.sources` without `input`: each layer's heads, then its MLP.

    Attributes:
        swapped: Those whose outputs are replaced by the ones on other inputs, per model, group and row.
        silent: Those that write nothing at all; None for none.
    """

    swapped: Bool[Tensor, "seed group row node"]
    silent: Bool[Tensor, "seed group row node"] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Swap:
    """Whose outputs are replaced by those of an earlier run.

    Attributes:
        there: The earlier run: as many rows as tokens are given.
        masks: Which are.
    """

    there: Outputs
    masks: Masks


@dataclasses.dataclass(frozen=True, slots=True)
class Forward:
    """What a run gave.

    Attributes:
        logits: Per model and group.
        kept: What the nodes wrote, after swaps; rows are all groups' rows, one group after the other.
    """

    logits: Float[Tensor, "seed group row pos d_out"]
    kept: Outputs


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
) -> Forward:
    """Runs every model on the same tokens, once per group of swaps."""
    masks = [] if swap is None else _by_layer(shape, swap.masks.swapped)
    still = [] if swap is None or swap.masks.silent is None else _by_layer(shape, swap.masks.silent)
    kept: dict[str, list[Tensor]] = {"heads": [], "mlp": []}

    def change(layer: int, part: str, wrote: Tensor) -> Tensor:
        if swap is not None:
            there = swap.there.heads if part == "heads" else swap.there.mlps
            wrote = _swapped(wrote, there[layer], masks[layer][part])
        if still:
            wrote = wrote.masked_fill(still[layer][part], 0.0)
        kept[part].append(wrote.flatten(-2))
        return wrote

    values = parts(shape, weights)
    stream = _embedded(shape, values, tokens).unsqueeze(-2).expand(-1, -1, -1, groups, -1)
    logits = _through(shape, values, stream, change)
    return Forward(logits, Outputs(tuple(kept["heads"]), tuple(kept["mlp"])))


def exchanged(
    shape: Shape,
    weights: Float[Tensor, "seed parameter"],
    pair: tuple[Int[Tensor, "row pos"], Int[Tensor, "row there"]],
    masks: Masks,
    *,
    counted: slice | list[int] = EVERY,
    detached: bool = False,
) -> Float[Tensor, "seed group row counted d_out"]:
    """Logits of the positions that count, with outputs of nodes replaced by those on other inputs: both runs in one.

    The other inputs are one more group of rows. Up to the first swap all groups are the same, and run as one; in the last
    layer, positions that do not count ask nothing.

    Args:
        shape: Of the models.
        weights: Of the models.
        pair: The inputs, and as many others; these may have another length.
        masks: Which nodes are replaced.
        counted: The positions that count.
        detached: No gradient flows through what is swapped in.
    """
    base, other = pair
    if base.shape[1] != other.shape[1]:
        there = run(shape, weights.detach() if detached else weights, other).kept
        found = run(shape, weights, base, swap=Swap(there, masks), groups=masks.swapped.shape[1])
        return found.logits[:, :, :, counted]
    swapped, silent, values = _by_layer(shape, masks.swapped), masks.silent, parts(shape, weights)
    still = [] if silent is None else _by_layer(shape, F.pad(silent, (0, 0, 0, 0, 1, 0)))  # the others never are
    stream = _embedded(shape, values, torch.cat([other, base])).unflatten(-1, (2, -1))

    def change(layer: int, part: str, wrote: Tensor) -> Tensor:
        wrote = exchanging.exchange(wrote, swapped[layer][part], detached=detached)
        return wrote.masked_fill(still[layer][part], 0.0) if still else wrote

    return _through(shape, values, stream, change, counted)[:, 1:]


def _swapped(
    wrote: Float[Tensor, "*any pos group row"], there: Float[Tensor, "*any other row"], mask: Bool[Tensor, "..."]
) -> Float[Tensor, "*any pos group row"]:
    """What was written there, where the mask says so and both runs have the position."""
    shared = min(wrote.shape[-3], there.shape[-2])
    both, rest = wrote[..., :shared, :, :], wrote[..., shared:, :, :]
    both = torch.where(mask, there[..., :shared, :].unsqueeze(-2), both)
    return torch.cat([both, rest], dim=-3) if rest.shape[-3] else both


def _embedded(
    shape: Shape, values: Mapping[str, Tensor], tokens: Int[Tensor, "row pos"]
) -> Float[Tensor, "seed d_model pos row"]:
    rows, length = tokens.shape
    hot = F.one_hot(tokens.T.flatten(), shape.d_vocab).T.to(values["lm_head.bias"].dtype)
    stream = values["model.embed_tokens.weight"].transpose(1, 2) @ hot
    places = values["model.embed_positions.weight"][:, :length].transpose(1, 2)
    return stream.unflatten(-1, (length, rows)) + places[..., None]


def _by_layer(shape: Shape, nodes: Bool[Tensor, "seed group row node"]) -> list[dict[str, Tensor]]:
    """Masks that fit what heads and MLPs write."""
    each = nodes.unflatten(-1, (shape.n_layers, -1)).permute(3, 0, 4, 1, 2).contiguous()
    return [{"heads": one[:, :-1, None, None], "mlp": one[:, -1:, None]} for one in each]


def _through(
    shape: Shape,
    values: Mapping[str, Tensor],
    stream: Float[Tensor, "seed d_model pos given row"],
    change: Callable[[int, str, Tensor], Tensor],
    counted: slice | list[int] = EVERY,
) -> Float[Tensor, "seed group row counted d_out"]:
    """Logits at the positions that count; `change` gets what heads and MLPs write, and may give more groups than it got."""
    asking = torch.arange(stream.shape[2])
    for layer in range(shape.n_layers):
        at, seen = f"model.layers.{layer}", stream
        if layer == shape.n_layers - 1 and counted != EVERY:
            asking, stream = asking[counted], stream[:, :, counted]
        query = _linear(values, f"{at}.self_attn.q_proj", stream)
        key, value = (_linear(values, f"{at}.self_attn.{name}_proj", seen) for name in "kv")
        mixed = change(layer, "heads", _attend(shape, query, key, value, asking.tolist()))
        moved = _linear(values, f"{at}.self_attn.o_proj", mixed.flatten(1, 2))
        stream = exchanging.spread(stream, moved.shape[-2]) + moved
        inner = ACTIVATIONS[shape.activation](_linear(values, f"{at}.mlp.fc_in", stream))
        stream = stream + change(layer, "mlp", _linear(values, f"{at}.mlp.fc_out", inner))
    return _linear(values, "lm_head", stream).permute(0, 3, 4, 2, 1)


def parts(shape: Shape, weights: Float[Tensor, "seed parameter"]) -> dict[str, Tensor]:
    """The parameters of all models by name: views."""
    sizes = shape.parameters
    pieces = weights.split(
        [math.prod(size) for size in sizes.values()], dim=1
    )  # one operation: its gradient is one cat
    return {name: piece.unflatten(1, size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)}


def _linear(values: Mapping[str, Tensor], name: str, stream: Float[Tensor, "seed d_in *any"]) -> Tensor:
    found = torch.baddbmm(values[f"{name}.bias"].unsqueeze(-1), values[f"{name}.weight"], stream.flatten(2))
    return found.unflatten(-1, stream.shape[2:])


def _attend(
    shape: Shape, query: Tensor, key: Tensor, value: Tensor, asking: list[int]
) -> Float[Tensor, "seed head d_head asking group row"]:
    """Of queries at some positions, with keys and values at all; each `seed inner pos group row`."""
    seeds, _, length, groups, _ = key.shape
    size = (shape.n_heads, shape.d_head)
    query, key, value = (part.unflatten(1, size).flatten(-2) for part in (query, key, value))
    if shape.d_head <= NARROW and length <= SHORT:
        seen = [at + 1 if shape.causal else length for at in asking]
        return attending.narrow(query, key, value, seen).unflatten(-1, (groups, -1))
    query, key, value = (part.permute(0, 4, 1, 3, 2).flatten(0, 1) for part in (query, key, value))
    mask = torch.ones(length, length, dtype=torch.bool).tril()[asking] if shape.causal else None
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return mixed.unflatten(0, (seeds, groups, -1)).permute(0, 3, 5, 4, 1, 2)
