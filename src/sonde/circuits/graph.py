"""Which edges does a model have, and which of them make a circuit?

    graph = Graph.of(model)
    graph.n_edges                                             # SmolLM2: 70,651
    circuit = Circuit.of(graph, ["input->a0.h1<q>", "a0.h1->logits"])

Names are those of EAP-IG. Sources write to the residual stream: `input` (token embedding, and learned positions where
there are any), query heads `a0.h1`, MLPs `m0`. Destinations read it: `a0.h1<q>` per query head, `a0.h1<k>` and
`a0.h1<v>` per key-value head (with grouped queries fewer than heads), `m0`, and `logits` (the final residual stream).
An edge goes from every source to every destination that comes later; where attention and MLP run in parallel there is
none between them. Biases belong to their component, but attention's output bias belongs to no head: it is a constant.

Sources are in the order in which they are computed, so a destination reads the first few of them: `graph.reads`.
Costs milliseconds and one boolean matrix, sources by destinations.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Shaped

from sonde.core import errors
from sonde.models import model as models_model

INPUT, LOGITS = "input", "logits"
FORMAT = "sonde-circuit"
_PLACE = re.compile(r"(?:a(?P<attn>\d+)\.h(?P<head>\d+)(?:<(?P<letter>[qkv])>)?|m(?P<mlp>\d+))")


class _Names(NamedTuple):
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    reads: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """The sources, destinations and edges of a model.

    Attributes:
        n_layers: Layers.
        n_heads: Query heads in each.
        n_key_value_heads: Key-value heads in each.
        parallel: Attention and MLP of a layer both read its input.
        split: Queries, keys and values of a head are destinations of their own; else the head is one destination.
    """

    n_layers: int
    n_heads: int
    n_key_value_heads: int
    parallel: bool = False
    split: bool = True

    @classmethod
    def of(cls, model: models_model.Model) -> "Graph":
        """The graph of a loaded model."""
        cfg = model.cfg
        return cls(cfg.n_layers, cfg.n_heads, cfg.n_key_value_heads, parallel=model.parts.family.resid_mid is None)

    @property
    def sources(self) -> tuple[str, ...]:
        """Who writes to the stream, in the order of computation."""
        return _names(self).sources

    @property
    def destinations(self) -> tuple[str, ...]:
        """Who reads it, in the order of computation."""
        return _names(self).destinations

    @property
    def reads(self) -> tuple[int, ...]:
        """How many sources, counted from the first, each destination reads."""
        return _names(self).reads

    @property
    def allowed(self) -> Bool[np.ndarray, "source destination"]:
        """Where there is an edge."""
        return np.arange(len(self.sources))[:, None] < np.array(self.reads)[None]

    @property
    def edges(self) -> tuple[str, ...]:
        """Every edge, destination by destination from input to output: the canonical order."""
        return tuple(
            f"{source}->{name}"
            for name, reads in zip(self.destinations, self.reads, strict=True)
            for source in self.sources[:reads]
        )

    @property
    def n_edges(self) -> int:
        """How many there are."""
        return sum(self.reads)

    def edge(self, name: str) -> tuple[int, int]:
        """Indices of source and destination of an edge.

        Raises:
            RequestError: There is no such edge.
        """
        source, arrow, destination = name.partition("->")
        sources, destinations = self.sources, self.destinations
        if not arrow:
            raise errors.RequestError(f"{name!r} is no edge: write source->destination, as in {self.edges[0]!r}")
        for part, known, what in ((source, sources, "source"), (destination, destinations, "destination")):
            if part not in known:
                raise errors.RequestError(f"no {what} {part!r} in this graph{errors.suggest(part, known)}")
        i, j = sources.index(source), destinations.index(destination)
        if i >= self.reads[j]:
            raise errors.RequestError(f"no edge {name!r}: {source} is not computed before {destination} reads")
        return i, j

    def nodes_of(self, destination: str) -> tuple[str, ...]:
        """The sources whose reading a destination is: a head, the heads that share a key or value, an MLP."""
        found = _PLACE.fullmatch(destination)
        if found is None or found["mlp"] is not None or found["letter"] is None:
            return (destination,)
        group = self.n_heads // self.n_key_value_heads if found["letter"] in "kv" else 1
        first = int(found["head"]) * group
        return tuple(f"a{found['attn']}.h{head}" for head in range(first, first + group))

    def merged(self) -> "Graph":
        """The view in which a head is one destination."""
        return dataclasses.replace(self, split=False)

    def merge(self, values: Shaped[np.ndarray, "source destination"]) -> Shaped[np.ndarray, "source merged"]:
        """Values of this graph's edges in the merged view: any of them for a mask, else the largest absolute value.

        A head's keys and values are those of its group. nan where there is no edge.
        """
        if not self.split:
            return values if values.dtype == bool else np.abs(values)
        whole = self.merged()
        columns = {name: index for index, name in enumerate(whole.destinations)}
        found = np.zeros((len(whole.sources), len(columns)), dtype=values.dtype)
        for j, name in enumerate(self.destinations):
            for node in self.nodes_of(name):
                column = found[:, columns[node]]
                np.maximum(column, np.nan_to_num(np.abs(values[:, j])), out=column)
        if found.dtype != bool:
            found[~whole.allowed] = np.nan
        return found

    def to_json(self) -> dict[str, Any]:
        """The graph as JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Graph":
        """The graph that `to_json` wrote.

        Raises:
            RequestError: The data is something else.
        """
        fields = {field.name: field.type for field in dataclasses.fields(cls)}
        sizes = ("n_layers", "n_heads", "n_key_value_heads")
        good = set(data) == set(fields) and all(type(data[name]) is int and data[name] > 0 for name in sizes)
        if not good or not all(type(data[name]) is bool for name in ("parallel", "split")):
            raise errors.RequestError(f"this is no graph: expected the fields {', '.join(fields)}, got {dict(data)}")
        return cls(**data)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Circuit:
    """Chosen edges of a graph.

    Attributes:
        graph: The graph.
        edges: Which edges are in.
    """

    graph: Graph
    edges: Bool[np.ndarray, "source destination"]

    def __post_init__(self) -> None:
        """Refuses edges that the graph does not have."""
        if self.edges.shape != (shape := (len(self.graph.sources), len(self.graph.destinations))):
            raise errors.RequestError(
                f"the mask of a circuit is {shape}, sources x destinations; got {self.edges.shape}"
            )
        if (beyond := self.edges & ~self.graph.allowed).any():
            i, j = (int(index[0]) for index in np.nonzero(beyond))
            name = f"{self.graph.sources[i]}->{self.graph.destinations[j]}"
            raise errors.RequestError(
                f"the mask has {name}, which is no edge of the graph: clear it with & graph.allowed"
            )

    @classmethod
    def of(cls, graph: Graph, names: Iterable[str]) -> "Circuit":
        """The circuit of these edges."""
        edges = np.zeros((len(graph.sources), len(graph.destinations)), dtype=bool)
        for name in names:
            edges[graph.edge(name)] = True
        return cls(graph, edges)

    @classmethod
    def full(cls, graph: Graph) -> "Circuit":
        """Every edge."""
        return cls(graph, graph.allowed)

    @classmethod
    def empty(cls, graph: Graph) -> "Circuit":
        """No edge."""
        return cls(graph, np.zeros_like(graph.allowed))

    def __len__(self) -> int:
        """How many edges."""
        return int(self.edges.sum())

    @property
    def names(self) -> tuple[str, ...]:
        """Its edges in canonical order."""
        sources, destinations = self.graph.sources, self.graph.destinations
        return tuple(f"{sources[i]}->{destinations[j]}" for j, i in zip(*np.nonzero(self.edges.T), strict=True))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Sources that an edge of it leaves or enters, from input to output; `logits` last."""
        touched = {self.graph.sources[i] for i in np.flatnonzero(self.edges.any(axis=1))}
        for j in np.flatnonzero(self.edges.any(axis=0)):
            touched.update(self.graph.nodes_of(self.graph.destinations[j]))
        return tuple(name for name in (*self.graph.sources, LOGITS) if name in touched)

    def merged(self) -> "Circuit":
        """The same circuit in the view in which a head is one destination."""
        return Circuit(self.graph.merged(), self.graph.merge(self.edges))

    def to_json(self) -> dict[str, Any]:
        """The circuit as JSON data."""
        return {"format": FORMAT, "version": 1, "graph": self.graph.to_json(), "edges": list(self.names)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Circuit":
        """The circuit that `to_json` wrote.

        Raises:
            RequestError: The data is something else, or names an edge that the graph does not have.
        """
        if data.get("format") != FORMAT or data.get("version") != 1:
            raise errors.RequestError(
                f"this is no circuit: expected format {FORMAT!r} version 1, got {data.get('format')!r} "
                f"version {data.get('version')!r}"
            )
        return cls.of(Graph.from_json(data["graph"]), data["edges"])


@functools.lru_cache(maxsize=32)
def _names(graph: Graph) -> _Names:
    sources, destinations, reads = [INPUT], [], []
    for layer in range(graph.n_layers):
        heads = [f"a{layer}.h{head}" for head in range(graph.n_heads)]
        groups = [f"a{layer}.h{head}" for head in range(graph.n_key_value_heads)]
        if graph.split:
            readers = [f"{name}<q>" for name in heads] + [f"{name}<{kind}>" for kind in "kv" for name in groups]
        else:
            readers = heads
        before = len(sources)
        destinations += [*readers, f"m{layer}"]
        reads += [before] * len(readers) + [before if graph.parallel else before + len(heads)]
        sources += [*heads, f"m{layer}"]
    return _Names(tuple(sources), (*destinations, LOGITS), (*reads, len(sources)))
