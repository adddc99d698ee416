"""Where does each node and edge of a circuit stand in a picture? Layers from the bottom up, heads across.

1. A node's place is its layer and head; an MLP stands at the right of its layer, above its heads, because it reads them.
2. Heads that share keys and values (grouped queries) have a small square below them, where edges into those end.
3. An edge is a cubic curve from the top of its source to the bottom of its destination, bent a little to one side, so that
   it does not run through the nodes between. Its width grows with its score.

Costs milliseconds.
"""

import dataclasses
import math

from sonde.circuits import exporting, graph, scores
from sonde.core import errors

COLUMN, MARGIN, TOP = 64.0, 78.0, 76.0
RADIUS, DOT, SQUARE = 15.0, 2.5, 5.0
THIN, THICK = 0.7, 4.0
NEAR = 60.0
MOST_EDGES = 3000


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A node with its place: x to the right and y down, in pixels."""

    name: str
    label: str
    kind: str
    x: float
    y: float
    kept: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """An edge: the four points of a cubic curve, and how it is drawn."""

    name: str
    part: str
    score: float
    points: tuple[tuple[float, float], ...]
    width: float


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """All places of a picture, edges from the weakest to the strongest."""

    width: float
    height: float
    marks: tuple[Mark, ...]
    curves: tuple[Curve, ...]
    rows: tuple[tuple[str, float], ...]
    title: str

    @property
    def parts(self) -> list[str]:
        """What edges go into, each once."""
        return sorted({curve.part for curve in self.curves})


def of(
    circuit: graph.Circuit,
    *,
    scores: scores.Scores | None = None,
    view: exporting.View = "split",
    title: str = "",
) -> Layout:
    """Gives every node and edge its place.

    Raises:
        RequestError: There are too many edges to see any.
    """
    if len(circuit) > MOST_EDGES:
        raise errors.RequestError(
            f"{len(circuit)} edges cannot be told apart in a picture, {MOST_EDGES} are the most; draw a smaller circuit"
        )
    whole, flat = circuit.graph, exporting.flat(circuit, scores=scores, view=view)
    shared = view == "split" and whole.n_key_value_heads < whole.n_heads
    touched = {one.source for one in flat.edges} | {name for one in flat.edges for name in _ends(one, whole, shared)}
    marks = {one.name: one for one in _marks(whole, touched)}
    if shared:
        marks |= {one.name: one for one in _groups(flat, whole, marks)}
    width = 2 * MARGIN + COLUMN * whole.n_heads
    rows = tuple((f"layer {layer}", marks[f"a{layer}.h0"].y) for layer in range(whole.n_layers))
    height = marks["input"].y + RADIUS + 16
    return Layout(width, height, tuple(marks.values()), tuple(_curves(flat, whole, marks)), rows, title)


def _marks(whole: graph.Graph, touched: set[str]) -> list[Mark]:
    """Every node of the model."""
    high, middle = _row(whole), MARGIN + COLUMN * (whole.n_heads / 2)

    def of(name: str, label: str, x: float, row: float) -> Mark:
        return Mark(name, label, exporting.node(name).kind, x, TOP + RADIUS + high * row, name in touched)

    found = [of(graph.LOGITS, "logits", middle, 0.0)]
    for layer in range(whole.n_layers):
        row = whole.n_layers - layer
        heads = range(whole.n_heads)
        found += [of(f"a{layer}.h{at}", f"{layer}.{at}", MARGIN + COLUMN * (at + 0.5), row + 0.15) for at in heads]
        found.append(of(f"m{layer}", f"m{layer}", MARGIN + COLUMN * (whole.n_heads + 0.5), row - 0.35))
    return [*found, of(graph.INPUT, "input", middle, whole.n_layers + 1.25)]


def _row(whole: graph.Graph) -> float:
    """Height of a layer: more where there are few."""
    return min(max(1200 / (whole.n_layers + 2), 66.0), 130.0)


def _groups(flat: exporting.Flat, whole: graph.Graph, marks: dict[str, Mark]) -> list[Mark]:
    """A small square below the heads that share keys and values, for those of the circuit."""
    found = {}
    for one in flat.edges:
        if one.part in ("k", "v"):
            name, heads = _group(one.target), [marks[head] for head in whole.nodes_of(one.target)]
            x = sum(head.x for head in heads) / len(heads)
            found[name] = Mark(name, "", "group", x, heads[0].y + RADIUS + 9, True)
    return list(found.values())


def _group(target: str) -> str:
    place = exporting.node(target)
    return f"a{place.layer}.kv{place.head}"


def _ends(edge: exporting.Edge, whole: graph.Graph, shared: bool) -> tuple[str, ...]:
    """The nodes that an edge makes part of the circuit: not those that only might read a shared key."""
    return () if shared and edge.part in ("k", "v") else whole.nodes_of(edge.target)


def _curves(flat: exporting.Flat, whole: graph.Graph, marks: dict[str, Mark]) -> list[Curve]:
    """The edges, the weakest first."""
    top = max((abs(one.score) for one in flat.edges if math.isfinite(one.score)), default=0.0)
    found: dict[tuple[str, str, str], Curve] = {}
    for edge in flat.edges:
        group = _group(edge.target) if edge.part in ("k", "v") else ""
        if edge.part == "inside":
            start = _group(edge.source) if exporting.node(edge.source).kind in ("k", "v") else ""
            if start in marks:
                found[start, edge.target, "inside"] = _curve(edge, marks[start], marks[edge.target], 1.0)
            continue
        for end in [group] if group in marks else [whole.nodes_of(edge.target)[0]]:
            share = abs(edge.score) / top if top and math.isfinite(edge.score) else 0.25
            found[edge.source, end, edge.part] = _curve(edge, marks[edge.source], marks[end], THIN + THICK * share)
    return sorted(found.values(), key=lambda one: one.width)


def _curve(edge: exporting.Edge, start: Mark, end: Mark, width: float) -> Curve:
    """From the top of one node to the bottom of another, bent to the outside; queries, keys, values side by side."""
    aside = {"q": -5.0, "k": 0.0, "v": 5.0}.get(edge.part, 0.0)
    x0, y0 = start.x, start.y - (SQUARE if start.kind == "group" else RADIUS)
    x1, y1 = end.x + aside, end.y + (SQUARE if end.kind == "group" else RADIUS)
    high, along = y0 - y1, abs(x1 - x0)
    bend = 0.42 * COLUMN * math.tanh(max(high - NEAR, 0.0) / (2 * NEAR)) * math.exp(-along / COLUMN)
    side = 1.0 if (x0 + x1) / 2 >= MARGIN + COLUMN else -1.0
    lift = max(0.4 * high, 8.0)
    points = ((x0, y0), (x0 + side * bend, y0 - lift), (x1 + side * bend, y1 + lift), (x1, y1))
    return Curve(edge.name, edge.part, edge.score, points, width)
