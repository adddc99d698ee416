"""What does the model know at each layer? The best linear guess at how the stream will end, per layer, with a control.

    found = translating.measure(model, texts.load())
    found.layers[12].translated, found.layers[12].lens, found.layers[12].shuffled

1. Texts are run once, and dealt into five parts. Each part is judged by maps that were fitted on the other four, so that
   every text counts and none is judged by what was fitted on it.
2. For each layer an affine map from its stream to the stream after the last layer is fitted by ridge regression. What the
   ridge pulls it to is a multiple of the stream itself, the best one there is: with little data the guess is then close
   to the logit lens and not to an average. Its strength is the best of five on two texts of the fitting parts. Read
   through the final norm and the unembedding, the map says what the model would predict if the rest of it were linear: the
   tuned lens (arXiv 2303.08112), fitted in closed form.
3. Control: the same fit with the pairs of streams shuffled, which can learn the mean and nothing else.
4. The logit lens reads the same stream as it is. All are judged by KL(intact || guess) and by agreement of the most likely
   token, with intervals over texts.

Positions with streams of extreme size (the first token of a text, mostly) are left out of fits and judgements. Cost: a forward
pass, and per layer some forty systems of d_model equations and three unembeddings of all tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
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
from sonde.report import charts

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
FOLDS = 5
#: Streams so many times as long as the median one are left out.
EXTREME = 10.0
_NAMES = {"best linear guess": "translated", "logit lens": "lens", "control (shuffled pairs)": "shuffled"}


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
        shuffled_agreement: How often the control has it.
    """

    layer: int
    translated: stats.Estimate
    lens: stats.Estimate
    shuffled: stats.Estimate
    agreement: stats.Estimate
    lens_agreement: stats.Estimate
    shuffled_agreement: stats.Estimate


@dataclasses.dataclass(frozen=True, slots=True)
class Translated:
    """All layers, and what they were judged on."""

    layers: tuple[Layer, ...]
    caption: str

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data."""
        return dataclasses.asdict(self)

    def figures(self) -> tuple[charts.Lines, charts.Lines]:
        """KL and agreement by layer."""
        kl = [(name, [getattr(one, field) for one in self.layers]) for name, field in _NAMES.items()]
        fields = ("agreement", "lens_agreement", "shuffled_agreement")
        same = [(name, [getattr(one, at) for one in self.layers]) for name, at in zip(_NAMES, fields, strict=True)]
        common: dict[str, Any] = {
            "x": np.array([one.layer for one in self.layers], dtype=float),
            "x_name": "stream on the way into layer (the last: into the final norm)",
            "caption": f"{self.caption} Bands: 95 % intervals over texts.",
        }
        return (
            charts.Lines(
                key="translate-kl",
                title="How far is each layer's stream from the final prediction?",
                y_name="KL from the model's prediction (nats)",
                series=tuple(_series(*one) for one in kl),
                log_y=True,
                **common,
            ),
            charts.Lines(
                key="translate-agreement",
                title="How often does each layer's stream hold the final top-1 token?",
                y_name="share of tokens",
                series=tuple(_series(*one) for one in same),
                y_range=(0.0, 1.0),
                **common,
            ),
        )


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
            f"the translator needs at least six texts, some of them to judge it; got {len(texts)}"
        )
    base = sweeping.Base(model, sweeping.encode(model, texts, tokens))
    usual = _usual(base)
    generator = torch.Generator().manual_seed(seed)
    layers = tuple(_layer(base, layer, usual, generator) for layer in range(len(base.streams)))
    caption = (
        f"{len(texts)} texts, {int(usual.sum())} tokens; each text judged by maps fitted on the other four fifths."
    )
    return Translated(layers, caption)


class Affine:
    """A linear map and a shift, about the means of what it was fitted on."""

    def __init__(self, weight: Tensor, source: Tensor, target: Tensor) -> None:
        """Keeps them."""
        self._weight, self._source, self._target = weight, source, target

    def __call__(self, stream: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
        """The guess."""
        return ((stream.double() - self._source) @ self._weight + self._target).to(stream.dtype)


def fit(source: Float[Tensor, "row d_model"], target: Float[Tensor, "row d_model"], strength: float) -> Affine:
    """The ridge regression of one stream on another, drawn towards a multiple of the source.

    The strength is relative to the mean variance of the source.
    """
    (found,) = _fits(source, target, (strength,))
    return found


def _fits(source: Tensor, target: Tensor, strengths: Sequence[float]) -> list[Affine]:
    """Regressions of several strengths, from the same products."""
    means = source.double().mean(dim=0), target.double().mean(dim=0)
    centred, wanted = source.double() - means[0], target.double() - means[1]
    gram, cross = centred.T @ centred, centred.T @ wanted
    same = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    size = gram.diagonal().mean().clamp(min=1e-12)
    towards = cross.diagonal().mean() / size
    left = cross - towards * gram
    return [Affine(towards * same + torch.linalg.solve(gram + one * size * same, left), *means) for one in strengths]


def _layer(base: sweeping.Base, layer: int, usual: Tensor, generator: torch.Generator) -> Layer:
    """Fits on all parts but one and judges that one, for each part."""
    stream, last, count = base.streams[layer], base.streams[-1], len(usual)
    found: list[list[np.ndarray]] = []
    for fold in range(FOLDS):
        held, train = list(range(fold, count, FOLDS)), [at for at in range(count) if at % FOLDS != fold]
        pairs = [_rows(stream, last, usual, part) for part in (train[2:], train[:2], train)]
        strength = _strength(*pairs[:2])
        source, target = pairs[2]
        mixed = target[torch.randperm(len(target), generator=generator)]
        maps = (fit(source, target, strength), None, fit(source, mixed, strength))
        found.append(_judged(base, layer, usual, held, maps))
    clusters, *columns = (np.concatenate(column) for column in zip(*found, strict=True))
    kls = [lab_rows.mean(one, clusters, limits=lab_rows.NO_LESS) for one in columns[:3]]
    return Layer(layer, *kls, *(lab_rows.mean(one, clusters, rate=True) for one in columns[3:]))


def _strength(pairs: tuple[Tensor, Tensor], judged: tuple[Tensor, Tensor]) -> float:
    losses = [float((one(judged[0]) - judged[1]).square().mean()) for one in _fits(*pairs, STRENGTHS)]
    return STRENGTHS[int(np.argmin(losses))]


def _usual(base: sweeping.Base) -> Bool[Tensor, "text pos"]:
    """Positions whose streams are of ordinary size in every layer."""
    sizes = torch.stack([stream.norm(dim=-1) for stream in base.streams])
    return (sizes <= EXTREME * sizes.flatten(1).median(dim=1).values[:, None, None]).all(dim=0)


def _rows(stream: Tensor, last: Tensor, usual: Tensor, part: list[int]) -> tuple[Tensor, Tensor]:
    return stream[part][usual[part]], last[part][usual[part]]


def _judged(
    base: sweeping.Base, layer: int, usual: Tensor, held: list[int], maps: tuple[Affine | None, ...]
) -> list[np.ndarray]:
    """The text of each held-out token, then KL by each map, then agreement by each map."""
    keep = usual[held]
    clusters = torch.tensor(held)[:, None].expand(keep.shape)[keep.cpu()].numpy()
    intact = base.logits[held][keep].float().log_softmax(dim=-1)
    kls, agreements = [], []
    for one in maps:
        stream = base.streams[layer][held][keep]
        guess = base.read_out((stream if one is None else one(stream))[None])[0].float().log_softmax(dim=-1)
        kls.append(_numbers((intact.exp() * (intact - guess)).sum(dim=-1)))
        agreements.append(_numbers((intact.argmax(dim=-1) == guess.argmax(dim=-1)).double()))
    return [clusters, *kls, *agreements]


def _series(name: str, values: list[stats.Estimate]) -> charts.Series:
    value, low, high = (np.array([getattr(one, end) for one in values]) for end in ("value", "low", "high"))
    return charts.Series(name, value, low, high)


def _numbers(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
