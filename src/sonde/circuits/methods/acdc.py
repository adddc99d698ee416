"""Automated circuit discovery: cut edges one by one, and leave cut what is not missed.

Conmy et al. 2023 (arXiv 2304.14997):

1. Start with every edge. The loss is the metric's: the divergence from the full model (`kl`) in the paper, or `mse`.
2. Go through the destinations from output to input, and through the sources of each from late to early.
3. Cut the edge, on top of those already cut. If the loss rises by less than tau, it stays cut.

The score of an edge is the rise when it was tried; `kept` is the circuit at tau. The result depends on the order.

Decisions are those of a masked forward pass per edge (`fast=False`), at a fraction of its cost: only what a cut changes is
run (see `running_cuts`). Both round differently, so a rise within `CLOSE` of tau is measured again by the masked forward
passes, and these decide. Memory: what every source writes and every destination reads, for all pairs.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sonde.circuits import graph as circuits_graph
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import registry, running, running_cuts, running_memory, running_options
from sonde.circuits import scores as circuits_scores
from sonde.core import errors
from sonde.models import model as models_model

#: Of a loss of about 1; larger losses round more coarsely.
CLOSE = 1e-5
#: Edges cut before everything is run anew: rounding errors of the updates must not pile up.
UPDATES = 100
_Order = list[tuple[int, int]]


@registry.register("acdc")
def acdc(
    model: models_model.Model,
    pairs: circuits_pairs.Pairs,
    metric: Any = "kl",
    *,
    tau: float = 0.01,
    fast: bool = True,
    **options: Any,
) -> circuits_scores.Scores:
    """ACDC: cuts edges one by one, from output to input, and leaves cut what raises the loss by less than tau.

    Args:
        model: The model.
        pairs: Clean and corrupt inputs.
        metric: What runs are judged by.
        tau: The rise of the loss from which on an edge is kept.
        fast: Whether to run only what a cut changes; else a whole masked forward pass per edge, the reference.
        **options: `ablation`, `batch_size`, `seed`, `tell`.

    Raises:
        RequestError: tau is not a number, or memory does not suffice.
        AnalysisError: The metric is constant.
    """
    if not np.isfinite(tau):
        raise errors.RequestError(f"tau is {tau}: expected a number, such as 0.01")
    search = running_options.Search("acdc", model, pairs, metric, options)
    search.runner.check_moves()
    rises, mask = _fast(search, tau) if fast else _reference(search, tau)
    kept = circuits_graph.Circuit(search.runner.graph, mask)
    return search.scores(rises, settings={"tau": tau, "fast": fast}, kept=kept)


def order(graph: circuits_graph.Graph) -> _Order:
    """The edges in the order in which they are tried: destinations from the output, sources from the latest."""
    return [(i, j) for j in reversed(range(len(graph.destinations))) for i in reversed(range(graph.reads[j]))]


Removed = tuple[Float[np.ndarray, "source destination"], Bool[np.ndarray, "source destination"]]


def _reference(search: running_options.Search, tau: float) -> Removed:
    runner = search.runner
    mask = runner.graph.allowed
    rises = np.zeros(mask.shape)
    loss, edges = float(runner.loss_of(mask)), order(runner.graph)
    for done, edge in enumerate(edges):
        mask[edge] = False
        tried = float(runner.loss_of(mask))
        rises[edge] = tried - loss
        if tried - loss < tau:
            loss = tried
        else:
            mask[edge] = True
        search.tell("cutting edges", done + 1, len(edges))
    return rises, mask


def _fast(search: running_options.Search, tau: float) -> Removed:
    runner = search.runner
    running_memory.refuse(
        runner.sizes.state(len(runner.pairs)),
        runner.model.device,
        what=f"the state of {runner.graph.n_edges} edges x {len(runner.pairs)} pairs",
        advice="use fewer or shorter pairs",
    )
    present = _Present(runner)
    rises, edges, fresh = np.zeros(present.mask.shape), order(runner.graph), present.mask.sum()
    for done, (i, j) in enumerate(edges):
        rises[i, j] = present.attempt((i, j), tau)
        if (left := present.mask.sum()) <= fresh - UPDATES:
            fresh = left
            present.rebuild()
        search.tell("cutting edges", done + 1, len(edges))
    return rises, present.mask


class _Present:
    """The edges not yet cut, and a run of every batch with them."""

    def __init__(self, runner: running.Runner) -> None:
        self.runner = runner
        self.mask = runner.graph.allowed
        self.states = [running_cuts.State(runner, batch, self.mask) for batch in runner.batches]
        self.loss = self._mean([state.metric for state in self.states])

    def rebuild(self) -> None:
        """Runs everything anew."""
        for state in self.states:
            state.rebuild()
        self.loss = self._mean([state.metric for state in self.states])

    def attempt(self, edge: tuple[int, int], tau: float) -> float:
        """Cuts an edge if the loss then rises by less than tau; returns the rise."""
        cuts = [state.cut(*edge) for state in self.states]
        if all(cut.metric is None for cut in cuts):  # nothing of it reaches the logits
            tried = self.loss
        else:
            pairs = zip(cuts, self.states, strict=True)
            tried = self._mean([state.metric if cut.metric is None else cut.metric for cut, state in pairs])
        rise = tried - self.loss
        if abs(rise - tau) <= CLOSE * (1 + abs(tried)):
            rise = self._measured(edge)
        if rise < tau:
            self.mask[edge] = False
            for state, cut in zip(self.states, cuts, strict=True):
                state.keep(*edge, cut)
            self.loss = tried
        return rise

    def _measured(self, edge: tuple[int, int]) -> float:
        """The rise by masked forward passes."""
        without = self.mask.copy()
        without[edge] = False
        return float(self.runner.loss_of(without)) - float(self.runner.loss_of(self.mask))

    def _mean(self, values: list[Any]) -> float:
        total = sum(float(value.double().sum()) for value in values)
        return self.runner.sign * total / len(self.runner.pairs)
