"""Integrated gradients of the edge mask: all edges are cut together, little by little. What was each one's part?

1. Give every edge the same mask, from 0 (all cut) to 1 (none is), at the nodes of a Gauss-Legendre rule.
2. Take the gradient of the loss with respect to every edge's own mask there.
3. The score of an edge is minus the integral.

The scores of all edges add up to what cutting them all does to the loss. This is not EAP-IG: there the inputs are moved,
here every edge. Costs a masked forward and a backward pass per step, about five times a plain one.
"""

from typing import Any

import numpy as np
import torch

from sonde.circuits import attributing, metrics, pairs, registry, running_options, scores
from sonde.core import errors
from sonde.models import model as models_model


@registry.register("mask-ig")
def mask_ig(
    model: models_model.Model, pairs: pairs.Pairs, metric: metrics.Which, *, steps: int = 5, **options: Any
) -> scores.Scores:
    """Gradient of the loss by each edge's mask, integrated while all edges are cut together."""
    if steps < 1:
        raise errors.RequestError(f"steps is {steps}: expected at least 1; 5 is usual")
    search = running_options.Search("mask-ig", model, pairs, metric, options)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    total = torch.zeros(search.runner.graph.allowed.shape, dtype=torch.float64)
    for batch in attributing.batches(search):
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            _, gradient = attributing.mask_gradient(search.runner, batch, torch.full(total.shape, float(node)))
            total -= weight * gradient.double().cpu()
    return attributing.finish(search, total, settings={"steps": steps})
