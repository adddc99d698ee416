"""Which node of a trained model does the work of which node of its program?

    places = correspondence.draw(task.circuit, graph, name="case 3", seed=0)    # heads and layers permuted, order kept
    places = correspondence.draw(task.circuit, graph, same_place=True)
    correspondence.carried(task.circuit, places, graph)                 # the true circuit, in the trained model's names

In published benchmarks a node stands where it stood in the program, nearly always at head 0 or 1, so a method that
prefers early heads looks good. Here each seed of each case has places of its own, drawn evenly from all layouts in which every node comes
after those it reads:

1. All ways to give each node a layer are listed; there are at most some hundreds.
2. One is drawn, weighted by how many ways there are to choose the heads in its layers.
3. The heads of each layer are drawn evenly.

Costs a millisecond.
"""

import collections
import math
import random
from collections.abc import Iterator, Mapping

from sonde.circuits import graph as circuits_graph
from sonde.core import errors

Places = Mapping[str, str]


def draw(
    circuit: circuits_graph.Circuit,
    low: circuits_graph.Graph,
    *,
    name: str = "",
    seed: int = 0,
    same_place: bool = False,
) -> dict[str, str]:
    """The trained model's node for each node of the circuit; name and seed fix the draw.

    Raises:
        RequestError: The circuit does not fit into the trained model.
    """
    nodes = nodes_of(circuit)
    if same_place:
        if not set(nodes) <= set(low.sources):
            raise errors.RequestError(f"the trained model has no {min(set(nodes) - set(low.sources))}")
        return {node: node for node in nodes}
    every = list(layers(circuit, low))
    if not every:
        raise errors.RequestError(
            f"a circuit of {len(nodes)} nodes does not fit into {low.n_layers} layers of {low.n_heads} heads in an order "
            "in which each node comes after those it reads: take more layers"
        )
    rng = random.Random(f"places {name} {seed}")
    (chosen,) = rng.choices(every, weights=[ways(one, low) for one in every])
    heads = {layer: rng.sample(range(low.n_heads), low.n_heads) for layer in range(low.n_layers)}
    return {
        node: f"m{layer}" if node[0] == "m" else f"a{layer}.h{heads[layer].pop()}" for node, layer in chosen.items()
    }


def layers(circuit: circuits_graph.Circuit, low: circuits_graph.Graph) -> Iterator[dict[str, int]]:
    """Every way to give each node a layer so that it comes after those it reads and all find room."""
    nodes, reads = nodes_of(circuit), _reads(circuit)

    def rest(found: dict[str, int]) -> Iterator[dict[str, int]]:
        if len(found) == len(nodes):
            yield dict(found)
            return
        node = nodes[len(found)]
        room = low.n_heads if node[0] == "a" else 1
        for layer in range(low.n_layers):
            beside = sum(one[0] == node[0] and at == layer for one, at in found.items())
            if beside < room and all(_after(node, layer, other, found[other]) for other in reads[node]):
                yield from rest(found | {node: layer})

    return rest({})


def ways(chosen: Mapping[str, int], low: circuits_graph.Graph) -> int:
    """How many layouts have these layers: the ways to choose heads."""
    heads = collections.Counter(layer for node, layer in chosen.items() if node[0] == "a")
    return math.prod(math.perm(low.n_heads, count) for count in heads.values())


def nodes_of(circuit: circuits_graph.Circuit) -> tuple[str, ...]:
    """The heads and MLPs of a circuit, in the order of computation."""
    return tuple(name for name in circuit.nodes if name not in (circuits_graph.INPUT, circuits_graph.LOGITS))


def carried(circuit: circuits_graph.Circuit, places: Places, low: circuits_graph.Graph) -> circuits_graph.Circuit:
    """The circuit with every node at its place in the trained model."""
    names = []
    for name in circuit.names:
        source, _, destination = name.partition("->")
        node, bracket, letter = destination.partition("<")
        names.append(f"{places.get(source, source)}->{places.get(node, node)}{bracket}{letter}")
    return circuits_graph.Circuit.of(low, names)


def _reads(circuit: circuits_graph.Circuit) -> dict[str, set[str]]:
    """The nodes that each node reads."""
    reads: dict[str, set[str]] = {node: set() for node in nodes_of(circuit)}
    for name in circuit.merged().names:
        source, _, destination = name.partition("->")
        if destination in reads and source in reads:
            reads[destination].add(source)
    return reads


def _after(node: str, layer: int, other: str, before: int) -> bool:
    """Whether a node in a layer is computed after another one: heads of layer l at 2 l, its MLP at 2 l + 1."""
    return 2 * layer + (node[0] == "m") > 2 * before + (other[0] == "m")
