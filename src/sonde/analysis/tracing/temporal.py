"""Which earlier step of an episode does a later one rest on? One step's inside is replaced, and the rest read again.

    found = temporal.influence_of_trajectory(model, trajectory, layer=12)
    found.values[i, j]           # how much step j's words change if step i's inside is replaced

1. The episode is run once as it was, everything kept (`resuming`).
2. For each step i, the stream into the layer is replaced at all its positions, prompt and reply, and the run taken up from
   there: nothing before the step, and nothing below the layer, is computed again.
3. The words stay those that were said (teacher forcing). For each later step j: the mean over its generated tokens of
   KL(clean || patched), and how far the log-probability of what was said drops.
4. Controls. A sham: the stream's own values are put back, which must change nothing. And, if asked for, for each step as
   many positions in a row are replaced elsewhere (`stretches`).

With several layers the stream is replaced at the input of each of them. Cost: one forward pass over the rest of the episode
per step and per stretch, in the layers from the lowest patched one on, with logits from the first generated token on
(memory: tokens x vocabulary).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.analysis import fluency
from sonde.analysis.tracing import resuming, stretches
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, progress
from sonde.models import model as models_model
from sonde.store import schemas

_Cells = list[list[schemas.Number | None]]
Replacement = Literal["mean", "zero"] | Tensor | Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class StepSpan:
    """Where a step stands in an episode: its prompt from `start`, its reply from `generated`, its end before `end`."""

    start: int
    generated: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InfluenceMap:
    """What each step owes to each earlier one.

    Attributes:
        values: Mean KL(clean || patched) over the tokens generated in the measured step (second axis) with the patched
            step (first axis) replaced; nan unless the measured one is later and said something.
        drop: Mean drop of the log-probability of what was said there.
        steps: Where the steps stand.
        layers: Where the stream was replaced.
        replacement: What by: `mean`, `zero`, `values` or `tokens`.
        sham: The largest KL of any step if the stream's own values are put back: how exact the figures are. None if there is
            no step to measure.
        control: What replacing as many positions elsewhere does; None if none was asked for.
    """

    values: Float[np.ndarray, "step step"]
    drop: Float[np.ndarray, "step step"]
    steps: tuple[StepSpan, ...]
    layers: tuple[int, ...]
    replacement: str
    sham: float | None = None
    control: stretches.Stretches | None = None

    def to_json(self) -> dict[str, Any]:
        """The map as JSON data; null where there is no figure."""
        return {
            "values": stretches.plain(self.values),
            "drop": stretches.plain(self.drop),
            "steps": [dataclasses.asdict(step) for step in self.steps],
            "layers": list(self.layers),
            "replacement": self.replacement,
            "sham": self.sham,
            "control": None if self.control is None else self.control.to_json(),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "InfluenceMap":
        """The map that `to_json` gave."""
        return cls(
            values=np.array(told["values"], dtype=np.float64),
            drop=np.array(told["drop"], dtype=np.float64),
            steps=tuple(StepSpan(**step) for step in told["steps"]),
            layers=tuple(told["layers"]),
            replacement=told["replacement"],
            sham=told["sham"],
            control=None if told["control"] is None else stretches.Stretches.from_json(told["control"]),
        )


class _Control(pydantic.BaseModel):
    mean: _Cells
    low: _Cells
    high: _Cells
    below: _Cells
    n: list[list[schemas.Count]]


class Told(pydantic.BaseModel):
    """The schema of a map on disk."""

    values: _Cells
    drop: _Cells
    steps: list[dict[Literal["start", "generated", "end"], schemas.Count]]
    layers: list[schemas.Count]
    replacement: schemas.Text
    sham: schemas.Number | None
    control: _Control | None


def influence(
    model: models_model.Model,
    tokens: Sequence[int],
    steps: Sequence[StepSpan | tuple[int, int, int]],
    *,
    layer: int | Sequence[int],
    replacement: Replacement = "mean",
    controls: int = 0,
) -> InfluenceMap:
    """Replaces the inside of each step in turn and measures what later steps make of it.

    Args:
        model: The model.
        tokens: The whole episode.
        steps: Its steps in order: prompt start, start of what was generated, end.
        layer: The layer whose input is replaced, or several.
        replacement: `mean` over the episode; `zero`; values, `d_model` or `pos d_model` for the whole episode, with a
            first axis for layers if there are several; or the tokens of another episode of the same length.
        controls: How many stretches of a step's length to replace elsewhere, for each step; the same ones every time.

    Raises:
        RequestError: Steps are out of order, a layer does not exist, or the replacement does not fit.
    """
    spans = tuple(step if isinstance(step, StepSpan) else StepSpan(*step) for step in steps)
    layers = tuple(sorted({layer} if isinstance(layer, int) else set(layer)))
    return _influence(model, tokens, spans, _Wanted(layers, replacement, controls), None)


def influence_of_trajectory(
    model: models_model.Model,
    trajectory: capture_trajectory.TrajectoryActivations,
    *,
    layer: int | Sequence[int],
    replacement: Literal["mean", "zero"] = "mean",
    controls: int = 0,
    on_progress: progress.Tell | None = None,
) -> InfluenceMap:
    """The same for an episode that this model played.

    Where the conversation did not simply grow (turns were dropped), a new passage begins: positions count from its start,
    and between passages there are no figures. `on_progress` is called with `influence`, how many steps are done, and of
    how many.

    Raises:
        CaptureError: The tokens of a prompt were not recorded and cannot be made again.
    """
    passages = fluency.passages_of(model, trajectory)
    count = sum(len(passage.parts) for passage in passages)
    layers = tuple(sorted({layer} if isinstance(layer, int) else set(layer)))
    values, drop = (np.full((count, count), np.nan) for _ in range(2))
    control = stretches.Stretches.none(count) if controls else None
    steps: list[StepSpan] = []
    shams: list[float] = []
    for passage in passages:
        starts = [0, *(part.stop for part in passage.parts)]
        own = tuple(StepSpan(a, part.start, part.stop) for a, part in zip(starts, passage.parts, strict=False))
        done = len(steps)
        told = None if on_progress is None else _shifted(on_progress, done, count)
        found = _influence(model, passage.tokens, own, _Wanted(layers, replacement, controls), told)
        block = slice(done, done + len(own))
        values[block, block], drop[block, block] = found.values, found.drop
        if control is not None and found.control is not None:
            control.fill(block, found.control)
        shams += [] if found.sham is None else [found.sham]
        steps += own
    sham = max(shams, default=None)
    known = {"steps": tuple(steps), "layers": layers, "replacement": replacement, "sham": sham, "control": control}
    return InfluenceMap(values=values, drop=drop, **known)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """What to replace, by what, and how many stretches beside each step."""

    layers: tuple[int, ...]
    replacement: Replacement
    controls: int


def _influence(
    model: models_model.Model,
    tokens: Sequence[int],
    spans: tuple[StepSpan, ...],
    wanted: _Wanted,
    on_progress: progress.Tell | None,
) -> InfluenceMap:
    """The map of one passage."""
    _check(model, tokens, spans, wanted.layers)
    engine = resuming.Engine(model)
    ids = torch.tensor([list(tokens)], device=model.device)
    said = [step for step in spans[1:] if step.end > step.generated]
    keep = len(tokens) - min([step.generated - 1 for step in said], default=len(tokens) - 1)
    base = engine.base(ids, keep=keep)
    instead = _instead(engine, base, wanted.layers, wanted.replacement)
    reread = _Reread(engine, base, _Measure(ids[0], base.logits[0], keep), keep)
    rng, control = np.random.default_rng(7), stretches.Stretches.none(len(spans)) if wanted.controls else None
    values, drop = (np.full((len(spans), len(spans)), np.nan) for _ in range(2))
    for i, step in enumerate(spans):
        later = [j for j in range(i + 1, len(spans)) if spans[j].end > spans[j].generated]
        if later:
            measured = [spans[j] for j in later]
            values[i, later], drop[i, later] = reread(step.start, step.end, instead, measured)
            if control is not None:
                size, before = step.end - step.start, measured[0].generated
                where = stretches.beside(step.start, step.end, before=before, count=wanted.controls, rng=rng)
                drawn = [reread(at, at + size, instead, measured)[0] for at in where]
                control.put(i, later, np.array(drawn).reshape(-1, len(later)), values[i, later])
        if on_progress is not None:
            on_progress("influence", i + 1, len(spans))
    own = {one: base.streams[one][0] for one in wanted.layers}
    sham = float(np.abs(reread(spans[0].start, spans[0].end, own, said)[0]).max()) if said else None
    known = {"steps": spans, "layers": wanted.layers, "replacement": _name(wanted.replacement)}
    return InfluenceMap(values=values, drop=drop, sham=sham, control=control, **known)


class _Measure:
    """Compares logits of a changed run with those of the episode as it was."""

    def __init__(self, ids: Tensor, logits: Tensor, keep: int) -> None:
        self._ids, self._first = ids, len(ids) - keep
        self._clean = torch.log_softmax(logits.float(), dim=-1)

    def __call__(self, logits: Tensor, step: StepSpan) -> tuple[float, float]:
        """Mean KL and mean drop over what was generated in a step."""
        at = slice(step.generated - 1 - self._first, step.end - 1 - self._first)
        offset = len(self._clean) - len(logits)
        clean = self._clean[at]
        patched = torch.log_softmax(logits[at.start - offset : at.stop - offset].float(), dim=-1)
        words = self._ids[step.generated : step.end, None]
        drop = (clean - patched).gather(1, words).mean()
        return float((clean.exp() * (clean - patched)).sum(dim=-1).mean()), float(drop)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Reread:
    """Replaces positions of an episode and measures what later steps make of it."""

    engine: resuming.Engine
    base: resuming.Base
    measure: _Measure
    keep: int

    def __call__(
        self, start: int, end: int, instead: dict[int, Tensor], measured: Sequence[StepSpan]
    ) -> tuple[Float[np.ndarray, "measured"], Float[np.ndarray, "measured"]]:
        """KL and drop of each measured step with positions `start` to `end - 1` replaced."""
        held = {layer: values[start:end] for layer, values in instead.items()}
        first, *above = sorted(held)
        owner = torch.zeros(1, dtype=torch.long, device=self.base.ids.device)
        join, settle = resuming.Join(owner, held[first][None]), {one: held[one] for one in above}
        keep = min(self.keep, self.base.ids.shape[1] - start)
        logits = self.engine.resume(self.base, start, {first: join}, keep=keep, settle=settle)[0]
        found = np.array([self.measure(logits, step) for step in measured])
        return found[:, 0], found[:, 1]


def _instead(
    engine: resuming.Engine, base: resuming.Base, layers: tuple[int, ...], replacement: Replacement
) -> dict[int, Float[Tensor, "pos d_model"]]:
    """What the stream into each layer is replaced by, at every position."""
    streams = {layer: base.streams[layer][0] for layer in layers}
    if isinstance(replacement, str):
        kept = float(replacement == "mean")
        return {layer: (kept * stream.mean(dim=0)).expand_as(stream) for layer, stream in streams.items()}
    given = torch.as_tensor(replacement, device=base.ids.device)
    if not given.is_floating_point():
        if given.shape != base.ids[0].shape:
            raise errors.RequestError(
                f"the other episode has {given.numel()} tokens and this one {base.ids.shape[1]}: positions must correspond"
            )
        other = engine.base(given[None].long())
        return {layer: other.streams[layer][0] for layer in layers}
    rows = given if given.ndim == 3 else given[None].expand(len(layers), *given.shape)
    shape = streams[layers[0]].shape
    if len(rows) != len(layers) or tuple(rows.shape[1:]) not in (tuple(shape), tuple(shape[1:])):
        raise errors.RequestError(
            f"values of shape {tuple(given.shape)} do not fit: expected {tuple(shape[1:])} or {tuple(shape)}, with a first "
            f"axis of {len(layers)} for the layers if they differ"
        )
    return {layer: row.to(streams[layer]).expand(shape) for layer, row in zip(layers, rows, strict=True)}


def check_layers(model: models_model.Model, layers: Sequence[int]) -> None:
    """Refuses layers that do not exist.

    Raises:
        RequestError: There is one, or none at all.
    """
    n_layers = model.cfg.n_layers
    if not layers or min(layers) < 0 or max(layers) >= n_layers:
        raise errors.RequestError(f"layers {tuple(layers)} do not exist: expected some of 0 to {n_layers - 1}")


def _check(
    model: models_model.Model, tokens: Sequence[int], steps: tuple[StepSpan, ...], layers: tuple[int, ...]
) -> None:
    check_layers(model, layers)
    if not model.cfg.causal:
        raise errors.RequestError(f"{model.cfg.model_name} is not causal: its runs cannot be taken up in the middle")
    if len(tokens) > model.cfg.n_ctx:
        raise errors.ContextError(f"{len(tokens)} tokens do not fit the context of {model.cfg.n_ctx}")
    at = 0
    for number, step in enumerate(steps):
        if not (at <= step.start < step.generated <= step.end <= len(tokens)):
            raise errors.RequestError(
                f"step {number} at {step} is out of order: expected {at} <= start < generated <= end <= {len(tokens)}"
            )
        at = step.end


def _name(replacement: Replacement) -> str:
    if isinstance(replacement, str):
        return replacement
    return "values" if torch.as_tensor(replacement).is_floating_point() else "tokens"


def _shifted(tell: progress.Tell, done: int, of: int) -> progress.Tell:
    return lambda doing, now, _: tell(doing, done + now, of)
