"""Which earlier step of an episode does a later one rest on? One step's inside is replaced, and the rest read again.

    found = temporal.influence_of_trajectory(model, trajectory, layer=12)
    found.values[i, j]           # how much step j's words change if step i's inside is replaced

1. The episode is run once as it was, everything kept (`resuming`).
2. For each step i, the stream into the layer is replaced at all its positions, prompt and reply, and the run taken up from
   there: nothing before the step, and nothing below the layer, is computed again.
3. The words stay those that were said (teacher forcing). For each later step j: the mean over its generated tokens of
   KL(clean || patched), and how far the log-probability of what was said drops.

With several layers the stream is replaced at the input of each of them. Cost: one forward pass over the rest of the episode
per step, in the layers from the lowest patched one on, with logits from the first generated token on (memory: tokens x
vocabulary).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sonde.analysis import fluency
from sonde.analysis.tracing import resuming
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors
from sonde.models import model as models_model

Replacement = Literal["mean", "zero"] | Tensor | Sequence[int]
OnProgress = Callable[[str, int, int], None]


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
    """

    values: Float[np.ndarray, "step step"]
    drop: Float[np.ndarray, "step step"]
    steps: tuple[StepSpan, ...]
    layers: tuple[int, ...]
    replacement: str

    def to_json(self) -> dict[str, Any]:
        """The map as JSON data; null where there is no figure."""
        plain = {
            name: [[None if np.isnan(cell) else float(cell) for cell in row] for row in getattr(self, name)]
            for name in ("values", "drop")
        }
        steps = [dataclasses.asdict(step) for step in self.steps]
        return {**plain, "steps": steps, "layers": list(self.layers), "replacement": self.replacement}


def influence(
    model: models_model.Model,
    tokens: Sequence[int],
    steps: Sequence[StepSpan | tuple[int, int, int]],
    *,
    layer: int | Sequence[int],
    replacement: Replacement = "mean",
    on_progress: OnProgress | None = None,
) -> InfluenceMap:
    """Replaces the inside of each step in turn and measures what later steps make of it.

    Args:
        model: The model.
        tokens: The whole episode.
        steps: Its steps in order: prompt start, start of what was generated, end.
        layer: The layer whose input is replaced, or several.
        replacement: `mean` over the episode; `zero`; values, `d_model` or `pos d_model` for the whole episode, with a
            first axis for layers if there are several; or the tokens of another episode of the same length.
        on_progress: Called with `influence`, how many steps are done, and of how many.

    Raises:
        RequestError: Steps are out of order, a layer does not exist, or the replacement does not fit.
    """
    spans = tuple(step if isinstance(step, StepSpan) else StepSpan(*step) for step in steps)
    layers = tuple(sorted({layer} if isinstance(layer, int) else set(layer)))
    _check(model, tokens, spans, layers)
    engine = resuming.Engine(model)
    ids = torch.tensor([list(tokens)], device=model.device)
    said = [step for step in spans[1:] if step.end > step.generated]
    keep = len(tokens) - min([step.generated - 1 for step in said], default=len(tokens) - 1)
    base = engine.base(ids, keep=keep)
    instead = _instead(engine, base, layers, replacement)
    measure = _Measure(ids[0], base.logits[0], keep)
    values, drop = (np.full((len(spans), len(spans)), np.nan) for _ in range(2))
    for i, step in enumerate(spans):
        later = [j for j in range(i + 1, len(spans)) if spans[j].end > spans[j].generated]
        if later:
            logits = _patched(engine, base, step, instead, min(keep, len(tokens) - step.start))
            for j in later:
                values[i, j], drop[i, j] = measure(logits, spans[j])
        if on_progress is not None:
            on_progress("influence", i + 1, len(spans))
    return InfluenceMap(values=values, drop=drop, steps=spans, layers=layers, replacement=_name(replacement))


def influence_of_trajectory(
    model: models_model.Model,
    trajectory: capture_trajectory.TrajectoryActivations,
    *,
    layer: int | Sequence[int],
    replacement: Literal["mean", "zero"] = "mean",
    on_progress: OnProgress | None = None,
) -> InfluenceMap:
    """The same for an episode that this model played.

    Where the conversation did not simply grow (turns were dropped), a new passage begins: positions count from its start,
    and between passages there are no figures.

    Raises:
        CaptureError: The tokens of a prompt were not recorded and cannot be made again.
    """
    passages = fluency.passages_of(model, trajectory)
    count = sum(len(passage.parts) for passage in passages)
    values, drop = (np.full((count, count), np.nan) for _ in range(2))
    steps: list[StepSpan] = []
    layers: tuple[int, ...] = ()
    for passage in passages:
        starts = [0, *(part.stop for part in passage.parts)]
        own = [StepSpan(a, part.start, part.stop) for a, part in zip(starts, passage.parts, strict=False)]
        done = len(steps)
        told = None if on_progress is None else _shifted(on_progress, done, count)
        found = influence(model, passage.tokens, own, layer=layer, replacement=replacement, on_progress=told)
        block = slice(done, done + len(own))
        values[block, block], drop[block, block], layers = found.values, found.drop, found.layers
        steps += own
    return InfluenceMap(values=values, drop=drop, steps=tuple(steps), layers=layers, replacement=replacement)


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


def _patched(
    engine: resuming.Engine, base: resuming.Base, step: StepSpan, instead: dict[int, Tensor], keep: int
) -> Float[Tensor, "kept d_vocab"]:
    held = {layer: values[step.start : step.end] for layer, values in instead.items()}
    first, *above = sorted(held)
    owner = torch.zeros(1, dtype=torch.long, device=base.ids.device)
    join = resuming.Join(owner, held[first][None])
    return engine.resume(base, step.start, {first: join}, keep=keep, settle={one: held[one] for one in above})[0]


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


def _check(
    model: models_model.Model, tokens: Sequence[int], steps: tuple[StepSpan, ...], layers: tuple[int, ...]
) -> None:
    n_layers = model.cfg.n_layers
    if not layers or layers[0] < 0 or layers[-1] >= n_layers:
        raise errors.RequestError(f"layers {layers} do not exist: expected some of 0 to {n_layers - 1}")
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


def _shifted(tell: OnProgress, done: int, of: int) -> OnProgress:
    return lambda doing, now, _: tell(doing, done + now, of)
