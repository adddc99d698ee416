"""What does a corruption do to the prediction of plain text? Loss, KL, agreement and entropy, and the tokens it favours.

    found = measuring_texts.measure_texts(model, corruption, texts.load())
    found.measures                                             # with baseline, change, interval over texts, controls
    shifts = measuring_texts.likelihood_shifts(model, corruption, "The capital of France is Paris.")
    shifts.tokens[3], shifts.raised[0]

1. Each text is run by the intact and by the corrupted model, and predictions are compared token by token.
2. Tokens of one text are not independent: intervals are over texts.
3. Likelihood shifts: for each token of a text how likely it was, and which tokens of the vocabulary are more and less
   likely under the corruption on average over positions.

Cost: a forward pass per text, model and control.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sonde.core import errors
from sonde.lab import comparing, corruptions, sweeping
from sonde.lab import controls as lab_controls
from sonde.lab import rows as lab_rows
from sonde.models import model as models_model

LOSS, KL, AGREEMENT, ENTROPY = (
    "loss (nats per token)",
    "KL from intact (nats)",
    "top-1 agreement",
    "entropy (nats)",
)
_FIELDS = {LOSS: "loss", KL: "kl", AGREEMENT: "agreement", ENTROPY: "entropy"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TextsResult:
    """What a corruption does to plain text.

    Attributes:
        corruption: How it is spelled.
        texts: Names of the texts.
        tokens: How many tokens they have.
        measures: Means with intervals, of baseline, corruption and controls.
    """

    corruption: str
    texts: tuple[str, ...]
    tokens: int
    measures: tuple[lab_rows.Row, ...]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data."""
        measures = [one.to_json() for one in self.measures]
        return {"corruption": self.corruption, "texts": list(self.texts), "tokens": self.tokens, "measures": measures}


@dataclasses.dataclass(frozen=True, slots=True)
class TokenShift:
    """A token of a text: its log-probability under the intact and under the corrupted model."""

    token: str
    intact: float
    corrupted: float

    @property
    def delta(self) -> float:
        """The change."""
        return self.corrupted - self.intact


@dataclasses.dataclass(frozen=True, slots=True)
class Shifts:
    """Which tokens a corruption makes more and less likely.

    Attributes:
        corruption: How it is spelled.
        tokens: The text's own tokens, from the second on.
        raised: Tokens of the vocabulary whose probability grows most on average over the text, and by how much.
        lowered: Those whose probability falls most.
    """

    corruption: str
    tokens: tuple[TokenShift, ...]
    raised: tuple[tuple[str, float], ...]
    lowered: tuple[tuple[str, float], ...]


def measure_texts(
    model: models_model.Model,
    corruption: corruptions.Corruption,
    texts: Mapping[str, str],
    *,
    tokens: int | None = None,
    controls: int = 3,
    seed: int = 0,
) -> TextsResult:
    """Compares the corrupted model with the intact one on texts, beside controls drawn by the seed.

    Args:
        model: The model.
        corruption: What is done to it.
        texts: By name.
        tokens: How many tokens of each text; None for all of it.
        controls: How many controls.
        seed: Draws them.

    Raises:
        RequestError: There is no text, or one is too short to predict anything, or shorter than asked for.
    """
    if not texts:
        raise errors.RequestError("give at least one text, better several: intervals are over texts")
    encoded = [
        _ids(model, text) if tokens is None else sweeping.encode(model, {name: text}, tokens)
        for name, text in texts.items()
    ]
    beside = lab_controls.for_task(model, corruption, encoded, seed=seed, count=controls)
    specs = {one.spec: one.bound(model) for one in (corruption, *beside)}
    found: dict[str, list[comparing.Comparison]] = {name: [] for name in ("none", *specs)}
    for ids in encoded:
        judge = comparing.Judge(model.run_with_hooks(ids), ids)
        found["none"].append(judge.intact)
        for spec, bound in specs.items():
            found[spec].append(judge.compare(model.run_with_hooks(ids, list(bound))))
    made: list[lab_rows.Row] = []
    for measure, field in _FIELDS.items():
        columns = {spec: [getattr(one, field)[0] for one in parts] for spec, parts in found.items()}
        clusters = np.concatenate([np.full(len(one), at) for at, one in enumerate(columns["none"])])
        roles: dict[str, lab_rows.Role] = {"none": "baseline", corruption.spec: "corrupted"}
        made += lab_rows.of(
            measure,
            clusters,
            [(roles.get(spec, "control"), spec, np.concatenate(parts)) for spec, parts in columns.items()],
        )
    judged = sum(one.kl.shape[1] for one in found["none"])
    return TextsResult(corruption.spec, tuple(texts), judged, tuple(made))


def likelihood_shifts(
    model: models_model.Model, corruption: corruptions.Corruption, text: str, *, top: int = 10
) -> Shifts:
    """How a corruption changes what is likely, along a text.

    Args:
        model: The model.
        corruption: What is done to it.
        text: The text.
        top: How many raised and lowered tokens of the vocabulary.
    """
    ids = _ids(model, text)
    with torch.no_grad():
        intact, changed = (
            model.run_with_hooks(ids, list(specs))[0].float().log_softmax(dim=-1)
            for specs in ((), corruption.bound(model))
        )
    following = ids[0, 1:, None]
    own = [one[:-1].gather(-1, following)[:, 0].tolist() for one in (intact, changed)]
    words = [model.tokenizer.decode([token]) for token in ids[0, 1:].tolist()]
    tokens = tuple(TokenShift(*cells) for cells in zip(words, *own, strict=True))
    delta = (changed.exp() - intact.exp()).mean(dim=0)
    return Shifts(corruption.spec, tokens, _named(model, delta, top), _named(model, -delta, top, sign=-1.0))


def _named(model: models_model.Model, delta: Tensor, top: int, sign: float = 1.0) -> tuple[tuple[str, float], ...]:
    values, places = delta.topk(min(top, len(delta)))
    pairs: Sequence[tuple[int, float]] = list(zip(places.tolist(), values.tolist(), strict=True))
    return tuple((model.tokenizer.decode([token]), sign * value) for token, value in pairs if value > 0)


def _ids(model: models_model.Model, text: str) -> Tensor:
    ids = model.to_tokens(text)
    if ids.shape[1] < 2:
        raise errors.RequestError(f"{text[:40]!r} has one token: nothing follows it that could be predicted")
    return ids
