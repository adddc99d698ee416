"""What does the model know at each layer? The best linear guess at how the stream will end, per layer, with a control.

    found = translating.measure(model, texts.load())
    found.layers[12].translated, found.layers[12].lens, found.layers[12].shuffled

1. Texts are run once. Half of them are for fitting, the others for judging.
2. For each layer an affine map from its stream to the stream after the last layer is fitted by ridge regression (the
   closest of five strengths, chosen on two texts of the fitting half). Read through the final norm and the unembedding, it
   says what the model would predict if the rest of it were linear: the tuned lens (arXiv 2303.08112), fitted in closed form.
3. Control: the same fit with the pairs of streams shuffled, which can learn the mean and nothing else.
4. The logit lens reads the same stream as it is. All are judged by KL(intact || guess) and by agreement of the most likely
   token, on the texts that were held out, with intervals over texts.

Positions with streams of extreme size (the first token of a text, mostly) are left out of fits and judgements. Cost: a forward
pass, and per layer a few systems of d_model equations and unembeddings of the held-out tokens.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sonde.analysis import stats
from sonde.core import errors
from sonde.lab import rows as lab_rows
from sonde.lab import sweeping
from sonde.models import model as models_model

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
#: Streams so many times as long as the median one are left out.
EXTREME = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """What is known on the way into one layer.

    Attributes:
        layer: The layer; the number of layers for the end.
        translated: KL(intact || best linear guess).
        lens: KL(intact || logit lens).
        shuffled: KL(intact || control).
        agreement: How often the best linear guess has the intact model's most likely token.
        lens_agreement: How often the logit lens has it.
    """

    layer: int
    translated: stats.Estimate
    lens: stats.Estimate
    shuffled: stats.Estimate
    agreement: stats.Estimate
    lens_agreement: stats.Estimate


@dataclasses.dataclass(frozen=True, slots=True)
class Translated:
    """All layers, and what they were judged on."""

    layers: tuple[Layer, ...]
    caption: str

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data."""
        return dataclasses.asdict(self)


def measure(model: models_model.Model, texts: Mapping[str, str], *, tokens: int = 96, seed: int = 0) -> Translated:
    """Fits and judges a translator for each layer.

    Args:
        model: The model.
        texts: At least six, of at least `tokens` tokens.
        tokens: How many of each.
        seed: Shuffles the control.

    Raises:
        RequestError: Too few texts, or one is too short.
    """
    if len(texts) < 6:
        raise errors.RequestError(
            f"the translator needs at least six texts, half of them to judge it; got {len(texts)}"
        )
    base = sweeping.Base(model, sweeping.encode(model, texts, tokens))
    usual = _usual(base)
    train, held = list(range(0, len(texts), 2)), list(range(1, len(texts), 2))
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for layer, stream in enumerate(base.streams):
        pairs = [_rows(stream, base.streams[-1], usual, part) for part in (train[2:], train[:2], train)]
        strength = _strength(*pairs[:2])
        source, target = pairs[2]
        mixed = target[torch.randperm(len(target), generator=generator)]
        maps = (fit(source, target, strength), fit(source, mixed, strength), None)
        layers.append(_judged(base, layer, usual, held, maps))
    count = int(usual[held].sum())
    caption = f"{len(train)} texts for fitting, {len(held)} held out, {count} tokens."
    return Translated(tuple(layers), caption)


class Affine:
    """A linear map and a shift, about the means of what it was fitted on."""

    def __init__(self, weight: Tensor, source: Tensor, target: Tensor) -> None:
        """Keeps them."""
        self._weight, self._source, self._target = weight, source, target

    def __call__(self, stream: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """The guess."""
        return ((stream.double() - self._source) @ self._weight + self._target).to(stream.dtype)


def fit(source: Float[Tensor, "row d_model"], target: Float[Tensor, "row d_model"], strength: float) -> Affine:
    """The ridge regression of one stream on another; its strength is relative to the mean variance of the source."""
    means = source.double().mean(dim=0), target.double().mean(dim=0)
    centred, wanted = source.double() - means[0], target.double() - means[1]
    gram = centred.T @ centred
    ridge = (
        strength * gram.diagonal().mean().clamp(min=1e-12) * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    )
    return Affine(torch.linalg.solve(gram + ridge, centred.T @ wanted), *means)


def _strength(pairs: tuple[Tensor, Tensor], judged: tuple[Tensor, Tensor]) -> float:
    losses = {one: float((fit(*pairs, one)(judged[0]) - judged[1]).square().mean()) for one in STRENGTHS}
    return min(losses, key=lambda one: losses[one])


def _usual(base: sweeping.Base) -> Bool[Tensor, "text pos"]:
    """Positions whose streams are of ordinary size in every layer."""
    sizes = torch.stack([stream.norm(dim=-1) for stream in base.streams])
    return (sizes <= EXTREME * sizes.flatten(1).median(dim=1).values[:, None, None]).all(dim=0)


def _rows(stream: Tensor, last: Tensor, usual: Tensor, part: list[int]) -> tuple[Tensor, Tensor]:
    return stream[part][usual[part]], last[part][usual[part]]


def _judged(base: sweeping.Base, layer: int, usual: Tensor, held: list[int], maps: tuple[Affine | None, ...]) -> Layer:
    keep = usual[held]
    clusters = torch.tensor(held)[:, None].expand(keep.shape)[keep.cpu()].numpy()
    intact = base.logits[held][keep].float().log_softmax(dim=-1)
    kls, agreements = [], []
    for one in maps:
        stream = base.streams[layer][held][keep]
        guess = base.read_out((stream if one is None else one(stream))[None])[0].float().log_softmax(dim=-1)
        kls.append(lab_rows.mean(_numbers((intact.exp() * (intact - guess)).sum(dim=-1)), clusters))
        same = _numbers((intact.argmax(dim=-1) == guess.argmax(dim=-1)).double())
        agreements.append(lab_rows.mean(same, clusters, rate=True))
    return Layer(layer, kls[0], kls[2], kls[1], agreements[0], agreements[2])


def _numbers(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
