"""Rankings of nodes that look at nothing but the shape of the model: what a method must beat.

    priors.scores("prior-mlps-first", graph)        # Scores of nodes

Circuits are not spread evenly over a model: in a layer there is one MLP for several heads, and what reads must come after what is read.
A ranking that knows only that can do better than chance, so the best of these is the floor of a leaderboard, not 0.5.

| name | first |
|---|---|
| `prior-mlps-first`, `prior-heads-first` | MLPs; heads |
| `prior-early-first`, `prior-late-first` | early layers; late layers |
| `prior-mlps-early`, `prior-mlps-late` | MLPs, and of them and of the heads those of early layers; of late layers |
| `prior-middle-first` | the layers in the middle |
| `prior-low-heads`, `prior-high-heads` | heads of low index; of high index; MLPs between them |

Costs nothing.
"""

from collections.abc import Callable, Mapping

import numpy as np

from sonde.circuits import graph as circuits_graph
from sonde.circuits import scores as circuits_scores
from sonde.core import errors

Key = Callable[[bool, float, float], float]
#: What a node scores, by whether it is an MLP, its layer from 0 to 1, and its index among the heads from 0 to 1.
_KEYS: Mapping[str, Key] = {
    "prior-mlps-first": lambda mlp, layer, head: float(mlp),
    "prior-heads-first": lambda mlp, layer, head: float(not mlp),
    "prior-early-first": lambda mlp, layer, head: 1 - layer,
    "prior-late-first": lambda mlp, layer, head: layer,
    "prior-mlps-early": lambda mlp, layer, head: 2 * mlp + 1 - layer,
    "prior-mlps-late": lambda mlp, layer, head: 2 * mlp + layer,
    "prior-middle-first": lambda mlp, layer, head: 1 - abs(2 * layer - 1),
    "prior-low-heads": lambda mlp, layer, head: 1 - head,
    "prior-high-heads": lambda mlp, layer, head: head,
}
NAMES = tuple(_KEYS)


def scores(name: str, graph: circuits_graph.Graph) -> circuits_scores.Scores:
    """A prior's scores of the nodes of a model; `input` has none.

    Raises:
        RequestError: There is no such prior.
    """
    if name not in _KEYS:
        raise errors.RequestError(f"no prior {name!r}; there are {', '.join(NAMES)}{errors.suggest(name, NAMES)}")
    values = [np.nan, *(1 + _KEYS[name](*_where(node, graph)) for node in graph.sources[1:])]
    return circuits_scores.Scores(
        graph=graph, method=name, level="node", values=np.array(values), metric="none", ablation="none",
        cost=circuits_scores.Cost(0.0, 0.0, 0.0),
    )  # fmt: skip


def _where(node: str, graph: circuits_graph.Graph) -> tuple[bool, float, float]:
    layer, _, head = node[1:].partition(".h")
    return node[0] == "m", _share(int(layer), graph.n_layers), _share(int(head), graph.n_heads) if head else 0.5


def _share(index: int, count: int) -> float:
    return index / (count - 1) if count > 1 else 0.5
