"""How are single heads and MLPs of a loaded model called with inputs of their own?

Every piece is the network's own module, so rotary embeddings, norms of queries and keys, soft caps and windows stay
transformers' code. Only where a head needs an input that the others do not share is something taken apart:

1. The norm before attention is applied to each destination's input.
2. Queries, keys and values come from each head's slice of the projections.
3. The attention module runs with those in place of its projections' outputs, and with its output projection left out.
4. A head's contribution is its mixed values times its slice of the output projection; where a norm follows (Gemma), the
   scale of that norm for the actual sum of heads times that.

Needs a copy of the attention weights; the network itself is changed only while one attention module runs, and under the
model's lock.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import activations

from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import plain, taps

Call = tuple[tuple[Any, ...], dict[str, Any]]
#: Up to so many positions, products of whole batches beat one small product per row and head.
SHORT = 8


class _Given(nn.Module):
    """Stands in for a projection: gives what it was told to."""

    def __init__(self) -> None:
        super().__init__()
        self.value: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states if self.value is None else self.value


class Layer:
    """The pieces of one layer."""

    def __init__(self, model: models_model.Model, index: int, *, width: int, call: Call) -> None:
        """Takes a layer apart.

        Args:
            model: The model.
            index: Which layer.
            width: Positions of the inputs.
            call: What transformers calls its attention with, beside the stream.
        """
        parts, row = model.parts, model.parts.family
        block, mlp = parts.blocks[index], row.mlp_down.rpartition(".")[0]
        self.attn = taps.submodule(block, row.attn, row)
        self.attn_norm = taps.submodule(block, row.attn_norm, row)
        self.mlp_norm = taps.submodule(block, row.mlp_norm, row)
        self._mlp = taps.submodule(block, mlp, row)
        self._mlp_post = None if row.mlp_out == mlp else taps.submodule(block, row.mlp_out, row)
        self._attn_post = None if row.attn_out == row.attn else taps.submodule(block, row.attn_out, row)
        self._args, self._kwargs = call
        self._fused = row.fused
        self.d_head, n_heads = model.cfg.d_head, model.cfg.n_heads
        found = [parts.taps[f"blocks.{index}.attn.hook_{letter}"] for letter in "qkv"]
        self._projections, self._views = [tap.module for tap in found], [tap.view for tap in found]
        self.weights, self.biases = zip(*(_slices(tap) for tap in found), strict=True)
        self._output = output = taps.submodule(self.attn, row.o, row)
        self.out_weight = taps.output_weight(output, n_heads).detach().contiguous()
        bias: Any = output.bias
        self.constant: Tensor | None = None if bias is None else bias.detach()
        if self._attn_post is not None and self.constant is not None:
            raise errors.FamilyError(
                f"layer {index} has a norm after attention and a bias before it, so no head can be told apart: "
                "circuits of such a model are not supported"
            )
        self._names = [row.qkv] if row.qkv else [row.q, row.k, row.v]
        self._given = [_Given() for _ in self._names]
        self._output_name, self._identity = row.o, _Given()
        self._short = isinstance(self.attn, plain.PlainAttention) and width <= SHORT
        self._bend = _in_place(self._mlp)
        self._wide: Tensor | None = None

    def project(self, stream: Tensor) -> list[Tensor]:
        """Queries, keys and values, each `row pos head d_head`, of a stream that all of them share."""
        normed = self.attn_norm(stream)
        if len(self._names) == 1:
            whole = self._projections[0](normed)
            return [view(whole) for view in self._views]
        return [view(module(normed)) for view, module in zip(self._views, self._projections, strict=True)]

    def read(self, letter: int, inputs: Float[Tensor, "some row pos d_model"], which: Any) -> Tensor:
        """Queries (0), keys (1) or values (2) of chosen heads, each of an input of its own: `row pos some d_head`."""
        some, rows, width, _ = inputs.shape
        normed = self.attn_norm(inputs).reshape(some, rows * width, -1)
        weight, bias = self.weights[letter][which], self.biases[letter]
        made = torch.bmm(normed, weight) if bias is None else torch.baddbmm(bias[which].unsqueeze(1), normed, weight)
        return made.view(some, rows, width, -1).permute(1, 2, 0, 3)

    def read_one(self, letter: int, head: int, inputs: Float[Tensor, "row pos d_model"]) -> Tensor:
        """Queries (0), keys (1) or values (2) of one head: `row pos d_head`."""
        normed, bias = self.attn_norm(inputs).flatten(0, 1), self.biases[letter]
        weight = self.weights[letter][head]
        made = torch.mm(normed, weight) if bias is None else torch.addmm(bias[head], normed, weight)
        return made.view(*inputs.shape[:2], -1)

    @property
    def reads_sums(self) -> bool:
        """Whether what heads read is not normed, so that a change of it adds to queries, keys and values (`read_more`)."""
        return isinstance(self.attn_norm, nn.Identity)

    def read_more(
        self,
        letter: int,
        head: int,
        change: Float[Tensor, "row pos d_model"],
        before: Float[Tensor, "row pos d_head"],
    ) -> Float[Tensor, "row pos d_head"]:
        """Queries (0), keys (1) or values (2) of one head after a change of what it reads."""
        made = torch.addmm(before.flatten(0, 1), change.flatten(0, 1), self.weights[letter][head])
        return made.view(before.shape)

    def attend(
        self,
        query: Float[Tensor, "row pos head d_head"],
        key: Float[Tensor, "row pos kv d_head"],
        value: Float[Tensor, "row pos kv d_head"],
    ) -> Float[Tensor, "row pos head d_head"]:
        """Values mixed by the attention module; some heads alone will do, if keys and values are those of their groups."""
        if self._short:
            return _attend_short(query, key, value, self.attn)
        if self._fused is None:
            flat = [part.flatten(2) for part in (query, key, value)]
        elif self._fused == "concat":
            flat = [torch.cat((query, key, value), dim=2).flatten(2)]
        else:
            flat = [torch.stack((query, key, value), dim=3).flatten(2)]
        attn: Any = self.attn
        modules = attn._modules
        own = {name: modules[name] for name in (*self._names, self._output_name)}
        width = getattr(attn, "split_size", None)  # GPT-2 cuts its fused projection at a width that it keeps
        try:
            for name, given, part in zip(self._names, self._given, flat, strict=True):
                given.value = part
                modules[name] = given
            modules[self._output_name] = self._identity
            if width is not None:
                attn.split_size = query.shape[2] * query.shape[3]
            mixed = taps.first_tensor(attn(*(flat[0], *self._args), **self._kwargs))
        finally:
            modules.update(own)
            if width is not None:
                attn.split_size = width
            for given in self._given:
                given.value = None
        return mixed.unflatten(-1, (-1, self.d_head))

    @property
    def one_by_one(self) -> bool:
        """Whether heads can be run one at a time (`mix_one`, `write_one`), and several together would gain nothing."""
        return isinstance(self.attn, plain.PlainAttention) and not self._short

    def mix_one(
        self,
        query: Float[Tensor, "row pos d_head"],
        key: Float[Tensor, "row pos d_head"],
        value: Float[Tensor, "row pos d_head"],
    ) -> Float[Tensor, "row pos d_head"]:
        """Values of one head mixed, where heads can be run one at a time."""
        attn: Any = self.attn
        return F.scaled_dot_product_attention(
            query[:, None], key[:, None], value[:, None], is_causal=attn.is_causal, scale=attn.scaling
        )[:, 0]

    def write_one(self, head: int, mixed: Float[Tensor, "row pos d_head"]) -> Float[Tensor, "row pos d_model"]:
        """What one head adds to the stream, where heads can be run one at a time."""
        return torch.mm(mixed.flatten(0, 1), self.out_weight[head]).view(*mixed.shape[:2], -1)

    def heads(
        self, mixed: Float[Tensor, "row pos some d_head"], which: Any = slice(None)
    ) -> Float[Tensor, "some row pos d_model"]:
        """What heads add to the stream; with a norm after attention all of them must be given."""
        rows, width, some, d_head = mixed.shape
        each = torch.bmm(mixed.permute(2, 0, 1, 3).reshape(some, rows * width, d_head), self.out_weight[which])
        each = each.view(some, rows, width, -1)
        return each if self._attn_post is None else each * _scale(self._attn_post, each.sum(dim=0))

    def attention(self, mixed: Float[Tensor, "row pos head d_head"]) -> Float[Tensor, "row pos d_model"]:
        """What all heads together add to the stream, with the constant that belongs to none."""
        added = self._output(mixed.flatten(2))
        return added if self._attn_post is None else self._attn_post(added)

    @property
    def mixes_heads(self) -> bool:
        """Whether one head's change changes what all of them add, because a norm follows."""
        return self._attn_post is not None

    def mlp(self, stream: Tensor) -> Tensor:
        """What the MLP adds to the stream."""
        if self._bend is not None and not torch.is_grad_enabled():
            return self._plain_mlp(stream)
        added = self._mlp(self.mlp_norm(stream))
        return added if self._mlp_post is None else self._mlp_post(added)

    def _plain_mlp(self, stream: Tensor) -> Tensor:
        """The same of a plain MLP, its wide middle in memory that stays: new memory costs more than the activation."""
        mlp: Any = self._mlp
        flat = stream.reshape(-1, stream.shape[-1])
        if self._wide is None or len(self._wide) != len(flat):
            self._wide = flat.new_empty(len(flat), mlp.fc_in.out_features)
        torch.addmm(mlp.fc_in.bias, flat, mlp.fc_in.weight.T, out=self._wide)
        assert self._bend is not None
        self._bend(self._wide)
        return torch.addmm(mlp.fc_out.bias, self._wide, mlp.fc_out.weight.T).view_as(stream)


class Network:
    """The pieces of a whole model."""

    def __init__(self, model: models_model.Model, width: int) -> None:
        """Takes a model apart, for inputs of one width; runs it once on one row."""
        self.model, row = model, model.parts.family
        hf = model.parts.hf
        self._embed = taps.submodule(hf, row.embed, row)
        self._positions = None if row.pos_embed is None else taps.submodule(hf, row.pos_embed, row)
        self._norm = taps.submodule(hf, row.final_norm, row)
        self._unembed = taps.submodule(hf, row.unembed, row)
        self._cap = getattr(model.hf.config, "final_logit_softcapping", None)
        self.layers = [Layer(model, index, width=width, call=call) for index, call in enumerate(_calls(model, width))]

    @property
    def learned_positions(self) -> bool:
        """Whether positions are written to the stream."""
        return self._positions is not None

    def embed(self, ids: Int[Tensor, "row pos"], positions: Int[Tensor, "*row pos"] | None = None) -> Tensor:
        """What enters the first layer: the embedding of tokens, and that of positions if there is one."""
        stream = self._embed(ids)
        if self._positions is None:
            return stream
        positions = torch.arange(ids.shape[1], device=ids.device)[None] if positions is None else positions
        return stream + self._positions(positions)

    def unembed(self, stream: Float[Tensor, "*row d_model"]) -> Float[Tensor, "*row vocab"]:
        """Logits of the final stream."""
        logits = self._unembed(self._norm(stream))
        return logits if self._cap is None else torch.tanh(logits / self._cap) * self._cap


def _attend_short(query: Tensor, key: Tensor, value: Tensor, attn: Any) -> Float[Tensor, "row pos head d_head"]:
    """Plain attention over few positions, with rows and heads innermost: kernels are slow on many tiny matrices."""
    rows, width, some, d_head = query.shape
    queries, keys, values = (
        part.permute(1, 3, 0, 2).reshape(width, d_head, rows * some) for part in (query, key, value)
    )
    scores = (queries[:, None] * keys).sum(dim=2) * attn.scaling
    if attn.is_causal:
        late = torch.full((width, width), -torch.inf, dtype=query.dtype, device=query.device).triu(1)
        scores = scores + late[..., None]
    mixed = (scores.softmax(dim=1)[:, :, None] * values).sum(dim=1)
    return mixed.view(width, d_head, rows, some).permute(2, 0, 3, 1)


def _calls(model: models_model.Model, width: int) -> list[Call]:
    """What transformers calls each layer's attention with, beside the stream, for whole rows of a width."""
    calls: list[Call] = []
    row = model.parts.family

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args[1:], {name: value for name, value in kwargs.items() if name != "hidden_states"}))

    handles = [
        taps.submodule(block, row.attn, row).register_forward_pre_hook(note, with_kwargs=True)
        for block in model.parts.blocks
    ]
    ids = torch.zeros(1, width, dtype=torch.long, device=model.device)
    try:
        with model.lock, torch.no_grad():
            model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _in_place(mlp: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The activation of a plain MLP as a function that changes its input; None for any other."""
    if not isinstance(mlp, plain.PlainMLP):
        return None
    known: dict[type, Callable[[Tensor], Tensor]] = {
        activations.GELUActivation: torch.ops.aten.gelu_,
        nn.ReLU: torch.relu_,
    }
    return known.get(type(mlp.act))


def _slices(tap: taps.Tap) -> tuple[Float[Tensor, "head d_model d_head"], Float[Tensor, "head d_head"] | None]:
    """A projection's weight and bias, head by head."""
    weight: Any = tap.module.weight
    bias: Any = tap.module.bias
    matrix = (weight.T if isinstance(tap.module, nn.Linear) else weight).detach()
    return tap.view(matrix).transpose(0, 1).contiguous(), None if bias is None else tap.view(bias.detach()).contiguous()


def _scale(norm: nn.Module, total: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row pos d_model"]:
    """What a root-mean-square norm multiplies this sum with, whatever its spelling of the weight."""
    known: Any = norm
    eps = float(known.eps if hasattr(known, "eps") else known.variance_epsilon)
    ones = torch.ones_like(total[:1, :1])
    gain = norm(ones) * (1 + eps) ** 0.5
    return torch.rsqrt(total.float().pow(2).mean(dim=-1, keepdim=True) + eps).to(total.dtype) * gain
