"""Interventions at work on tensors: which cells, and what becomes of them.

An Edit is one intervention bound to the rows of a batch. It computes the new value for the whole tensor and takes it
only in the cells it holds for (`torch.where`), so every other cell keeps its bits. Cost: a few element-wise passes
over the edited Site; nothing elsewhere, nothing at a forward pass in which no selected position appears.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sonde.core import errors, interventions, sites, spans
from sonde.models import config as model_config
from sonde.models import frames, taps

NOISE_CHUNK = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Hook:
    """What a plain function learns about where it was called.

    Attributes:
        name: Site name.
        layer: Layer, or None outside the blocks.
        step: Step of the episode.
        positions: Episode position of each cell, `batch pos`.
    """

    name: str
    layer: int | None
    step: int
    positions: Tensor


@dataclasses.dataclass(slots=True, eq=False)
class Edit:
    """One intervention, bound.

    Attributes:
        spec: The intervention.
        rows: For each row of the batch it holds for, the episode positions it is applied at.
        prompts: For each of those rows, first new position and length of the prompt.
        steps: For each of those rows, the step of its episode.
    """

    spec: interventions.Intervention
    rows: dict[int, spans.Spans]
    prompts: dict[int, tuple[int, int]]
    steps: dict[int, int] = dataclasses.field(default_factory=dict)
    _mask: tuple[frames.Frame, Tensor | None] | None = None
    _tensors: dict[Any, Tensor] = dataclasses.field(default_factory=dict)
    _met: tuple[frames.Frame, collections.Counter[str]] | None = None
    means: dict[tuple[str, int, int], Tensor] = dataclasses.field(default_factory=dict)

    def mask(self, frame: frames.Frame) -> Tensor | None:
        """`batch pos`, True where it is applied in this forward pass; None if nowhere."""
        if self._mask is None or self._mask[0] is not frame:
            self._mask = (frame, self._build_mask(frame.positions))
        return self._mask[1]

    def _build_mask(self, positions: Tensor) -> Tensor | None:
        mask = torch.zeros_like(positions, dtype=torch.bool)
        for row, chosen in self.rows.items():
            for span in chosen:
                mask[row] |= (positions[row] >= span.start) & (positions[row] < span.stop)
        return mask if bool(mask.any()) else None

    def meet(self, site: sites.Site, frame: frames.Frame) -> None:
        """Counts how often a Site was met in this forward pass: in another layer order a layer may run twice."""
        if self._met is None or self._met[0] is not frame:
            self._met = (frame, collections.Counter())
        self._met[1][str(site)] += 1

    def mean_at(self, site: sites.Site, row: int) -> tuple[str, int, int]:
        """Under which key the prompt's mean is kept, for the run of the Site that is under way."""
        assert self._met is not None
        return str(site), row, self._met[1][str(site)]

    def array(self, name: str, like: Tensor) -> Tensor:
        """An array of the intervention as a tensor beside `like`."""
        key = (name, like.device, like.dtype)
        if key not in self._tensors:
            value = torch.from_numpy(getattr(self.spec, name).copy())
            self._tensors[key] = value.to(device=like.device, dtype=like.dtype)
        return self._tensors[key]


def check(spec: interventions.Intervention, site: sites.Site, cfg: model_config.ModelConfig) -> None:
    """Refuses an intervention that does not fit the model, before anything runs.

    Raises:
        InterventionError: Heads, positions or array shapes do not fit the Site.
    """
    spec._check_site(site)
    shape = taps.value_shape(site, cfg)
    if spec.heads is not None and max(spec.heads, default=0) >= shape[0]:
        raise errors.InterventionError(f"{site} has heads 0 to {shape[0] - 1}, got {spec.heads}")
    if site.is_query_key and not isinstance(spec, _QUERY_KEY_KINDS):
        names = ", ".join(kind.__name__ for kind in _QUERY_KEY_KINDS)
        raise errors.InterventionError(f"{spec.name} has no meaning at {site}; there work: {names}")
    for name in spec.arrays:
        value = getattr(spec, name)
        if value is not None and not _shape_fits(
            tuple(value.shape), shape, site, isinstance(spec, interventions.Steer)
        ):
            raise errors.InterventionError(
                f"{spec.name}.{name} at {site}: expected shape {_expected(shape, site)}, got {tuple(value.shape)}"
            )


def apply(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame) -> Tensor:
    """The Site's value after the edit; the same object if it is not touched in this forward pass."""
    mask = edit.mask(frame)
    spec = edit.spec
    if isinstance(spec, interventions.Mean) and spec.values is None:
        edit.meet(site, frame)
        _remember_means(edit, site, value, frame)
    if mask is None:
        return value
    if isinstance(spec, interventions.Opaque):
        return _opaque(edit, site, value, frame, mask)
    if site.is_query_key:
        return _query_key(edit, site, value, frame, mask)
    new, known = _NEW[type(spec)](edit, site, value, frame)
    cells = (mask if known is None else mask & known)[(...,) + (None,) * (value.ndim - 2)]
    if spec.heads is not None:
        cells = cells & _head_mask(spec.heads, value.shape[2], value.device).view(1, 1, -1, *[1] * (value.ndim - 3))
    return torch.where(cells, new, value)


def indexed(values: Tensor, start: int, value: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
    """Stored values laid out for a forward pass, and where there are any."""
    trailing = value.ndim - 2
    if values.ndim == trailing:
        return values.expand_as(value), None
    if values.ndim == trailing + 1:
        values = values[None]
    index = positions - start
    known = (index >= 0) & (index < values.shape[1])
    index = index.clamp(0, values.shape[1] - 1)
    if values.shape[0] == 1:
        return values[0][index], known
    _check_batch(values.shape[0], len(index))
    return values[torch.arange(len(index), device=index.device)[:, None], index], known


def _check_batch(stored: int, rows: int) -> None:
    if stored not in (1, rows):
        raise errors.InterventionError(f"stored values for a batch of {stored} do not fit an input of {rows} rows")


New = tuple[Tensor, Tensor | None]


def _zero(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame) -> New:
    return torch.zeros_like(value), None


def _scale(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame) -> New:
    assert isinstance(edit.spec, interventions.Scale)
    return value * edit.spec.factor, None


def _steer(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame) -> New:
    assert isinstance(edit.spec, interventions.Steer)
    return value + edit.spec.strength * edit.array("direction", value), None


def _patch(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame) -> New:
    assert isinstance(edit.spec, interventions.Patch)
    return indexed(edit.array("values", value), edit.spec.start, value, frame.positions)


def _mean(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame) -> New:
    assert isinstance(edit.spec, interventions.Mean)
    if edit.spec.values is not None:
        return indexed(edit.array("values", value), 0, value, frame.positions)
    new = value.clone()
    for row in edit.prompts:
        if edit.mean_at(site, row) in edit.means:
            new[row] = edit.means[edit.mean_at(site, row)]
    return new, None


def _remember_means(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame) -> None:
    """Means over the prompts of this forward pass, also if nothing in it is changed: decoding will ask for them."""
    for row, (new_start, prompt_length) in edit.prompts.items():
        low = new_start if edit.spec.scope == "new" else 0
        inside = (frame.positions[row] >= low) & (frame.positions[row] < prompt_length)
        if bool(inside.any()):
            edit.means[edit.mean_at(site, row)] = value[row, inside].mean(dim=0)


def _noise(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame) -> New:
    spec = edit.spec
    assert isinstance(spec, interventions.Noise)
    shape = value.shape[2:]
    chunks = {p // NOISE_CHUNK for p in frame.positions.flatten().tolist() if p >= 0}
    for chunk in chunks:
        key = ("noise", str(site), chunk)
        if key not in edit._tensors:
            seed = hashlib.sha256(f"{spec.seed}:{site}:{chunk}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "little"))
            edit._tensors[key] = torch.randn(NOISE_CHUNK, *shape, generator=generator).to(value)
    first, last = min(chunks), max(chunks)
    empty = torch.zeros(NOISE_CHUNK, *shape).to(value)
    table = torch.cat([edit._tensors.get(("noise", str(site), chunk), empty) for chunk in range(first, last + 1)])
    index = (frame.positions - first * NOISE_CHUNK).clamp(min=0)
    return value + spec.std * table[index], None


_NEW: dict[type[interventions.Intervention], Callable[[Edit, sites.Site, Tensor, frames.Frame], New]] = {
    interventions.Zero: _zero,
    interventions.Scale: _scale,
    interventions.Steer: _steer,
    interventions.Patch: _patch,
    interventions.Mean: _mean,
    interventions.Noise: _noise,
}
_QUERY_KEY_KINDS = (
    interventions.Knockout,
    interventions.Zero,
    interventions.Scale,
    interventions.Patch,
    interventions.Opaque,
)


def _query_key(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame, mask: Tensor) -> Tensor:
    """Edits scores (forbidden cells stay -inf) or a pattern (they stay 0)."""
    spec = edit.spec
    cells = mask[:, None, :, None].expand_as(value)
    if spec.heads is not None:
        cells = cells & _head_mask(spec.heads, value.shape[1], value.device).view(1, -1, 1, 1)
    keys = frame.key_positions[:, None, None, :]
    if isinstance(spec, interventions.Knockout):
        chosen = torch.isin(keys, torch.tensor(spec.keys, device=keys.device))
        return value.masked_fill(cells & chosen, -torch.inf if site.kind == "attn.hook_attn_scores" else 0.0)
    if isinstance(spec, interventions.Zero):
        new = torch.zeros_like(value)
    elif isinstance(spec, interventions.Scale):
        new = value * spec.factor
    else:
        new, known = _stored_pattern(edit, value, frame)
        cells = cells & known
    allowed = (keys >= 0) & (keys <= frame.positions[:, None, :, None]) & ~torch.isneginf(value)
    return torch.where(cells & allowed, new, value)


def _stored_pattern(edit: Edit, value: Tensor, frame: frames.Frame) -> tuple[Tensor, Tensor]:
    assert isinstance(edit.spec, interventions.Patch)
    stored = edit.array("values", value)
    stored = stored[None] if stored.ndim == 3 else stored
    _check_batch(stored.shape[0], value.shape[0])
    query = frame.positions - edit.spec.start
    key = frame.key_positions
    known = (query >= 0) & (query < stored.shape[2])
    inside = (key >= 0) & (key < stored.shape[3])
    rows = []
    for row in range(value.shape[0]):
        source = stored[row if stored.shape[0] > 1 else 0]
        picked = source[:, query[row].clamp(0, stored.shape[2] - 1)][:, :, key[row].clamp(0, stored.shape[3] - 1)]
        rows.append(picked)
    return torch.stack(rows), known[:, None, :, None] & inside[:, None, None, :]


def _opaque(edit: Edit, site: sites.Site, value: Tensor, frame: frames.Frame, mask: Tensor) -> Tensor:
    """Calls the function once for the batch if all rows are its own, otherwise once per row without the padding."""
    spec = edit.spec
    assert isinstance(spec, interventions.Opaque)
    axis = 2 if site.is_query_key else 1
    result = value.clone()
    whole = not frame.padded and len(edit.rows) == value.shape[0] and len(set(edit.steps.values())) <= 1
    groups = [list(edit.rows)] if whole else [[row] for row in edit.rows]
    for rows in groups:
        columns = (frame.positions[rows[0]] >= 0).nonzero().flatten()
        part = value[rows].index_select(axis, columns)
        hook = Hook(str(site), site.layer, edit.steps.get(rows[0], 0), frame.positions[rows][:, columns])
        new = spec.fn(copy := part.clone(), hook)
        new = copy if new is None else new
        if not isinstance(new, Tensor) or new.shape != part.shape:
            got = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise errors.InterventionError(f"{spec.name} at {site} must return shape {tuple(part.shape)}, got {got}")
        shape = (len(rows), 1, -1, 1) if axis == 2 else (len(rows), -1, *[1] * (value.ndim - 2))
        cells = mask[rows][:, columns].view(shape)
        if spec.heads is not None:
            heads = _head_mask(spec.heads, value.shape[3 - axis], value.device)
            cells = cells & heads.view((1, -1, 1, 1) if axis == 2 else (1, 1, -1, *[1] * (value.ndim - 3)))
        kept = torch.where(cells, new.to(value.dtype), part)
        for index, row in enumerate(rows):
            result[row].index_copy_(axis - 1, columns, kept[index])
    return result


def _head_mask(heads: Sequence[int], n_heads: int, device: torch.device) -> Tensor:
    mask = torch.zeros(n_heads, dtype=torch.bool, device=device)
    mask[list(heads)] = True
    return mask


def _shape_fits(got: tuple[int, ...], value: tuple[int, ...], site: sites.Site, is_steer: bool) -> bool:
    if site.is_query_key:
        return len(got) in (3, 4) and got[-3] == value[0]
    if is_steer and len(value) == 2 and got == value[1:]:
        return True
    return got == value or (not is_steer and len(got) - len(value) in (1, 2) and got[-len(value) :] == value)


def _expected(value: tuple[int, ...], site: sites.Site) -> str:
    if site.is_query_key:
        return f"({value[0]}, queries, keys)"
    tail = ", ".join(map(str, value))
    return f"({tail}), or (positions, {tail}), or (1, positions, {tail}) where values differ by position"
