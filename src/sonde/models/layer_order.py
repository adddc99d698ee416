"""Layers in another order: skip, repeat, permute, run side by side.

The model's list of layers is replaced for the length of a `with` block and put back whatever happens. Weights are
shared, so it costs nothing but the layers that run.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sonde.core import interventions
from sonde.models import taps
from sonde.models import wiring as model_wiring


class SideBySide(nn.Module):
    """Runs several layers on the same input and adds up, or averages, what each of them changes."""

    def __init__(self, layers: list[nn.Module], combine: interventions.Combine) -> None:
        """Shares the layers."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.share = 1.0 if combine == "sum" else 1.0 / len(layers)
        self.attention_type = getattr(layers[0], "attention_type", "full_attention")

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The input plus the sum, or the mean, of the changes."""
        changes = [taps.first_tensor(layer(hidden_states, *args, **kwargs)) - hidden_states for layer in self.layers]
        return hidden_states + sum(changes) * self.share


@contextlib.contextmanager
def applied(parts: model_wiring.Parts, spec: interventions.LayerOrder | None) -> Iterator[None]:
    """Runs the model in another order inside the block."""
    if spec is None:
        yield
        return
    path, _, name = parts.family.layers.rpartition(".")
    owner = parts.hf.get_submodule(path)
    layers: Any = getattr(owner, name)
    config: Any = parts.hf.config
    kinds = getattr(config, "layer_types", None)
    stages = spec.stages
    modules = [
        layers[stage[0]] if len(stage) == 1 else SideBySide([layers[i] for i in stage], spec.combine)
        for stage in stages
    ]
    depth = config.num_hidden_layers
    try:
        setattr(owner, name, nn.ModuleList(modules))
        config.num_hidden_layers = len(modules)
        if kinds is not None:
            config.layer_types = [kinds[stage[0]] for stage in stages]
        yield
    finally:
        setattr(owner, name, layers)
        config.num_hidden_layers = depth
        if kinds is not None:
            config.layer_types = kinds
