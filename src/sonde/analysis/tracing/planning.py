"""Which cells does a sweep consist of? Settings, checked against a model and its pairs before anything runs.

A cell is one patched run: pair, layer, position and, for heads, head. Costs nothing.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sonde.analysis.tracing import grids
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.core import errors
from sonde.models import model as models_model

Backend = Literal["sonde", "nnsight"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to sweep, and how.

    Attributes:
        layers: Layers to patch; None for all (in the residual stream also the one after the last).
        positions: Absolute positions to patch: for all pairs alike, or one list per pair; None for all.
        heads: Heads to patch, for `attention_heads`; None for all.
        batch_rows: Patched runs that go through the model together at most.
        backend: `sonde` resumes runs where they are patched; `nnsight` runs one trace per cell.
        skip_equal: Give a cell the clean result without a run where both inputs have the same bits there.
    """

    layers: Sequence[int] | None = None
    positions: Sequence[int] | Sequence[Sequence[int]] | None = None
    heads: Sequence[int] | None = None
    batch_rows: int = 256
    backend: Backend = "sonde"
    skip_equal: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A sweep spelled out.

    Attributes:
        component: What to patch.
        layers: Layers, in order.
        heads: Heads, in order; empty where the component has none.
        positions: Positions of each pair.
    """

    component: grids.Component
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]

    @property
    def variants(self) -> int:
        """Cells per layer and position."""
        return max(1, len(self.heads))

    @property
    def cells(self) -> int:
        """Cells in all."""
        return len(self.layers) * self.variants * sum(map(len, self.positions))


def plan(
    model: models_model.Model, pairs: Sequence[tracing_pairs.TracePair], component: str, settings: Settings
) -> Plan:
    """Spells a sweep out.

    Raises:
        RequestError: Something in it does not exist in the model or in a pair.
    """
    if component not in grids.COMPONENTS:
        raise errors.RequestError(
            f"no component {component!r}{errors.suggest(component, grids.COMPONENTS)}; known: {', '.join(grids.COMPONENTS)}"
        )
    if settings.batch_rows < 1:
        raise errors.RequestError(f"batch_rows must be at least 1, got {settings.batch_rows}")
    if settings.backend not in ("sonde", "nnsight"):
        raise errors.RequestError(f"backend must be 'sonde' or 'nnsight', got {settings.backend!r}")
    if settings.heads is not None and component != "attention_heads":
        raise errors.RequestError(
            f"{component} has no heads to choose from: leave heads out or sweep 'attention_heads'"
        )
    if not model.cfg.causal and settings.backend == "sonde":
        raise errors.RequestError(
            f"{model.cfg.model_name} is not causal: a patch reaches all positions, so runs cannot be resumed; use "
            "backend='nnsight'"
        )
    for pair in pairs:
        _check_tokens(model, pair)
    cfg = model.cfg
    last = cfg.n_layers + (component == "residual_stream")
    heads = _chosen(settings.heads, cfg.n_heads, "head") if component == "attention_heads" else ()
    positions = [
        _chosen(wanted, len(pair), f"position in {pair.name or 'a pair'}")
        for wanted, pair in zip(_per_pair(settings.positions, len(pairs)), pairs, strict=True)
    ]
    return Plan(component, _chosen(settings.layers, last, "layer"), heads, tuple(positions))  # type: ignore[arg-type]


def _check_tokens(model: models_model.Model, pair: tracing_pairs.TracePair) -> None:
    if len(pair) > model.cfg.n_ctx:
        raise errors.ContextError(f"{len(pair)} tokens do not fit the context of {model.cfg.n_ctx}")
    ids = (*pair.clean, *pair.counterfactual, pair.answer, pair.counterfactual_answer)
    wrong = [token for token in ids if not 0 <= token < model.cfg.d_vocab]
    if wrong:
        raise errors.RequestError(
            f"token {wrong[0]} in {pair.name or 'a pair'} is none of the model's: it has 0 to {model.cfg.d_vocab - 1}"
        )


def _per_pair(positions: Any, count: int) -> list[Sequence[int] | None]:
    if positions is None or all(isinstance(one, int | np.integer) for one in positions):
        return [positions] * count
    if len(positions) != count:
        raise errors.RequestError(f"positions for {len(positions)} pairs were given, and there are {count} pairs")
    return list(positions)


def _chosen(wanted: Sequence[int] | None, end: int, what: str) -> tuple[int, ...]:
    """The sorted choice, each once."""
    found = range(end) if wanted is None else sorted({int(one) for one in wanted})
    wrong = [one for one in found if not 0 <= one < end]
    if wrong:
        raise errors.RequestError(f"no {what} {wrong[0]}: expected 0 to {end - 1}")
    return tuple(found)
