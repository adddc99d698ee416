"""How does a circuit reach other programs? As nodes and edges with their properties, and as GraphML.

    exporting.save_graphml(circuit, "circuit.graphml", scores=scores)     # networkx, Gephi, Cytoscape and yEd read it
    flat = exporting.flat(circuit, scores=scores, view="merged")

Two views. `split`: a head's query, key and value inputs are nodes of their own (`a3.h1<q>`), and an edge of kind `inside`
leads from each to the heads that read it, so that a path in the file is a path in the model; key and value inputs belong
to a key-value head, which several query heads may share. `merged`: the three are one node, and an edge into keys or
values counts for every head that shares them; of merged scores the one farthest from zero stays.

Costs milliseconds; the same circuit gives the same bytes.
"""

import dataclasses
import re
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np

from sonde.circuits import graph, scores
from sonde.core import errors
from sonde.store import disk

View = Literal["split", "merged"]
VIEWS = ("split", "merged")
NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
_NAME = re.compile(r"(?P<end>input|logits)|m(?P<mlp>\d+)|a(?P<layer>\d+)\.h(?P<head>\d+)(?:<(?P<part>[qkv])>)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node.

    Attributes:
        name: As in the graph: `input`, `a3.h1`, `a3.h1<q>`, `m3`, `logits`.
        kind: `input`, `head`, `mlp`, `logits`, or `q`, `k`, `v` for an input of a head.
        layer: Its layer; None for input and logits.
        head: The head, or the key-value head for `k` and `v`.
    """

    name: str
    kind: str
    layer: int | None
    head: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """An edge between two nodes.

    Attributes:
        source: Where it begins.
        target: Where it ends.
        part: What it goes into: `q`, `k`, `v`, `head` (merged), `mlp`, `logits`, or `inside` a head.
        score: Its score, nan if there is none.
    """

    source: str
    target: str
    part: str
    score: float

    @property
    def name(self) -> str:
        """As in the graph."""
        return f"{self.source}->{self.target}"


@dataclasses.dataclass(frozen=True, slots=True)
class Flat:
    """A circuit as lists, in the order of the graph."""

    view: View
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def node(name: str) -> Node:
    """What a node's name says.

    Raises:
        RequestError: It is no name of a node.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise errors.RequestError(f"{name!r} is no node; names are input, a3.h1, a3.h1<q>, m3, logits")
    if found["end"]:
        return Node(name, found["end"], None, None)
    if found["mlp"]:
        return Node(name, "mlp", int(found["mlp"]), None)
    return Node(name, found["part"] or "head", int(found["layer"]), int(found["head"]))


def flat(circuit: graph.Circuit, *, scores: scores.Scores | None = None, view: View = "split") -> Flat:
    """The circuit's edges, with their scores if given, and the nodes that they touch.

    Raises:
        RequestError: The scores belong to another graph, or the view is unknown.
    """
    if view not in VIEWS:
        raise errors.RequestError(f"no view {view!r}; there are {' and '.join(VIEWS)}{errors.suggest(view, VIEWS)}")
    if scores is not None and scores.graph != circuit.graph:
        raise errors.RequestError("circuit and scores belong to different graphs; take both from the same model")
    kept = _merged(_kept(circuit, scores), circuit.graph) if view == "merged" else _kept(circuit, scores)
    if view == "split":
        kept += _inside(kept, circuit.graph)
    touched = {name for edge in kept for name in (edge.source, edge.target)}
    order = sorted(map(node, touched), key=_place)
    return Flat(view, tuple(order), tuple(kept))


def to_graphml(circuit: graph.Circuit, *, scores: scores.Scores | None = None, view: View = "split") -> str:
    """The circuit as a GraphML document."""
    shown = flat(circuit, scores=scores, view=view)
    ElementTree.register_namespace("", NAMESPACE)
    root = ElementTree.Element(f"{{{NAMESPACE}}}graphml")
    keys = (("node", "kind", "string"), ("node", "layer", "int"), ("node", "head", "int"))
    for owner, name, kind in (*keys, ("edge", "part", "string"), ("edge", "score", "double")):
        fields = {"id": f"{owner}-{name}", "for": owner, "attr.name": name, "attr.type": kind}
        ElementTree.SubElement(root, f"{{{NAMESPACE}}}key", fields)
    body = ElementTree.SubElement(root, f"{{{NAMESPACE}}}graph", {"id": f"circuit-{view}", "edgedefault": "directed"})
    for one in shown.nodes:
        element = ElementTree.SubElement(body, f"{{{NAMESPACE}}}node", {"id": one.name})
        _data(element, "node", {"kind": one.kind, "layer": one.layer, "head": one.head})
    for one in shown.edges:
        fields = {"id": one.name, "source": one.source, "target": one.target}
        element = ElementTree.SubElement(body, f"{{{NAMESPACE}}}edge", fields)
        _data(element, "edge", {"part": one.part, "score": one.score if np.isfinite(one.score) else None})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def save_graphml(
    circuit: graph.Circuit, path: str | Path, *, scores: scores.Scores | None = None, view: View = "split"
) -> Path:
    """Writes the circuit as GraphML, and returns the path."""
    target = Path(path)
    with disk.explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        disk.write_atomic(target, to_graphml(circuit, scores=scores, view=view).encode())
    return target


def _kept(circuit: graph.Circuit, scores: scores.Scores | None) -> list[Edge]:
    values = np.full_like(circuit.edges, np.nan, dtype=np.float64)
    if scores is not None:  # of node scores, that of the weaker end
        values = scores.edge_values(absolute=scores.level == "node")
    sources, targets = circuit.graph.sources, circuit.graph.destinations
    return [
        Edge(sources[i], targets[j], node(targets[j]).kind, float(values[i, j]))
        for j, i in zip(*np.nonzero(circuit.edges.T), strict=True)
    ]


def _merged(edges: list[Edge], whole: graph.Graph) -> list[Edge]:
    found: dict[tuple[str, str], Edge] = {}
    for edge in edges:
        for target in whole.nodes_of(edge.target):
            part = "head" if edge.part in "qkv" else edge.part
            known = found.get((edge.source, target))
            if known is None or abs(edge.score) > abs(known.score):
                found[edge.source, target] = Edge(edge.source, target, part, edge.score)
    return list(found.values())


def _inside(edges: list[Edge], whole: graph.Graph) -> list[Edge]:
    """From the inputs of heads to the heads of the circuit that read them."""
    sources = {edge.source for edge in edges}
    inputs = dict.fromkeys(edge.target for edge in edges if edge.part in "qkv")
    return [
        Edge(name, head, "inside", float("nan")) for name in inputs for head in whole.nodes_of(name) if head in sources
    ]


def _place(one: Node) -> tuple[int, int, str, int]:
    layer = {"input": -1, "logits": 10**9}.get(one.kind, one.layer if one.layer is not None else 0)
    return layer, one.kind == "mlp", one.kind, one.head or 0


def _data(element: ElementTree.Element, owner: str, values: dict[str, str | int | float | None]) -> None:
    for name, value in values.items():
        if value is not None:
            found = ElementTree.SubElement(element, f"{{{NAMESPACE}}}data", {"key": f"{owner}-{name}"})
            found.text = repr(value) if isinstance(value, float) else str(value)
