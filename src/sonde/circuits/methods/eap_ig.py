"""Edge attribution patching with integrated gradients (Hanna, Pezzelle, Belinkov 2024, arXiv:2403.17806).

`eap-ig` takes the gradient not at the clean run alone but along the way from the corrupt input to the clean one:

1. For k = 1 … m, `input` writes its corrupt value plus k/m of the way to its clean one, and everything else follows. With
   `steps_from=0`, k = 0 … m - 1, as in the authors' code; at small m the two rank edges differently.
2. Gradients of what destinations read, averaged over k, times the change of the source from clean to corrupt.

With many steps the scores of the edges out of `input` add up to what corruption does to the loss.

`eap-ig-activations` moves what one group of sources writes (`input`, the heads of a layer, an MLP), group after group,
and takes the gradients of what lies behind it: each source's own line from corrupt to clean.

Costs m forward and backward passes, or m - 1 for each of twice as many groups as there are layers.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sonde.circuits import attributing, metrics, pairs, registry, running_options, running_plain, scores
from sonde.circuits import graph as circuits_graph
from sonde.core import errors
from sonde.models import model as models_model

STEPS = 5


@registry.register("eap-ig")
def eap_ig(
    model: models_model.Model,
    pairs: pairs.Pairs,
    metric: metrics.Which,
    *,
    steps: int = STEPS,
    steps_from: int = 1,
    **options: Any,
) -> scores.Scores:
    """Edge attribution patching with gradients averaged over `steps` inputs between corrupt and clean."""
    _check(steps)
    if steps_from not in (0, 1):
        raise errors.RequestError(
            f"steps_from is {steps_from}: expected 1 (ends at the clean run) or 0 (begins at the corrupt one)"
        )
    search = running_options.Search("eap-ig", model, pairs, metric, options)
    total = torch.zeros(search.runner.graph.allowed.shape, dtype=torch.float64)
    for batch in attributing.batches(search):
        clean = search.runner.contributions(batch, "clean") if steps_from == 0 else None
        change = None if clean is None else search.runner.ablated(batch) - clean
        for step in range(steps - 1 + steps_from, steps_from - 1, -1):
            share = None if step == steps else step / steps  # the last step is the clean run itself
            gradients = attributing.gradients(search.runner, batch, share=share)
            change = search.runner.ablated(batch) - gradients.trace.sources if change is None else change
            total += gradients.dot(change).double().cpu()
    settings: dict[str, Any] = {"steps": steps} if steps_from else {"steps": steps, "steps_from": steps_from}
    if steps == steps_from:  # at the clean run alone
        settings |= attributing.flat(search.runner)
    return attributing.finish(search, total / steps, settings=settings)


@registry.register("eap-ig-activations")
def eap_ig_activations(
    model: models_model.Model, pairs: pairs.Pairs, metric: metrics.Which, *, steps: int = STEPS, **options: Any
) -> scores.Scores:
    """Edge attribution patching with gradients averaged over `steps` values of each source between corrupt and clean."""
    _check(steps)
    search = running_options.Search("eap-ig-activations", model, pairs, metric, options)
    groups = list(_groups(search.runner.graph))
    total = torch.zeros(search.runner.graph.allowed.shape, dtype=torch.float64)
    for number, batch in enumerate(search.runner.batches):
        gradients, ablated = attributing.gradients(search.runner, batch), search.runner.ablated(batch)
        clean = gradients.trace.sources
        change = ablated - clean
        total += gradients.dot(change).double().cpu()
        for done, group in enumerate(groups, start=1):
            for step in range(1, steps):
                gradients = attributing.gradients(search.runner, batch, **_moved(group, ablated, clean, step / steps))
                total[group] += _rows(gradients, change, group).double().cpu()
            search.tell("eap-ig-activations", number * len(groups) + done, len(groups) * len(search.runner.batches))
    return attributing.finish(search, total / steps, settings={"steps": steps})


def _groups(graph: circuits_graph.Graph) -> Iterator[slice]:
    """Sources that move together: `input`, the heads of a layer, an MLP."""
    yield slice(0, 1)
    for layer in range(graph.n_layers):
        first = 1 + layer * (graph.n_heads + 1)
        yield slice(first, first + graph.n_heads)
        yield slice(first + graph.n_heads, first + graph.n_heads + 1)


def _moved(
    group: slice,
    ablated: Float[Tensor, "source pair pos d_model"],
    clean: Float[Tensor, "source pair pos d_model"],
    share: float,
) -> dict[str, Any]:
    """How the runner is told to hold a group somewhere between its ablated and its clean values."""
    if group.start == 0:
        return {"share": share}
    held = {index: ablated[index] + share * (clean[index] - ablated[index]) for index in range(group.start, group.stop)}
    return {"outputs": held}


def _rows(
    gradients: running_plain.Gradients, change: Float[Tensor, "source pair pos d_model"], group: slice
) -> Float[Tensor, "some destination"]:
    """The scores of the edges out of some sources, which are behind each other or side by side."""
    found = change.new_zeros(group.stop - group.start, len(gradients.graph.destinations))
    flat = change[group].flatten(1)
    for where, gradient in gradients.stages():
        if gradients.graph.reads[where.start] >= group.stop:
            found[:, where] = flat @ gradient.flatten(1).T
    return found


def _check(steps: int) -> None:
    if steps < 1:
        raise errors.RequestError(f"steps is {steps}: expected at least 1; 5 is usual")
