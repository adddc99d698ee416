"""Scores and circuits in the JSON of MIB, the mechanistic interpretability benchmark.

    mib.write("eap-ig.json", scores, circuit=scores.circuit(n_edges=100), d_model=model.cfg.d_model)
    scores, circuit = mib.read("eap-ig.json", graph.Graph.of(model))

    {"cfg": {"n_layers": 2, "n_heads": 4, "parallel_attn_mlp": false, "d_model": 64},
     "nodes": {"input": {"in_graph": true}, "a0.h0": {"in_graph": false}, …},
     "edges": {"input->a0.h0<q>": {"score": 0.5, "in_graph": true}, …}}

Edges are called as here. MIB knows no shared keys and values: there every query head has edges of its own into them. Written, each head
of a group gets the group's score; read, a group gets the score of its heads that is farthest from zero, and a circuit must have all or
none of them. Costs milliseconds, a second for 70,000 edges.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sonde.circuits import graph, scores
from sonde.core import errors
from sonde.store import disk

METHOD = "mib"


def to_json(found: scores.Scores, *, circuit: graph.Circuit | None = None, d_model: int) -> dict[str, Any]:
    """Scores of every edge, and which edges and nodes a circuit has: what was kept, or none, if it is left out.

    Raises:
        RequestError: Scores and circuit belong to different graphs, or queries, keys and values are not apart.
    """
    whole, chosen = found.graph, circuit or found.kept or graph.Circuit.empty(found.graph)
    if chosen.graph != whole or not whole.split:
        raise errors.RequestError(
            "MIB's file needs scores and circuit of one graph with queries, keys and values apart"
        )
    values, columns = (
        found.edge_values(absolute=found.level == "node"),
        {name: j for j, name in enumerate(whole.destinations)},
    )
    rows = {name: i for i, name in enumerate(whole.sources)}
    edges = {
        f"{source}->{theirs}": {
            "score": _plain(values[rows[source], columns[ours]]),
            "in_graph": bool(chosen.edges[rows[source], columns[ours]]),
        }
        for ours in whole.destinations
        for theirs in _theirs(ours, whole)
        for source in whole.sources[: whole.reads[columns[ours]]]
    }
    inside = set(chosen.nodes)
    return {
        "cfg": {
            "n_layers": whole.n_layers, "n_heads": whole.n_heads, "parallel_attn_mlp": whole.parallel, "d_model": d_model,
        },
        "nodes": {name: {"in_graph": name in inside} for name in (*whole.sources, graph.LOGITS)},
        "edges": edges,
    }  # fmt: skip


def from_json(data: Any, whole: graph.Graph) -> tuple[scores.Scores, graph.Circuit]:
    """Scores (nan where there is none) and circuit.

    Args:
        data: What a file holds.
        whole: The graph of the model that it is about.

    Raises:
        RequestError: It is no such data, is about another model, or names edges that the graph does not have.
    """
    edges = data.get("edges") if isinstance(data, dict) else None
    if not isinstance(edges, dict) or not edges or not isinstance(data.get("cfg"), dict):
        raise errors.RequestError("this is no file of MIB: expected cfg, nodes and edges")
    expected = {"n_layers": whole.n_layers, "n_heads": whole.n_heads, "parallel_attn_mlp": whole.parallel}
    for name, value in expected.items():
        if data["cfg"].get(name, value) != value:
            raise errors.RequestError(f"it is about a model with {name} {data['cfg'][name]!r:.40}, expected {value}")
    values, kept = np.full(whole.allowed.shape, np.nan), np.zeros(whole.allowed.shape, dtype=int)
    ours = {theirs: name for name in whole.destinations for theirs in _theirs(name, whole)}
    for name, one in edges.items():
        source, arrow, destination = name.partition("->")
        if not arrow or not isinstance(one, Mapping):
            raise errors.RequestError(f"{name!r:.80} is no edge with score and in_graph")
        i, j = whole.edge(f"{source}->{ours.get(destination, destination)}")
        score, inside = one.get("score"), one.get("in_graph", False)
        if (score is not None and type(score) not in (int, float)) or type(inside) is not bool:
            raise errors.RequestError(
                f"{name!r:.80} has score {score!r:.40} and in_graph {inside!r:.40}, expected a number and true or false"
            )
        if score is not None and not abs(values[i, j]) >= abs(score):
            values[i, j] = score
        kept[i, j] += inside
    for j, name in enumerate(whole.destinations):
        odd = [i for i in range(whole.reads[j]) if 0 < kept[i, j] < len(_theirs(name, whole))]
        if odd:
            raise errors.RequestError(
                f"{whole.sources[odd[0]]}->{name} is in the circuit for {kept[odd[0], j]} of the {len(_theirs(name, whole))} heads that share it: "
                "this model reads shared keys and values as a whole"
            )
    circuit = graph.Circuit(whole, kept > 0)
    cost = scores.Cost(0.0, 0.0, 0.0)
    return scores.Scores(
        graph=whole, method=METHOD, level="edge", values=values, metric="", ablation="", cost=cost, kept=circuit
    ), circuit


def write(path: str | Path, found: scores.Scores, *, circuit: graph.Circuit | None = None, d_model: int) -> Path:
    """Writes scores and circuit to a file; returns its path."""
    target, data = Path(path), to_json(found, circuit=circuit, d_model=d_model)
    with disk.explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        disk.write_atomic(target, (json.dumps(data, allow_nan=False) + "\n").encode())
    return target


def read(path: str | Path, whole: graph.Graph) -> tuple[scores.Scores, graph.Circuit]:
    """Scores and circuit of a file.

    Raises:
        RequestError: It cannot be read, or as `from_json`.
    """
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise errors.RequestError(f"{path} cannot be read as JSON: {error}") from error
    try:
        return from_json(data, whole)
    except errors.RequestError as error:
        raise errors.RequestError(f"{path}: {error}") from error


def _theirs(destination: str, whole: graph.Graph) -> tuple[str, ...]:
    """MIB's names of a destination: one for every query head that reads it."""
    _, bracket, letter = destination.partition("<")
    return tuple(f"{node}{bracket}{letter}" for node in whole.nodes_of(destination))


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
