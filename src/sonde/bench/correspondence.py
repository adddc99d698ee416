"""Which node of a trained model does the work of which node of its program?

    places = correspondence.draw(task.circuit, graph, seed=0)           # heads and layers permuted, order kept
    places = correspondence.draw(task.circuit, graph, seed=0, same_place=True)
    correspondence.carried(task.circuit, places, graph)                 # the true circuit, in the trained model's names

In published benchmarks a node stands where it stood in the program, nearly always at head 0 or 1, so a method that
prefers early heads looks good. Here each seed has places of its own:

1. Nodes are taken in the order of computation. A node's place is drawn evenly from the free ones that come after the places
   of all nodes it reads, and leave room for the longest chain of nodes that read it.
2. Where none is free the draw starts again.

Costs microseconds.
"""

import random
from collections.abc import Mapping

from sonde.circuits import graph as circuits_graph
from sonde.core import errors

TRIES = 1000
Places = Mapping[str, str]


def draw(
    circuit: circuits_graph.Circuit, low: circuits_graph.Graph, *, seed: int = 0, same_place: bool = False
) -> dict[str, str]:
    """The trained model's node for each node of the circuit.

    Raises:
        RequestError: The circuit does not fit into the trained model.
    """
    nodes, reads = nodes_of(circuit), _reads(circuit)
    if same_place:
        places = {node: node for node in nodes}
        if not set(nodes) <= set(low.sources):
            raise errors.RequestError(f"the trained model has no {min(set(nodes) - set(low.sources))}")
        return places
    after: dict[str, int] = {}
    for node in reversed(nodes):  # how many stages must follow a node for those that read it, alternating as they do
        after[node] = max((_gap(node, reader) + after[reader] for reader in nodes if node in reads[reader]), default=0)
    rng = random.Random(f"places {seed}")
    for _ in range(TRIES):
        found = _attempt(nodes, reads, after, low, rng)
        if found is not None:
            return found
    raise errors.RequestError(
        f"a circuit of {len(nodes)} nodes does not fit into {low.n_layers} layers of {low.n_heads} heads in an order "
        "in which each node comes after those it reads: take more layers"
    )


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


def _stage(node: str) -> int:
    """When a node is computed: heads of layer l at 2 l, its MLP at 2 l + 1."""
    return 2 * int(node[1:].partition(".")[0]) + (node[0] == "m")


def _gap(node: str, reader: str) -> int:
    """The fewest stages between a node and one that reads it: 2 from head to head or MLP to MLP, else 1."""
    return 2 if node[0] == reader[0] else 1


def _attempt(
    nodes: tuple[str, ...],
    reads: Mapping[str, set[str]],
    after: Mapping[str, int],
    low: circuits_graph.Graph,
    rng: random.Random,
) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for node in nodes:
        first = max((_stage(found[other]) + 1 for other in reads[node]), default=0)
        last = 2 * low.n_layers - 1 - after[node]
        free = [
            place
            for place in low.sources[1:]
            if place[0] == node[0] and first <= _stage(place) <= last and place not in found.values()
        ]
        if not free:
            return None
        found[node] = rng.choice(free)
    return found
