"""How much does each edge (or node) matter, according to one method, and which circuit does that make?

    scores = registry.find(model, pairs, metric="logit_diff", method="eap-ig")
    scores.circuit(n_edges=100)
    scores.ranking()[:10]

Scores of edges are a matrix, sources by destinations, nan where there is no edge; scores of nodes one value per source.
An edge between scored nodes counts as its weaker end. Ties are broken by the canonical order of the edges, so a ranking
depends on nothing but the values. Costs a sort of the edges.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from sonde.circuits import graph as circuits_graph
from sonde.core import errors

FORMAT = "sonde-scores"
Level = Literal["edge", "node"]


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What a method spent.

    Attributes:
        forwards: Whole-model forward passes of one pair each; a pass through part of the layers is a fraction.
        backwards: Backward passes likewise.
        seconds: Time on the clock.
    """

    forwards: float
    backwards: float
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scores:
    """What a method found.

    Attributes:
        graph: Of which model.
        method: Its name.
        level: Whether it scored edges or nodes.
        values: `source destination`, nan where there is no edge; or `source`, nan where the method says nothing.
        metric: Of what.
        ablation: What an edge carries when it is cut.
        cost: What it took.
        settings: The method's other options.
        kept: The circuit, where the method decides by itself.
    """

    graph: circuits_graph.Graph
    method: str
    level: Level
    values: Float[np.ndarray, "source *destination"]
    metric: str
    ablation: str
    cost: Cost
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kept: circuits_graph.Circuit | None = None

    def __post_init__(self) -> None:
        """Refuses values of another shape than the graph's."""
        full = self.graph.allowed.shape
        expected = full if self.level == "edge" else full[:1]
        if self.values.shape != expected:
            raise errors.RequestError(f"{self.level} scores of this graph are {expected}, got {self.values.shape}")

    @property
    def note(self) -> str:
        """What the method says of its scores, such as that they mean nothing; empty if nothing."""
        return str(self.settings.get("note", ""))

    def edge_values(self, *, absolute: bool = True) -> Float[np.ndarray, "source destination"]:
        """A value for every edge, nan where there is none; of node scores, that of the weaker end."""
        values = np.abs(self.values) if absolute else self.values
        if self.level == "edge":
            return np.where(self.graph.allowed, values, np.nan)
        index = {name: i for i, name in enumerate(self.graph.sources)}
        # `input` without a score, and `logits`, never stand in the way of an edge.
        ends = values.copy()
        ends[0] = math.inf if np.isnan(ends[0]) else ends[0]
        reading = np.full(len(self.graph.destinations), math.inf)
        for j, name in enumerate(self.graph.destinations):
            if name != circuits_graph.LOGITS:
                reading[j] = np.max([values[index[node]] for node in self.graph.nodes_of(name)])
        return np.where(self.graph.allowed, np.minimum(ends[:, None], reading[None]), np.nan)

    def circuit(
        self,
        *,
        n_edges: int | None = None,
        threshold: float | None = None,
        share: float | None = None,
        absolute: bool = True,
    ) -> circuits_graph.Circuit:
        """The best edges: so many, those of at least so much, or such a share of all; without either, what was kept.

        Args:
            n_edges: How many.
            threshold: The least value that is kept.
            share: Part of all edges, 0 to 1.
            absolute: Whether a large negative value counts as much as a positive one.

        Raises:
            RequestError: Not exactly one of the three is given, or it is out of range.
        """
        given = [value for value in (n_edges, threshold, share) if value is not None]
        if not given and self.kept is not None:
            return self.kept
        if len(given) != 1:
            raise errors.RequestError(f"give one of n_edges, threshold and share to choose a circuit, got {len(given)}")
        if share is not None:
            if not 0 <= share <= 1:
                raise errors.RequestError(f"share is a part of all edges, 0 to 1; got {share}")
            n_edges = round(share * self.graph.n_edges)
        values = self.edge_values(absolute=absolute)
        if n_edges is None:
            return circuits_graph.Circuit(self.graph, values >= threshold)
        if not 0 <= n_edges <= self.graph.n_edges:
            raise errors.RequestError(f"the graph has {self.graph.n_edges} edges; asked for {n_edges}")
        edges = np.zeros_like(self.graph.allowed)
        i, j = _best_first(values)
        edges[i[:n_edges], j[:n_edges]] = True
        return circuits_graph.Circuit(self.graph, edges & self.graph.allowed)

    def ranking(self, *, absolute: bool = True) -> tuple[tuple[str, float], ...]:
        """Edges (or nodes) with their values, best first; those without a value are left out."""
        sources, destinations = self.graph.sources, self.graph.destinations
        if self.level == "node":
            key = np.abs(self.values) if absolute else self.values
            order = np.argsort(-key, kind="stable")
            return tuple((sources[i], float(self.values[i])) for i in order if not np.isnan(key[i]))
        i, j = _best_first(self.edge_values(absolute=absolute))
        return tuple(
            (f"{sources[a]}->{destinations[b]}", float(self.values[a, b]))
            for a, b in zip(i, j, strict=True)
            if not np.isnan(self.values[a, b])
        )

    def node_values(self) -> Float[np.ndarray, "source"]:
        """A value for every source; of edge scores, the largest absolute one of its outgoing edges."""
        if self.level == "node":
            return self.values
        return np.nan_to_num(np.abs(self.edge_values())).max(axis=1)

    def merged(self) -> "Scores":
        """The same scores in the view in which a head is one destination: the largest absolute value of its edges."""
        values = self.graph.merge(self.values) if self.level == "edge" else self.values
        kept = self.kept.merged() if self.kept is not None else None
        return dataclasses.replace(self, graph=self.graph.merged(), values=values, kept=kept)

    def to_json(self) -> dict[str, Any]:
        """The scores as JSON data; null where there is no value."""
        rows = self.values if self.level == "edge" else self.values[None]
        plain = [[None if math.isnan(value) else value for value in row] for row in rows.tolist()]
        return {
            "format": FORMAT,
            "version": 1,
            "graph": self.graph.to_json(),
            "method": self.method,
            "level": self.level,
            "values": plain if self.level == "edge" else plain[0],
            "metric": self.metric,
            "ablation": self.ablation,
            "cost": dataclasses.asdict(self.cost),
            "settings": dict(self.settings),
            "kept": None if self.kept is None else self.kept.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Scores":
        """The scores that `to_json` wrote.

        Raises:
            RequestError: The data is something else.
        """
        if data.get("format") != FORMAT or data.get("version") != 1:
            raise errors.RequestError(
                f"these are no scores: expected format {FORMAT!r} version 1, got {data.get('format')!r} "
                f"version {data.get('version')!r}"
            )
        return cls(
            graph=circuits_graph.Graph.from_json(data["graph"]),
            method=data["method"],
            level=data["level"],
            values=np.array(data["values"], dtype=np.float64),
            metric=data["metric"],
            ablation=data["ablation"],
            cost=Cost(**data["cost"]),
            settings=data["settings"],
            kept=None if data["kept"] is None else circuits_graph.Circuit.from_json(data["kept"]),
        )


def _best_first(values: Float[np.ndarray, "source destination"]) -> tuple[np.ndarray, np.ndarray]:
    """Indices of edges by falling value, nan last; equal ones in canonical order."""
    flat = values.T.ravel()
    order = np.argsort(-flat, kind="stable")  # nan sorts last
    j, i = np.unravel_index(order, values.T.shape)
    return i, j
