"""Head importance: how steeply does the loss rise when a node is turned down?

After Michel, Levy and Neubig 2019, arXiv:1905.10650.

1. Run clean inputs forward and backward once, and corrupt inputs forward.
2. For each pair, the change of a node from clean to corrupt times the gradient of the loss with respect to what it writes:
   the sum over all that read it. With `ablation="zero"` that is the derivative by a mask on the node, as in the paper.
3. The score is the mean over pairs of the absolute value. With `normalize`, each layer's heads are divided by their norm.

Like EAP it sees only the slope at the clean run. Scores nodes: heads, MLPs and `input`. Costs what EAP costs.
"""

from typing import Any

import torch

from sonde.circuits import attributing, metrics, pairs, registry, running_options, scores
from sonde.models import model as models_model


@registry.register("hisp")
def hisp(
    model: models_model.Model,
    pairs: pairs.Pairs,
    metric: metrics.Which,
    *,
    normalize: bool = False,
    **options: Any,
) -> scores.Scores:
    """Head importance: the mean over pairs of the absolute slope of the loss along a node's change."""
    search = running_options.Search("hisp", model, pairs, metric, options)
    graph = search.runner.graph
    total = torch.zeros(len(graph.sources), dtype=torch.float64)
    for batch in attributing.batches(search):
        gradients = attributing.gradients(search.runner, batch)
        change = search.runner.ablated(batch) - gradients.trace.sources
        each = change.new_zeros(change.shape[:2])
        for where, gradient in gradients.stages():
            reads = graph.reads[where.start]
            each[:reads] += torch.einsum("spld,pld->sp", change[:reads], gradient.sum(dim=0))
        total += each.abs().sum(dim=1).double().cpu()
    if normalize:
        for layer in range(graph.n_layers):
            first = 1 + layer * (graph.n_heads + 1)
            heads = total[first : first + graph.n_heads]
            heads /= heads.norm().clamp(min=torch.finfo(heads.dtype).tiny)
    return attributing.finish(search, total, settings={"normalize": normalize, **attributing.flat(search.runner)})
