"""Activation patching of everything, one at a time: what does the loss do if this edge, or this node, alone is cut?

`exact` cuts one edge at a time, `exact-node` all edges that leave a source. The score is the rise of the loss: no
approximation, so it is what the gradient methods are judged by. It sees one cut at a time: an edge whose work another one
takes over scores nothing.

Costs a part of a forward pass per edge, from its destination upwards (GPT-2 small: 32,491), or a forward pass per node.
"""

from typing import Any

import numpy as np
import torch

from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import registry, running, running_cuts, running_memory, running_options, running_plain
from sonde.circuits import scores as circuits_scores
from sonde.models import model as models_model


@registry.register("exact")
def exact(
    model: models_model.Model, pairs: circuits_pairs.Pairs, metric: Any = "logit_diff", **options: Any
) -> circuits_scores.Scores:
    """Exact edge patching: the rise of the loss when one edge alone is cut, for every edge (brute force).

    Args:
        model: The model.
        pairs: Clean and corrupt inputs.
        metric: What runs are judged by.
        **options: `ablation`, `batch_size`, `seed`, `tell`.

    Raises:
        RequestError: Memory does not suffice.
        AnalysisError: The metric is constant.
    """
    search = running_options.Search("exact", model, pairs, metric, options)
    runner, graph = search.runner, search.runner.graph
    runner.check_moves()
    running_memory.refuse(
        runner.sizes.state(runner.batch_size),
        model.device,
        what=f"the state of {graph.n_edges} edges x {runner.batch_size} pairs",
        advice="reduce batch_size, or use shorter pairs",
    )
    total, done, of = np.zeros(graph.allowed.shape), 0, graph.n_edges * len(runner.batches)
    for batch in runner.batches:
        state = running_cuts.State(runner, batch, graph.allowed)
        for i, j in np.argwhere(graph.allowed).tolist():
            cut = state.cut(i, j)
            if cut.metric is not None:
                total[i, j] += float((cut.metric - state.metric).double().sum())
            done += 1
            search.tell("cutting edges", done, of)
    return search.scores(runner.sign * total / len(runner.pairs))


@registry.register("exact-node")
def exact_node(
    model: models_model.Model, pairs: circuits_pairs.Pairs, metric: Any = "logit_diff", **options: Any
) -> circuits_scores.Scores:
    """Exact node patching: the rise of the loss when everything that one source writes is ablated (brute force).

    Args:
        model: The model.
        pairs: Clean and corrupt inputs.
        metric: What runs are judged by.
        **options: `ablation`, `batch_size`, `seed`, `tell`.

    Raises:
        AnalysisError: The metric is constant.
    """
    search = running_options.Search("exact-node", model, pairs, metric, options)
    runner = search.runner
    runner.check_moves()
    total, done = np.zeros(len(runner.graph.sources)), 0
    for batch in runner.batches:
        before = runner.batch_metric(batch, runner.reference(batch))
        for index in range(len(total)):
            change = _without(runner, batch, index) - before
            total[index] += float(change.double().sum())
            done += 1
            search.tell("ablating nodes", done, len(total) * len(runner.batches))
    return search.scores(runner.sign * total / len(runner.pairs))


def _without(runner: running.Runner, batch: running.Batch, index: int) -> torch.Tensor:
    """The metric of every pair if one source wrote its ablated value."""
    ablated = runner.ablated(batch)[index]
    start = ablated if index == 0 else runner.start(batch, "clean")
    outputs = {index: ablated} if index else {}
    with runner.alone():
        run = running_plain.trace(runner.network, runner.graph, start, outputs=outputs)
        logits = runner.network.unembed(runner.at_places(batch, run.final[None])[0])
        runner.spent.forwards += len(batch.pairs)
        return runner.batch_metric(batch, logits)
