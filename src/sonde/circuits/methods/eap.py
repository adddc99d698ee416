"""Edge attribution patching: what would cutting an edge do, to first order?

After Syed, Rager and Conmy 2023, arXiv:2310.10348.

1. Run the corrupt inputs and keep what every source writes.
2. Run the clean inputs forward and backward once: what every source writes, and the gradient of the loss with respect to
   what every destination reads.
3. The score of an edge is the change of its source times the gradient of its destination, summed over pairs and positions.

That is the derivative of the loss when the edge alone is cut a little. It vanishes where the loss is at its minimum: with
`kl`, `mse` or `mae`, and on models that are perfect; the settings then hold a note. Costs two forward passes and a backward
one for all edges together.
"""

from typing import Any

import torch

from sonde.circuits import attributing, metrics, pairs, registry, running_options, scores
from sonde.models import model as models_model


@registry.register("eap")
def eap(model: models_model.Model, pairs: pairs.Pairs, metric: metrics.Which, **options: Any) -> scores.Scores:
    """Edge attribution patching: change of the source times gradient at the destination, at the clean run."""
    search = running_options.Search("eap", model, pairs, metric, options)
    total = torch.zeros(search.runner.graph.allowed.shape, dtype=torch.float64)
    for batch in attributing.batches(search):
        gradients = attributing.gradients(search.runner, batch)
        total += gradients.dot(search.runner.ablated(batch) - gradients.trace.sources).double().cpu()
    return attributing.finish(search, total, settings=attributing.flat(search.runner))
