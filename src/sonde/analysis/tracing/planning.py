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
        together: For each pair groups of positions; a group is patched in one run, beside the single positions.
        heads: Heads to patch, for `attention_heads`; None for all.
        batch_rows: Patched runs that go through the model together at most.
        backend: `sonde` resumes runs where they are patched; `nnsight` runs one trace per cell.
        skip_equal: Give a cell the clean result without a run where both inputs have the same bits there.
    """

    layers: Sequence[int] | None = None
    positions: Sequence[int] | Sequence[Sequence[int]] | None = None
    together: Sequence[Sequence[Sequence[int]]] | None = None
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
        groups: Positions of each pair that are patched together.
    """

    component: grids.Component
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def columns(self, index: int) -> dict[int, tuple[int, ...]]:
        """What is patched together in a pair, by column: a position by itself, groups as -1, -2 and so on."""
        groups = self.groups[index] if self.groups else ()
        return {at: (at,) for at in self.positions[index]} | {
            -number: one for number, one in enumerate(groups, start=1)
        }

    @property
    def variants(self) -> int:
        """Cells per layer and position."""
        return max(1, len(self.heads))

    @property
    def cells(self) -> int:
        """Cells in all."""
        return len(self.layers) * self.variants * (sum(map(len, self.positions)) + sum(map(len, self.groups)))


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
    layers = _chosen(settings.layers, last, "layer")
    return Plan(component, layers, heads, tuple(positions), _groups(settings.together, pairs))  # type: ignore[arg-type]


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


def _groups(
    together: Sequence[Sequence[Sequence[int]]] | None, pairs: Sequence[tracing_pairs.TracePair]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The groups of each pair, sorted inside."""
    if together is None:
        return ()
    if len(together) != len(pairs):
        raise errors.RequestError(f"groups of {len(together)} pairs were given, and there are {len(pairs)} pairs")
    if not all(group for groups in together for group in groups):
        raise errors.RequestError("a group of positions to patch together needs at least one position")
    return tuple(
        tuple(_chosen(group, len(pair), f"position in {pair.name or 'a pair'}") for group in groups)
        for groups, pair in zip(together, pairs, strict=True)
    )


def _chosen(wanted: Sequence[int] | None, end: int, what: str) -> tuple[int, ...]:
    """The sorted choice, each once."""
    found = range(end) if wanted is None else sorted({int(one) for one in wanted})
    wrong = [one for one in found if not 0 <= one < end]
    if wrong:
        raise errors.RequestError(f"no {what} {wrong[0]}: expected 0 to {end - 1}")
    return tuple(found)
