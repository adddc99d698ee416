import io

import networkx
import numpy as np
import pytest

from sonde.circuits import exporting, graph, scores
from sonde.core import errors

SMALL = graph.Graph(2, 4, 4)
GROUPED = graph.Graph(3, 4, 2)


def scored(whole, seed=0):
    values = np.where(whole.allowed, np.random.default_rng(seed).standard_normal(whole.allowed.shape), np.nan)
    cost = scores.Cost(1.0, 1.0, 0.1)
    return scores.Scores(graph=whole, method="m", level="edge", values=values, metric="kl", ablation="zero", cost=cost)


def read(text):
    return networkx.read_graphml(io.BytesIO(text.encode()))


def test_networkx_reads_edges_scores_and_layers_back():
    found = scored(SMALL)
    circuit = found.circuit(n_edges=20)
    back = read(exporting.to_graphml(circuit, scores=found))
    kept = {f"{one}->{two}": fields for one, two, fields in back.edges(data=True) if fields["part"] != "inside"}
    assert set(kept) == set(circuit.names)
    for name, fields in kept.items():
        assert fields["score"] == found.values[SMALL.edge(name)]
    assert back.nodes["a1.h2<v>" if "a1.h2<v>" in back else next(n for n in back if "<" in n)]["layer"] in (0, 1)


def test_a_path_of_the_circuit_is_a_path_in_the_file():
    circuit = graph.Circuit.of(GROUPED, ["input->a0.h1<k>", "a0.h3->a1.h0<q>", "a1.h0->logits"])
    back = read(exporting.to_graphml(circuit))
    assert networkx.has_path(back, "input", "logits")
    assert not back.has_node("a0.h2")


def test_the_merged_view_has_one_node_per_head_and_the_edges_of_the_merged_circuit():
    found = scored(GROUPED)
    circuit = found.circuit(n_edges=40)
    flat = exporting.flat(circuit, scores=found, view="merged")
    assert {edge.name for edge in flat.edges} == set(circuit.merged().names)
    assert {one.kind for one in flat.nodes} <= {"input", "head", "mlp", "logits"}
    sizes = GROUPED.merge(np.where(circuit.edges, found.values, 0.0))
    for edge in flat.edges:
        assert abs(edge.score) == sizes[GROUPED.merged().edge(edge.name)]


def test_scores_of_nodes_give_an_edge_that_of_its_weaker_end():
    values = np.arange(len(SMALL.sources), dtype=np.float64)
    cost = scores.Cost(1.0, 1.0, 0.1)
    found = scores.Scores(graph=SMALL, method="m", level="node", values=values, metric="kl", ablation="zero", cost=cost)
    flat = exporting.flat(graph.Circuit.of(SMALL, ["a0.h1->a1.h3<k>"]), scores=found)
    assert flat.edges[0].score == values[SMALL.sources.index("a0.h1")]


def test_the_same_circuit_gives_the_same_bytes_in_a_file(tmp_path):
    circuit = scored(SMALL).circuit(n_edges=5)
    paths = [exporting.save_graphml(circuit, tmp_path / name / "c.graphml") for name in ("a", "b")]
    assert paths[0].read_bytes() == paths[1].read_bytes() == exporting.to_graphml(circuit).encode()


def test_an_empty_circuit_is_a_graph_without_nodes():
    assert len(read(exporting.to_graphml(graph.Circuit.empty(SMALL)))) == 0


@pytest.mark.parametrize(("name", "kind", "layer", "head"), [("input", "input", None, None), ("m3", "mlp", 3, None),
    ("a2.h1", "head", 2, 1), ("a2.h1<k>", "k", 2, 1), ("logits", "logits", None, None)])  # fmt: skip
def test_a_name_says_what_a_node_is(name, kind, layer, head):
    assert exporting.node(name) == exporting.Node(name, kind, layer, head)


def test_what_makes_no_sense_is_refused():
    circuit = scored(SMALL).circuit(n_edges=5)
    with pytest.raises(errors.RequestError, match="no node"):
        exporting.node("b0.h1")
    with pytest.raises(errors.RequestError, match="different graphs"):
        exporting.flat(circuit, scores=scored(GROUPED))
