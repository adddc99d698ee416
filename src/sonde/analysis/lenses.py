"""What would the model say if it stopped here, and which part wrote what it says?

    lens = lenses.logit_lens(model, "The capital of France is")
    lens.top                                   # layer x position: the most likely token so far
    parts = lenses.direct_logit_attribution(model, "The capital of France is", paris, rome)
    parts.heads, parts.mlps                    # what each adds to the difference of the two logits

1. The logit lens puts the stream into each layer, and the one after the last, through the final norm and unembedding.
2. Direct attribution splits the last stream into what embedding, heads, MLPs and biases wrote. With the final norm's scale
   held at its value in this run the rest is linear, so the parts add up to the logit (before a soft cap). A norm after a
   component (Gemma) is held in the same way and belongs to the component. An MLP's own bias is counted with the MLP.

Only direct effects: what a part does through later ones is counted as theirs. Under interventions in force around the
call both show the changed run. Cost: one recorded forward pass; for the lens one unembedding per layer and position.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import readout, taps

#: How far the parts may be from the logit, against its size, before the family is declared not understood.
TOLERANCE = 1e-3
_Linear = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LogitLens:
    """Logits of unfinished runs.

    Attributes:
        layers: Layer L stands for the stream into it; the number of layers for the one after the last.
        positions: The positions looked at.
        logits: What the model would say there.
    """

    layers: tuple[int, ...]
    positions: tuple[int, ...]
    logits: Float[Tensor, "layer pos d_vocab"]

    @property
    def top(self) -> Int[np.ndarray, "layer pos"]:
        """The most likely token."""
        return self.logits.argmax(dim=-1).cpu().numpy()

    def rank(self, token: int) -> Int[np.ndarray, "layer pos"]:
        """How many tokens are more likely than this one."""
        return (self.logits > self.logits[..., token, None]).sum(dim=-1).cpu().numpy()


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Attribution:
    """A logit, or the difference of two, by who wrote it.

    Attributes:
        embed: The token embedding's part.
        pos_embed: That of learned positions; 0 where there are none.
        heads: Each head's.
        mlps: Each MLP's.
        biases: Those of attention output, final norm and unembedding, by name.
        logit: The true value.
    """

    embed: float
    pos_embed: float
    heads: Float[np.ndarray, "layer head"]
    mlps: Float[np.ndarray, "layer"]
    biases: dict[str, float]
    logit: float

    @property
    def total(self) -> float:
        """The sum of all parts: the logit, up to rounding."""
        return float(self.embed + self.pos_embed + self.heads.sum() + self.mlps.sum() + sum(self.biases.values()))

    def entries(self) -> dict[str, float]:
        """Every part by name, the strongest first."""
        found = {"embed": self.embed, "pos_embed": self.pos_embed, **self.biases}
        found |= {f"L{layer}.mlp": float(value) for layer, value in enumerate(self.mlps)}
        found |= {f"L{layer}.head{head}": float(value) for (layer, head), value in np.ndenumerate(self.heads)}
        return dict(sorted(found.items(), key=lambda item: -abs(item[1])))

    def to_json(self) -> dict[str, Any]:
        """The attribution as JSON data."""
        return {**dataclasses.asdict(self), "heads": self.heads.tolist(), "mlps": self.mlps.tolist()}


def logit_lens(
    model: models_model.Model,
    tokens: models_model.Tokens,
    *,
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> LogitLens:
    """Reads every layer's stream as if it were the last.

    Args:
        model: The model.
        tokens: One text, or its token ids.
        layers: Which layers' inputs, the number of layers for the end; None for all.
        positions: Which positions, negative ones from the end; None for all.

    Raises:
        RequestError: More than one text, or no such layer or position.
    """
    ids = _one(model, tokens)
    n_layers, length = model.cfg.n_layers, ids.shape[1]
    chosen = tuple(range(n_layers + 1)) if layers is None else tuple(layers)
    at = tuple(range(length)) if positions is None else tuple(_position(one, length) for one in positions)
    wrong = [layer for layer in chosen if not 0 <= layer <= n_layers]
    if wrong:
        raise errors.RequestError(f"no layer {wrong[0]}: expected 0 to {n_layers}, the last for the end of the model")
    names = [_stream(layer, n_layers) for layer in chosen]
    _, cache = model.run_with_cache(ids, names)
    streams = torch.stack([cache[name][0, list(at)] for name in names])
    return LogitLens(chosen, at, readout.logits(model, streams))


def direct_logit_attribution(
    model: models_model.Model, tokens: models_model.Tokens, answer: int, other: int | None = None, *, position: int = -1
) -> Attribution:
    """Splits a logit, or the difference of two, into what each part of the model wrote.

    Args:
        model: The model.
        tokens: One text, or its token ids.
        answer: The token whose logit is split.
        other: A token whose logit is taken off; None for none.
        position: Where the logits are read.

    Raises:
        RequestError: More than one text, or no such token or position.
        FamilyError: A norm is of an unknown kind, or the parts do not add up.
    """
    ids = _one(model, tokens)
    at = _position(position, ids.shape[1])
    wrong = [token for token in (answer, other) if token is not None and not 0 <= token < model.cfg.d_vocab]
    if wrong:
        raise errors.RequestError(f"no token {wrong[0]}: the model has 0 to {model.cfg.d_vocab - 1}")
    kinds = ("attn.hook_z", "hook_mlp_out")
    names = [name for name in model.site_names if name.endswith(kinds) or name.endswith("embed")]
    _, cache = model.run_with_cache(ids, [*names, _stream(model.cfg.n_layers, model.cfg.n_layers), "unembed.hook_out"])
    here = {name: value[0, at].double() for name, value in cache.items()}
    read = _Reading(model, here[_stream(model.cfg.n_layers, model.cfg.n_layers)], answer, other)
    heads, biases = zip(*(_attention(model, read, layer, here) for layer in range(model.cfg.n_layers)), strict=True)
    logits = here["unembed.hook_out"]
    made = Attribution(
        embed=read(here["hook_embed"]),
        pos_embed=read(here["hook_pos_embed"]) if "hook_pos_embed" in here else 0.0,
        heads=np.stack(heads),
        mlps=np.array([read(here[f"blocks.{layer}.hook_mlp_out"]) for layer in range(model.cfg.n_layers)]),
        biases={f"L{layer}.attn.bias": bias for layer, bias in enumerate(biases) if bias} | read.biases,
        logit=float(logits[answer] - (0.0 if other is None else logits[other])),
    )
    largest = max(1.0, *(abs(value) for value in made.entries().values()))
    if abs(made.total - made.logit) > TOLERANCE * largest:
        raise errors.FamilyError(
            f"the parts of {model.cfg.model_name!r} add up to {made.total:.4f} and the logit is {made.logit:.4f}: is there "
            "something between final norm and logits, or a part that writes to the stream and has no Site?"
        )
    return made


class _Reading:
    """From what a part wrote to the stream to its share of the logit."""

    def __init__(self, model: models_model.Model, stream: Tensor, answer: int, other: int | None) -> None:
        norm, unembed = (model.parts.taps[name].module for name in ("ln_final.hook_out", "unembed.hook_out"))
        weight, bias = (_parameter(unembed, name) for name in ("weight", "bias"))
        assert weight is not None
        self._direction = weight[answer] - (0.0 if other is None else weight[other])
        self._through, shift = frozen_norm(norm, stream)
        self.biases: dict[str, float] = {}
        if shift is not None:
            self.biases["ln_final.bias"] = float(shift @ self._direction)
        if bias is not None:
            self.biases["unembed.bias"] = float(bias[answer] - (0.0 if other is None else bias[other]))

    def __call__(self, written: Float[Tensor, "d_model"]) -> float:
        """The share of one vector."""
        return float(self._through(written) @ self._direction)


def _attention(
    model: models_model.Model, read: _Reading, layer: int, here: dict[str, Tensor]
) -> tuple[Float[np.ndarray, "head"], float]:
    """Shares of a layer's heads, and of the bias of its output."""
    name = f"blocks.{layer}"
    out, last = model.parts.taps[f"{name}.attn.hook_z"].module, model.parts.taps[f"{name}.hook_attn_out"].module
    results = torch.einsum(
        "hd,hdm->hm", here[f"{name}.attn.hook_z"], taps.output_weight(out, model.cfg.n_heads).detach().double()
    )
    bias = _parameter(out, "bias")
    bias = torch.zeros_like(results[0]) if bias is None else bias
    through: _Linear = lambda part: part  # noqa: E731
    if not any(module is out for module in last.modules()):  # a norm stands between the projection and the stream
        through, shift = frozen_norm(last, results.sum(dim=0) + bias)
        if shift is not None:
            bias = bias + shift
    return np.array([read(through(part)) for part in results]), read(through(bias))


def frozen_norm(norm: nn.Module, value: Float[Tensor, "d_model"]) -> tuple[_Linear, Tensor | None]:
    """A norm as the linear map that it is with its scale held at what one value gives, and what it adds at the end.

    Raises:
        FamilyError: It is neither a LayerNorm nor an RMSNorm.
    """
    eps = getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", None)
    kind = type(norm).__name__
    if eps is None or not (isinstance(norm, nn.LayerNorm) or kind.endswith("RMSNorm")):
        raise errors.FamilyError(f"cannot hold the scale of {kind}: expected a LayerNorm or an RMSNorm")
    if isinstance(norm, nn.LayerNorm):
        weight = _parameter(norm, "weight")
        gain = torch.rsqrt(value.var(correction=0) + eps) * (1.0 if weight is None else weight)
        return lambda part: (part - part.mean()) * gain, _parameter(norm, "bias")
    with torch.no_grad():  # some families store the weight minus one: ask the module what it multiplies with
        ones = torch.ones(value.shape, dtype=torch.float32, device=value.device)
        weight = norm(ones.to(next(norm.parameters()).dtype)).double() * (1 + eps) ** 0.5
    gain = torch.rsqrt(value.square().mean() + eps) * weight
    return lambda part: part * gain, None


def _parameter(module: nn.Module, name: str) -> Tensor | None:
    found = getattr(module, name, None)
    return found.detach().double() if isinstance(found, Tensor) else None


def _stream(layer: int, n_layers: int) -> str:
    return f"blocks.{layer}.hook_resid_pre" if layer < n_layers else f"blocks.{n_layers - 1}.hook_resid_post"


def _one(model: models_model.Model, tokens: models_model.Tokens) -> Tensor:
    ids = model.to_tokens(tokens)
    if len(ids) != 1:
        raise errors.RequestError(f"one text at a time: got {len(ids)}")
    return ids


def _position(position: int, length: int) -> int:
    if not -length <= position < length:
        raise errors.RequestError(f"position {position} is out of range: the text has {length} tokens")
    return position % length
