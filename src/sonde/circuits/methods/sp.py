"""Subnetwork probing: which part of the network, learned by gradient descent, is enough?

After Cao, Sanh and Rush 2021, arXiv:2104.03514.

1. Every part has a parameter theta. A mask between 0 and 1 is drawn from its hard-concrete distribution: with u uniform,
   s = sigmoid((log u - log(1 - u) + theta) / beta), stretched to (gamma, zeta) and clipped to [0, 1].
2. Loss = the metric's loss of the run with that mask + `penalty` x the mean probability that a mask is not 0,
   sigmoid(theta - beta log(-gamma / zeta)).
3. Adam, `steps` times. A batch per step if there are several, in turn.
4. A part's score is its expected mask, and it is kept if that is above one half: nothing hangs on one draw.

`sp` has a part for the queries, keys and values of each head (all edges into them) and for what each MLP writes (all edges
out of it); a head scores as the best of its three, an MLP as itself, `input` is always there. `sp-edges` has a part for
every edge. Costs a masked forward and a backward pass per step, about five times a plain one.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sonde.circuits import attributing, metrics, pairs, registry, running_options, scores
from sonde.circuits import graph as circuits_graph
from sonde.core import errors
from sonde.models import model as models_model

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
FIRST = 0.9  # where masks begin
DRAWS = 513  # points of u for the expected mask
HALF = 0.5
STEPS, RATE, PENALTY = 200, 0.1, 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Recipe:
    steps: int
    rate: float
    penalty: float

    def __post_init__(self) -> None:
        """Refuses what cannot be trained with."""
        if self.steps < 1 or self.rate <= 0 or self.penalty < 0:
            raise errors.RequestError(
                f"steps={self.steps}, rate={self.rate}, penalty={self.penalty}: expected at least 1, more than 0, at least 0"
            )


@registry.register("sp")
def sp(
    model: models_model.Model,
    pairs: pairs.Pairs,
    metric: metrics.Which,
    *,
    steps: int = STEPS,
    rate: float = RATE,
    penalty: float = PENALTY,
    **options: Any,
) -> scores.Scores:
    """Subnetwork probing of nodes: masks of queries, keys, values and MLPs, learned."""
    recipe = _Recipe(steps, rate, penalty)
    search = running_options.Search("sp", model, pairs, metric, options)
    nodes = _Nodes(search.runner.graph)
    expected, told = _learn(search, nodes.count, nodes.edges, recipe)
    kept = circuits_graph.Circuit(search.runner.graph, nodes.kept(expected > HALF))
    return attributing.finish(search, nodes.by_source(expected), settings=told, kept=kept)


@registry.register("sp-edges")
def sp_edges(
    model: models_model.Model,
    pairs: pairs.Pairs,
    metric: metrics.Which,
    *,
    steps: int = STEPS,
    rate: float = RATE,
    penalty: float = PENALTY,
    **options: Any,
) -> scores.Scores:
    """Subnetwork probing of edges: a mask of every edge, learned."""
    recipe = _Recipe(steps, rate, penalty)
    search = running_options.Search("sp-edges", model, pairs, metric, options)
    allowed = torch.from_numpy(search.runner.graph.allowed)

    def edges(masks: Float[Tensor, "part"]) -> Float[Tensor, "source destination"]:
        return torch.zeros(allowed.shape).masked_scatter(allowed, masks)

    expected, told = _learn(search, int(allowed.sum()), edges, recipe)
    values = np.full(allowed.shape, np.nan)
    values[search.runner.graph.allowed] = expected
    kept = circuits_graph.Circuit(search.runner.graph, np.nan_to_num(values) > HALF)
    return attributing.finish(search, values, settings=told, kept=kept)


def hard_concrete(theta: Float[Tensor, "*part"], u: Float[Tensor, "*part"]) -> Float[Tensor, "*part"]:
    """The mask that a uniform number between 0 and 1 gives."""
    soft = torch.sigmoid((u.log() - (-u).log1p() + theta) / BETA)
    return (soft * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def expected_mask(theta: Float[Tensor, "part"]) -> Float[Tensor, "part"]:
    """The mean of the mask over its distribution."""
    u = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    each = torch.zeros(theta.shape, dtype=torch.float64)
    for one in u:
        each += hard_concrete(theta.double(), one.expand(theta.shape))
    return each / DRAWS


def _learn(
    search: running_options.Search,
    count: int,
    edges: Callable[[Tensor], Tensor],
    recipe: _Recipe,
) -> tuple[Float[np.ndarray, "part"], dict[str, Any]]:
    """Trains the masks, and gives what is expected of each, and the settings with the last loss."""
    generator = torch.Generator().manual_seed(search.options.seed)
    theta = torch.full((count,), math.log(FIRST / (1 - FIRST)), requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=recipe.rate)
    batches, shift = search.runner.batches, BETA * math.log(-GAMMA / ZETA)
    loss = math.nan
    for step in range(recipe.steps):
        batch = batches[step % len(batches)]
        u = torch.rand(count, generator=generator).clamp(1e-6, 1 - 1e-6)
        masks = edges(hard_concrete(theta, u))
        loss, gradient = attributing.mask_gradient(search.runner, batch, masks)
        whole = len(search.runner.pairs) / len(batch.pairs)  # the loss is a share of the mean over all pairs
        optimizer.zero_grad()
        penalty = recipe.penalty * torch.sigmoid(theta - shift).mean()
        ((masks * gradient.cpu()).sum() * whole + penalty).backward()
        optimizer.step()
        loss *= whole
        search.tell(search.method, step + 1, recipe.steps)
    expected = expected_mask(theta.detach()).numpy()
    return expected, {**dataclasses.asdict(recipe), "last_loss": loss, "share_kept": float((expected > HALF).mean())}


class _Nodes:
    """Which part each destination and each source belongs to."""

    def __init__(self, graph: circuits_graph.Graph) -> None:
        self._graph = graph
        mlps = [name for name in graph.sources if name.startswith("m")]
        readers = [name for name in graph.destinations if name.endswith(">")]
        parts = {name: number for number, name in enumerate([*readers, *mlps])}
        self.count = len(parts)
        # Where a source or destination has no part, an extra one that is always there.
        self._columns = [self.count if name in mlps else parts.get(name, self.count) for name in graph.destinations]
        self._rows = [parts.get(name, self.count) for name in graph.sources]
        self._parts_of: dict[str, list[int]] = {name: [parts[name]] for name in mlps}
        for name in readers:
            for node in graph.nodes_of(name):
                self._parts_of.setdefault(node, []).append(parts[name])

    def edges(self, masks: Float[Tensor, "part"]) -> Float[Tensor, "source destination"]:
        """The mask of every edge: that of its source times that of its destination."""
        whole = torch.cat([masks, masks.new_ones(1)])
        return whole[self._rows][:, None] * whole[self._columns][None]

    def by_source(self, expected: Float[np.ndarray, "part"]) -> Float[np.ndarray, "source"]:
        """A value for every source; nan for `input`."""
        values = [max(expected[self._parts_of[name]], default=np.nan) for name in self._graph.sources[1:]]
        return np.array([np.nan, *values])

    def kept(self, parts: Bool[np.ndarray, "part"]) -> Bool[np.ndarray, "source destination"]:
        """The edges of a circuit in which these parts are: none from or to a node that has no part left."""
        graph = self._graph
        alive = {name: bool(parts[own].any()) for name, own in self._parts_of.items()}
        rows = np.array([alive.get(name, True) for name in graph.sources])
        whole: Int[np.ndarray, "part"] = np.append(parts, True)
        columns = whole[self._columns] & np.array([alive.get(name, True) for name in graph.destinations])
        return rows[:, None] & columns[None] & graph.allowed
