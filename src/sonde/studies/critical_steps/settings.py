"""What is to be studied: settings that fix the result, and their checks. Costs nothing."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch

from sonde import store
from sonde.core import errors
from sonde.models import config as model_config

ABLATIONS = ("mean", "zero")
PARTS: Mapping[str, tuple[str, ...]] = {
    "layer": ("hook_attn_out", "hook_mlp_out"),
    "attn": ("hook_attn_out",),
    "mlp": ("hook_mlp_out",),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a study has come.

    Attributes:
        stage: `play`, `means`, `screen`, `rollouts` or `heads`.
        done: Work items finished, of `total`.
        total: See `done`.
    """

    stage: str
    done: int
    total: int


class Options(TypedDict, total=False):
    """Options of a study; see `Settings` for those that fix its result.

    Attributes:
        run: Name of the run; one that is there already is taken up.
        runs_dir: Folder of all runs; $SONDE_RUNS or ./runs.
        on_progress: Called with a Progress after every work item.
    """

    episodes: int
    layers: Sequence[int] | None
    steps: Sequence[int] | None
    part: str
    ablation: str
    horizon: int
    cells: int | None
    rollouts: int
    heads: int
    alpha: float
    seed: int
    max_steps: int | None
    wave: int
    generation: Mapping[str, Any]
    options: Mapping[str, Any]
    run: str | None
    runs_dir: Path | str | None
    on_progress: Callable[[Progress], None] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that fixes the result.

    Attributes:
        environment: A preset with selectors; None for a function.
        source: The run whose episodes are studied; None if they are played first.
        model: The model's name.
        episodes: How many.
        layers: The layers looked at.
        steps: The steps looked at; None: all that at least half of the episodes go on from.
        part: What is ablated: all that a `layer` adds to the stream, or its `attn` or `mlp` alone.
        ablation: Set to the `mean` over all steps and episodes (the stream stays where the model knows it), or `zero`.
        horizon: How many responses after the step's own the screening looks at.
        cells: Cells to roll out because they stand out, and as many random ones; None: one for every step.
        rollouts: Continuations per cell and episode, and as many under the sham.
        heads: Cells whose heads are screened; 0: none.
        alpha: Chance of any false claim that is accepted.
        seed: Fixes tasks, sampling and the choice of random cells.
        max_steps: Stop an episode after so many steps.
        wave: Rows of a batch; part of what fixes the last bits.
        generation: Sampling settings of the client.
        options: Options of the environment.
        threads: Threads of torch.
    """

    environment: str | None
    source: str | None = None
    model: str
    episodes: int
    layers: tuple[int, ...]
    steps: tuple[int, ...] | None = None
    part: str = "layer"
    ablation: str = "mean"
    horizon: int = 1
    cells: int | None = None
    rollouts: int = 8
    heads: int = 2
    alpha: float = 0.05
    seed: int = 0
    max_steps: int | None = None
    wave: int = 16
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    threads: int = dataclasses.field(default_factory=torch.get_num_threads)

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        least = {
            "episodes": 2,
            "horizon": 0,
            "cells": 1,
            "rollouts": 1,
            "heads": 0,
            "seed": 0,
            "max_steps": 2,
            "wave": 1,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < low):
                raise errors.RequestError(f"{name} must be a whole number from {low} up, got {value!r}")
        for name, known in (("part", tuple(PARTS)), ("ablation", ABLATIONS)):
            if getattr(self, name) not in known:
                near = errors.suggest(str(getattr(self, name)), known)
                raise errors.RequestError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}{near}"
                )
        if not 0 < self.alpha < 1:
            raise errors.RequestError(f"alpha must be between 0 and 1, got {self.alpha!r}")
        if not self.layers or len(set(self.layers)) < len(self.layers):
            raise errors.RequestError(f"layers must be different ones, at least one, got {list(self.layers)}")
        if self.steps is not None and (not self.steps or min(self.steps) < 0):
            raise errors.RequestError(f"steps count from 0, and at least one is needed, got {list(self.steps)}")

    def sites(self, layer: int) -> tuple[str, ...]:
        """The Sites that are ablated together in a layer."""
        return tuple(f"blocks.{layer}.{kind}" for kind in PARTS[self.part])

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return store.jsonable({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


def layers_of(asked: Sequence[int] | None, cfg: model_config.ModelConfig) -> tuple[int, ...]:
    """The layers asked for, in order; all if none are named.

    Raises:
        SiteError: The model has no such layer.
    """
    if asked is None:
        return tuple(range(cfg.n_layers))
    for layer in asked:
        if not 0 <= layer < cfg.n_layers:
            raise errors.SiteError(f"no layer {layer}: {cfg.model_name} has layers 0 to {cfg.n_layers - 1}")
    return tuple(sorted(asked))
