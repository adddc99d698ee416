"""The measurements of the study of layers, a stage at a time; each gives JSON data with a number per text.

1. `single`: each layer skipped; beside it a random change of the stream of the same size at each token (the control);
   neighbours swapped. The identity order is run too, and must give the intact logits to the bit.
2. `windows`: a window in the middle, of growing size, under each method; `random` is the mean of several orders.
3. `shape`: cosine of the stream into each layer with that into each other, and block influence, 1 - cos(input, output).
4. `depth`: only the first n layers, all but the first n, and what the first n make of a few prompts.

A number per text is the mean over its tokens. Cost in forward passes over all texts, for n layers: 1.6 n, 5 + `orders` for
each window size, one, and n / 2 with a few words generated n times.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.core import errors, progress
from sonde.lab import comparing, corruptions, measuring, sweeping, texts
from sonde.lab.layers import settings as study_settings
from sonde.models import model as models_model
from sonde.store import schemas

MEASURES = ("loss", "kl", "agreement", "entropy")
Column = dict[str, list[float]]


class Bench:
    """The texts, run once by the intact model."""

    def __init__(self, model: models_model.Model, settings: study_settings.LayersSettings, tell: progress.Tell) -> None:
        """Runs them."""
        chosen = dict(list(texts.load().items())[: settings.texts])
        self.model, self.settings, self.tell = model, settings, tell
        self.n_layers = model.cfg.n_layers
        self.base = sweeping.Base(model, sweeping.encode(model, chosen, settings.tokens))
        self.judge = comparing.Judge(self.base.logits, self.base.ids)

    def measured(self, logits: Float[Tensor, "text pos d_vocab"]) -> Column:
        """Each measure's mean over the tokens of each text."""
        found = self.judge.compare(logits)
        return {name: getattr(found, name).mean(axis=1).tolist() for name in MEASURES}

    def ordered(self, spec: str) -> Column | None:
        """What a corruption of the order does; None where the model's layers cannot run in it."""
        order = corruptions.parse(spec, self.n_layers).order
        assert order is not None
        try:
            return self.measured(self.base.run(order))
        except errors.InterventionError:  # layers that attend differently cannot run side by side
            return None

    def intact(self) -> Column:
        """The intact model's own."""
        return {name: getattr(self.judge.intact, name).mean(axis=1).tolist() for name in MEASURES}


def single(bench: Bench) -> dict[str, Any]:
    """Each layer by itself."""
    count = bench.n_layers
    identity = corruptions.make("order", count, layers=range(count)).order
    assert identity is not None
    whole = bench.model.run_with_hooks(bench.base.ids, [identity])
    found: dict[str, list[Any]] = {"skip": [], "noise": [], "swap": []}
    for layer in range(count):
        found["skip"].append(bench.ordered(f"skip:{layer}"))
        found["noise"].append(bench.measured(bench.base.resume(layer + 1, _noisy(bench, layer))))
        if layer + 1 < count:
            found["swap"].append(bench.ordered(f"swap:{layer}-{layer + 1}"))
        bench.tell("single layers", layer + 1, count)
    return {"intact": bench.intact(), "identity_equal": bool(torch.equal(whole, bench.base.logits)), **found}


def windows(bench: Bench) -> dict[str, Any]:
    """Methods against window size."""
    settings, made = bench.settings, []
    for at, size in enumerate(settings.sizes):
        first, last = study_settings.window(size, bench.n_layers)
        column: dict[str, Any] = {"size": size, "first": first, "last": last}
        for method in study_settings.METHODS:
            seeds = range(settings.seed, settings.seed + (settings.orders if method == "random" else 1))
            specs = [
                f"{method}:{first}-{last}" + (f"@seed={one}" if method == "random" and one else "") for one in seeds
            ]
            column[method] = _averaged([bench.ordered(spec) for spec in dict.fromkeys(specs)])
        made.append(column)
        bench.tell("windows", at + 1, len(settings.sizes))
    return {"windows": made}


def shape(bench: Bench) -> dict[str, Any]:
    """Where the stream points."""
    streams = torch.stack([stream.float() for stream in bench.base.streams])
    unit = streams / streams.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    cosine = torch.stack([(unit[at] * unit).sum(dim=-1).mean(dim=(1, 2)) for at in range(len(unit))])
    influence = 1 - (unit[1:] * unit[:-1]).sum(dim=-1).mean(dim=2)
    update = (streams[1:] - streams[:-1]).norm(dim=-1) / streams[:-1].norm(dim=-1).clamp(min=1e-12)
    bench.tell("shape", 1, 1)
    return {
        "cosine": cosine.tolist(),
        "influence": influence.tolist(),
        "relative_update": update.median(dim=2).values.tolist(),
    }


def depth(bench: Bench) -> dict[str, Any]:
    """Only the first layers, and all but the first."""
    count, said = bench.n_layers, {name: [] for name in study_settings.PROMPTS}
    keep, drop = [], []
    for layers in range(1, count + 1):
        keep.append(bench.ordered(f"keep-first:{layers}"))
        if layers < count:
            drop.append(bench.ordered(f"drop-first:{layers}"))
        for name, text in _continued(bench, layers).items():
            said[name].append(text)
        bench.tell("depth", layers, count)
    return {"keep": keep, "drop": drop, "prompts": study_settings.PROMPTS, "said": said}


_Values = Annotated[list[schemas.Number], pydantic.Field(fail_fast=True)]
_Column = dict[str, _Values] | None
_Columns = list[_Column]


class _Single(pydantic.BaseModel):
    intact: dict[str, _Values]
    identity_equal: pydantic.StrictBool
    skip: _Columns
    noise: _Columns
    swap: _Columns


class _Window(pydantic.BaseModel):
    size: schemas.Count
    first: schemas.Count
    last: schemas.Count
    methods: dict[str, _Column]

    @pydantic.model_validator(mode="before")
    @classmethod
    def _methods(cls, told: Any) -> Any:
        rest = {name: told.get(name) for name in study_settings.METHODS} if isinstance(told, dict) else {}
        return {**told, "methods": rest} if isinstance(told, dict) else told


class _Windows(pydantic.BaseModel):
    windows: Annotated[list[_Window], pydantic.Field(min_length=1)]


class _Shape(pydantic.BaseModel):
    cosine: list[_Values]
    influence: list[list[Any]]
    relative_update: list[list[Any]]


class _Depth(pydantic.BaseModel):
    keep: _Columns
    drop: _Columns
    prompts: dict[str, str]
    said: dict[str, list[str]]


RESULTS = schemas.register("results of the study of layers", schemas.Data)
#: By name: what computes it, and the schema of what that gives.
STAGES: Mapping[str, tuple[Callable[[Bench], dict[str, Any]], str]] = {
    "single": (single, schemas.register("stage of single layers", _Single)),
    "windows": (windows, schemas.register("stage of windows", _Windows)),
    "shape": (shape, schemas.register("stage of the stream", _Shape)),
    "depth": (depth, schemas.register("stage of depth", _Depth)),
}


def _noisy(bench: Bench, layer: int) -> Float[Tensor, "text pos d_model"]:
    """The stream after a layer, moved at each token in a random direction as far as the layer itself moved it."""
    before, after = bench.base.streams[layer], bench.base.streams[layer + 1]
    generator = torch.Generator().manual_seed(1000 * bench.settings.seed + layer)
    drawn = torch.randn(after.shape, generator=generator).to(after)
    size = (after - before).norm(dim=-1, keepdim=True) / drawn.norm(dim=-1, keepdim=True)
    return after + drawn * size


def _continued(bench: Bench, layers: int) -> dict[str, str]:
    spec = corruptions.parse(f"keep-first:{layers}", bench.n_layers).bound(bench.model)
    with measuring.isolated(bench.model):
        answers = bench.model.generate(
            list(study_settings.PROMPTS.values()), interventions=spec, max_new_tokens=bench.settings.words
        )
    return {name: one.text for name, one in zip(study_settings.PROMPTS, answers, strict=True)}


def _averaged(columns: list[Column | None]) -> Column | None:
    """The mean over several orders, text by text."""
    real = [one for one in columns if one is not None]
    if not real:
        return None
    return {name: torch.tensor([one[name] for one in real]).mean(dim=0).tolist() for name in MEASURES}
