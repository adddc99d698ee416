"""What the model knows at each layer: the best linear guess at how the stream will end, per layer, with a control.

    with sonde.load("smollm2-135m-instruct") as model:
        chosen = translating.TranslateSettings(model=model.cfg.model_name)
        found = experiments.run(translating.Translate(model), chosen, run="translate")
    found.results["layers"][12]["translated"], found.results["layers"][12]["lens"]

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
import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sonde import experiments
from sonde.analysis import stats
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.lab import rows as lab_rows
from sonde.lab import sweeping, texts
from sonde.models import model as models_model
from sonde.report import charts, page, wording
from sonde.store import schemas

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
FOLDS = 5
#: Streams so many times as long as the median one are left out.
EXTREME = 10.0
_NAMES = {"best linear guess": "translated", "logit lens": "lens", "control (shuffled pairs)": "shuffled"}
_AGREEMENTS = dict(zip(_NAMES, ("agreement", "lens_agreement", "shuffled_agreement"), strict=True))


class TranslateSettings(core_settings.Settings):
    """What is to be done."""

    model: str = core_settings.field(..., "The model's name.")
    tokens: int = core_settings.field(96, "Tokens of each text.", ge=16)
    seed: int = core_settings.field(0, "Shuffles the control.", ge=0)


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


class Bench:
    """Texts that the intact model has run, to fit and judge maps on."""

    def __init__(
        self, model: models_model.Model, chosen: Mapping[str, str], *, tokens: int = 96, seed: int = 0
    ) -> None:
        """Runs the texts.

        Args:
            model: The model.
            chosen: Texts by name: at least six, of at least `tokens` tokens.
            tokens: How many of each.
            seed: Shuffles the control.

        Raises:
            RequestError: Too few texts, or one is too short.
        """
        if len(chosen) < 6:
            raise errors.RequestError(
                f"the translator needs at least six texts, some of them to judge it; got {len(chosen)}"
            )
        self._base = sweeping.Base(model, sweeping.encode(model, chosen, tokens))
        self._usual, self._seed = _usual(self._base), seed
        self.n_layers, self.texts, self.tokens = len(self._base.streams) - 1, len(chosen), int(self._usual.sum())

    def layer(self, layer: int) -> Layer:
        """Fits on all parts but one and judges that one, for each part; what is drawn for a layer depends on it alone."""
        base, usual, count = self._base, self._usual, len(self._usual)
        stream, last, generator = base.streams[layer], base.streams[-1], torch.Generator().manual_seed(self._seed)
        parts = [[at for at in range(count) if at % FOLDS != fold] for fold in range(FOLDS)]
        for _, part in ((before, part) for before in range(layer) for part in parts):
            torch.randperm(int(usual[part].sum()), generator=generator)  # what the layers before it draw
        found: list[list[np.ndarray]] = []
        for fold, train in enumerate(parts):
            pairs = [_rows(stream, last, usual, part) for part in (train[2:], train[:2], train)]
            strength = _strength(*pairs[:2])
            source, target = pairs[2]
            mixed = target[torch.randperm(len(target), generator=generator)]
            maps = (fit(source, target, strength), None, fit(source, mixed, strength))
            found.append(_judged(base, layer, usual, list(range(fold, count, FOLDS)), maps))
        clusters, *columns = (np.concatenate(column) for column in zip(*found, strict=True))
        kls = [lab_rows.mean(one, clusters, limits=lab_rows.NO_LESS) for one in columns[:3]]
        return Layer(layer, *kls, *(lab_rows.mean(one, clusters, rate=True) for one in columns[3:]))


class _Estimate(pydantic.BaseModel):
    value: schemas.Number
    low: schemas.Number
    high: schemas.Number


class _Layer(pydantic.BaseModel):
    layer: schemas.Count
    translated: _Estimate
    lens: _Estimate
    shuffled: _Estimate
    agreement: _Estimate
    lens_agreement: _Estimate
    shuffled_agreement: _Estimate


class _Layers(pydantic.BaseModel):
    layers: list[_Layer]
    caption: schemas.Text


LAYER = schemas.register("translated layer", _Layer)
LAYERS = schemas.register("stage of translated layers", _Layers)
RESULTS = schemas.register("results of translated layers", schemas.Data)


def _items(context: experiments.Context[Any]) -> list[dict[str, int]]:
    at: Any = context.experiment
    return [{"layer": layer} for layer in range(int(at.model.cfg.n_layers) + 1)]


def _work(context: experiments.Context[Any], item: Mapping[str, int]) -> dict[str, Any]:
    at: Any = context.experiment
    return dataclasses.asdict(at.bench(context.settings).layer(item["layer"]))


def _join(context: experiments.Context[Any], made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    at: Any = context.experiment
    bench = at.bench(context.settings)
    told = f"{bench.texts} texts, {bench.tokens} tokens; each text judged by maps fitted on the other four fifths."
    return {"layers": made, "caption": told}


class Translate(experiments.Experiment[TranslateSettings]):
    """The experiment."""

    kind, verb, results_kind = "translate", ("lab", "translate"), RESULTS
    settings_type = TranslateSettings
    stages = (experiments.Items("layers", LAYERS, _items, _work, LAYER, _join),)
    model: models_model.Model

    def __init__(self, model: models_model.Model) -> None:
        """Takes the model."""
        super().__init__(model)
        self._bench: tuple[TranslateSettings, Bench] | None = None

    def bench(self, settings: TranslateSettings) -> Bench:
        """The texts, run once for all layers."""
        if self._bench is None or self._bench[0] != settings:
            self._bench = settings, Bench(self.model, texts.load(), tokens=settings.tokens, seed=settings.seed)
        return self._bench[1]

    def check(self, settings: TranslateSettings) -> None:
        """Refuses another model's settings."""
        if settings.model != self.model.cfg.model_name:
            raise errors.RequestError(
                f"the settings are for {settings.model!r}, the model is {self.model.cfg.model_name!r}"
            )

    def headline(self, settings: TranslateSettings) -> str:
        """Sizes."""
        return f"{self.model.cfg.n_layers} layers, {settings.tokens} tokens of each text"

    def results(self, context: experiments.Context[TranslateSettings]) -> dict[str, Any]:
        """All layers, and what they were judged on."""
        return {"model": self.model.cfg.model_name, **context.found("layers")}

    def report(self, results: Mapping[str, Any], run: str) -> page.Report:
        """Two charts and two tables."""
        return report(results)

    def highlights(self, results: Mapping[str, Any]) -> tuple[page.Table, ...]:
        """KL, then agreement."""
        return _tables(results)


def report(results: Mapping[str, Any]) -> page.Report:
    """The page of `results.json`."""
    return page.Report(
        title=f"What {results['model']} knows at each layer",
        summary=tuple(_sentences(results)),
        sections=(page.Section("Layer by layer", charts=figures(results), tables=_tables(results)),),
    )


def figures(results: Mapping[str, Any]) -> tuple[charts.Lines, charts.Lines]:
    """KL and agreement by layer."""
    layers = results["layers"]
    common: dict[str, Any] = {
        "x": np.array([one["layer"] for one in layers], dtype=float),
        "x_name": "stream on the way into layer (the last: into the final norm)",
        "caption": f"{results['caption']} Bands: 95 % intervals over texts.",
    }
    return (
        charts.Lines(
            key="translate-kl",
            title="How far is each layer's stream from the final prediction?",
            y_name="KL from the model's prediction (nats)",
            series=tuple(_series(name, [one[field] for one in layers]) for name, field in _NAMES.items()),
            log_y=True,
            **common,
        ),
        charts.Lines(
            key="translate-agreement",
            title="How often does each layer's stream hold the final top-1 token?",
            y_name="share of tokens",
            series=tuple(_series(name, [one[field] for one in layers]) for name, field in _AGREEMENTS.items()),
            y_range=(0.0, 1.0),
            **common,
        ),
    )


def _sentences(results: Mapping[str, Any]) -> list[str]:
    """Where the guess is better than its control for sure, and how it stands in the middle."""
    layers = results["layers"]
    apart = [one["layer"] for one in layers if one["translated"]["high"] < one["shuffled"]["low"]]
    middle = layers[len(layers) // 2]
    said = {name: wording.shown(_interval(middle[field])) for name, field in _AGREEMENTS.items()}
    where = ", ".join(map(str, apart))
    return [
        f"The best linear guess is nearer to the model's prediction than its control, with intervals apart, into layers {where}."
        if apart
        else "Into no layer is the best linear guess nearer to the model's prediction than its control, with intervals apart.",
        f"Into layer {middle['layer']}, share of tokens with the model's top-1: "
        f"{', '.join(f'{name} {share}' for name, share in said.items())}.",
    ]


def _tables(results: Mapping[str, Any]) -> tuple[page.Table, ...]:
    """By three ways of reading it, what each layer knows: KL, then agreement."""
    made = []
    titles = ("KL from the model's prediction, in nats", "Share of tokens with its top-1")
    for title, fields in zip(titles, (_NAMES, _AGREEMENTS), strict=True):
        rows = tuple((one["layer"], *(_interval(one[name]) for name in fields.values())) for one in results["layers"])
        caption = f"{title}. {results['caption']} 95 % intervals over texts."
        made.append(page.Table(("into layer", *fields), rows, caption))
    return tuple(made)


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


def _series(name: str, found: Sequence[Mapping[str, float]]) -> charts.Series:
    value, low, high = (np.array([one[end] for one in found]) for end in ("value", "low", "high"))
    return charts.Series(name, value, low, high)


def _interval(one: Mapping[str, float]) -> wording.Interval:
    return wording.Interval(one["value"], one["low"], one["high"])


def _numbers(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
