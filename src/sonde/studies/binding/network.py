"""The network that is trained: a small Llama, and a second way through its weights that gives only the answer, and quickly.

    made = network.make(network.Shape(), language.Grammar(), seed=0)      # a transformers LlamaForCausalLM
    network.answer_logits(made, tokens)                                   # at the final position
    network.every_answer(made, programs.tokens)                           # the same for a query of each line
    network.every_answer_and_side(made, programs.tokens, after=4)         # and what right-hand sides say after 4 layers

The model is an ordinary one, so that everything in Sonde works on it. Training goes through these, which compute the
same from the same weights (tests hold them equal): no dispatch, queries, keys and values in one product, and the last
layer only where it is read. `every_answer` asks for all lines at once: behind the program stand as many letters and
colons, all at the positions of the only ones, and none sees another; eight answers for the price of two.
"""

import dataclasses
import functools
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from sonde.studies.binding import language

ROPE_BASE = 10_000.0


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model: layers, heads per layer, width of the stream and of the MLP's inside."""

    layers: int = 6
    heads: int = 4
    width: int = 64
    mlp: int = 192


def make(shape: Shape, grammar: language.Grammar, seed: int) -> Any:
    """An untrained model; weights start at 1/sqrt(width), because 0.02 never leaves the heuristic at this width."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=len(grammar.vocabulary),
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=language.MOST_TOKENS,
        initializer_range=shape.width**-0.5,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        bos_token_id=None,
        eos_token_id=grammar.vocabulary.index(language.END),
        pad_token_id=grammar.vocabulary.index(language.END),
        tie_word_embeddings=False,
        attention_bias=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for layer in made.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                torch.nn.init.normal_(part.bias)
        return made


def answer_logits(network: Any, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch vocab"]:
    """The logits after the last token."""
    length = tokens.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    view = _View(torch.arange(length), seen, torch.tensor([length - 1]))
    return _head(network, _streams(network, tokens, view)[-1])[:, 0]


def every_answer(network: Any, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch line vocab"]:
    """The logits that a query of each line would have, whatever the query of these programs is."""
    asked, view = _every_query(tokens)
    return _head(network, _streams(network, asked, view)[-1])


def every_answer_and_side(
    network: Any, tokens: Int[Tensor, "batch pos"], after: int
) -> tuple[Float[Tensor, "batch line vocab"], Float[Tensor, "batch line vocab"]]:
    """The same, and the logits of each line's right-hand side, read after so many layers by the final norm and head."""
    asked, view = _every_query(tokens)
    sides = language.right(torch.arange(len(view.read)))
    if after == network.config.num_hidden_layers:
        view = dataclasses.replace(view, read=torch.cat([sides, view.read]))
        both = _head(network, _streams(network, asked, view)[-1])
        return both[:, len(sides) :], both[:, : len(sides)]
    streams = _streams(network, asked, view)
    return _head(network, streams[-1]), _head(network, streams[after][:, sides])


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _View:
    """How tokens stand to each other: their positions, which sees which, and where the logits are read."""

    positions: Int[Tensor, "pos"]
    seen: Bool[Tensor, "pos pos"]
    read: Int[Tensor, "read"]


def _every_query(tokens: Int[Tensor, "batch pos"]) -> tuple[Int[Tensor, "batch asked"], _View]:
    """Programs with a query of each line behind them, and how those stand to each other."""
    end = tokens.shape[1] - 3
    names = tokens[:, 0:end:2]
    asked = torch.stack([names, tokens[:, -1:].expand_as(names)], dim=2).flatten(1)
    return torch.cat([tokens[:, : end + 1], asked], dim=1), _view_of_queries(end)


@functools.lru_cache(maxsize=8)
def _view_of_queries(end: int) -> _View:
    """A program of so many tokens and the mark of a query, and a letter and colon for each line that see those."""
    count = end // 2
    order = torch.cat([torch.arange(end + 1), torch.tensor([end + 1, end + 2]).repeat(count)])
    owner = torch.cat([torch.full((end + 1,), -1), torch.arange(count).repeat_interleave(2)])
    seen = ((owner == owner[:, None]) | (owner == -1)) & (order <= order[:, None])
    return _View(order, seen, end + 2 + 2 * torch.arange(count))


def _streams(network: Any, tokens: Int[Tensor, "batch pos"], view: _View) -> list[Float[Tensor, "batch _ d_model"]]:
    """The stream before the first layer and after each; after the last one only where it is read."""
    config, body = network.config, network.model
    streams = [F.embedding(tokens, body.embed_tokens.weight)]
    turns = _turns(language.MOST_TOKENS, config.hidden_size // config.num_attention_heads)[:, view.positions]
    turns, view = turns.to(streams[0]), dataclasses.replace(view, seen=view.seen.to(tokens.device))
    for at, layer in enumerate(body.layers):
        streams.append(_layer(layer, streams[-1], turns, view, last=at + 1 == len(body.layers)))
    return streams


def _head(network: Any, stream: Float[Tensor, "batch read d_model"]) -> Float[Tensor, "batch read vocab"]:
    return F.linear(_norm(network.model.norm, stream), network.lm_head.weight)


def _layer(layer: Any, stream: Tensor, turns: Tensor, view: _View, *, last: bool) -> Tensor:
    """One layer; the last one only where it is read."""
    (batch, length, width), attention, seen = stream.shape, layer.self_attn, view.seen
    heads = width // attention.head_dim
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    weights, biases = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
    mixed = F.linear(_norm(layer.input_layernorm, stream), weights, biases).view(batch, length, 3 * heads, -1)
    turned = _turned(mixed[:, :, : 2 * heads], turns).transpose(1, 2)
    query, key, value = turned[:, :heads], turned[:, heads:], mixed[:, :, 2 * heads :].transpose(1, 2)
    if last:
        query, stream, seen = query[:, :, view.read], stream[:, view.read], seen[view.read]
    read = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    written = attention.o_proj
    stream = stream + F.linear(read.transpose(1, 2).reshape(batch, -1, width), written.weight, written.bias)
    inside = _norm(layer.post_attention_layernorm, stream)
    gate, up = F.linear(inside, torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])).chunk(2, dim=-1)
    return stream + F.linear(F.silu(gate) * up, layer.mlp.down_proj.weight)


def _norm(norm: Any, stream: Tensor) -> Tensor:
    return F.rms_norm(stream, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _turned(vectors: Float[Tensor, "batch pos head d_head"], turns: Tensor) -> Tensor:
    """Rotary positions, as transformers has them: the halves of a head are the two coordinates."""
    low, high = vectors.chunk(2, dim=-1)
    cosine, sine = turns[0][:, None], turns[1][:, None]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


@functools.lru_cache(maxsize=64)
def _turns(length: int, d_head: int) -> Float[Tensor, "2 pos half"]:
    speeds = ROPE_BASE ** (-torch.arange(0, d_head, 2, dtype=torch.float32) / d_head)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * speeds
    return torch.stack([angles.cos(), angles.sin()])
