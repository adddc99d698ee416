"""Graphs, circuits, scores and the registry."""

import json

import numpy as np
import pytest

import sonde
from sonde.circuits import graph as circuits_graph
from sonde.circuits import registry, scores
from sonde.core import errors

SMALL = circuits_graph.Graph(2, 4, 2)
COST = scores.Cost(1.0, 0.0, 0.1)


def scored(values, level="edge", **more):
    return scores.Scores(
        graph=SMALL, method="m", level=level, values=values, metric="kl", ablation="zero", cost=COST, **more
    )


@pytest.mark.parametrize(
    ("sizes", "edges"), [((2, 4, 4), 110), ((6, 4, 4), 1108), ((12, 12, 12), 32_491), ((30, 9, 3), 70_651)]
)
def test_the_number_of_edges_is_the_known_one(sizes, edges):
    graph = circuits_graph.Graph(*sizes)
    assert graph.n_edges == edges == graph.allowed.sum()


def test_edges_are_named_and_ordered_by_destination_from_input_to_output():
    assert SMALL.edges[:2] == ("input->a0.h0<q>", "input->a0.h1<q>")
    assert SMALL.edges[-1] == "m1->logits"
    assert len(set(SMALL.edges)) == SMALL.n_edges
    assert all(SMALL.allowed[SMALL.edge(name)] for name in SMALL.edges)


def test_parallel_blocks_have_no_edge_from_heads_to_the_mlp_beside_them():
    parallel = circuits_graph.Graph.of(sonde.load("tiny-neox"))
    assert parallel.parallel
    assert "a0.h1->m0" in SMALL.edges
    assert "a0.h1->m0" not in parallel.edges
    assert "a0.h1->m1" in parallel.edges


@pytest.mark.parametrize(
    ("name", "message"),
    [("input", "is no edge"), ("imput->m0", "did you mean 'input'"), ("input->m9", "no destination"),
     ("m1->m0", "not computed before")],
)  # fmt: skip
def test_an_edge_that_is_not_there_is_an_error_that_helps(name, message):
    with pytest.raises(errors.RequestError, match=message):
        SMALL.edge(name)


def test_merging_gives_a_head_the_keys_and_values_of_its_group():
    circuit = circuits_graph.Circuit.of(SMALL, ["input->a0.h1<k>", "a0.h2->a1.h0<q>", "m1->logits"])
    assert circuit.merged().names == ("input->a0.h2", "input->a0.h3", "a0.h2->a1.h0", "m1->logits")
    values = np.where(SMALL.allowed, 0.0, np.nan)
    values[SMALL.edge("input->a0.h1<v>")] = -3.0
    merged = SMALL.merge(values)
    assert merged[0, SMALL.merged().destinations.index("a0.h3")] == 3.0
    assert np.isnan(merged[-1, 0])


def test_nodes_are_those_that_an_edge_touches():
    circuit = circuits_graph.Circuit.of(SMALL, ["input->a0.h1<k>", "m1->logits"])
    assert circuit.nodes == ("input", "a0.h2", "a0.h3", "m1", "logits")


def test_a_circuit_survives_json():
    circuit = circuits_graph.Circuit.of(SMALL, SMALL.edges[::7])
    back = circuits_graph.Circuit.from_json(json.loads(json.dumps(circuit.to_json())))
    assert back.names == circuit.names
    assert len(circuits_graph.Circuit.full(SMALL)) == SMALL.n_edges
    assert len(circuits_graph.Circuit.empty(SMALL)) == 0
    with pytest.raises(errors.RequestError, match="no circuit"):
        circuits_graph.Circuit.from_json({"format": "other"})


def test_a_mask_with_impossible_edges_is_refused():
    with pytest.raises(errors.RequestError, match="no edge of the graph"):
        circuits_graph.Circuit(SMALL, np.ones_like(SMALL.allowed))


def test_scores_choose_the_best_edges_and_break_ties_by_canonical_order():
    values = np.where(SMALL.allowed, 1.0, np.nan)
    values[SMALL.edge("m1->logits")] = -2.0
    found = scored(values)
    assert found.circuit(n_edges=2).names == ("input->a0.h0<q>", "m1->logits")
    assert found.circuit(threshold=1.5).names == ("m1->logits",)
    assert len(found.circuit(threshold=0.5, absolute=False)) == SMALL.n_edges - 1
    assert len(found.circuit(share=0.5)) == round(SMALL.n_edges / 2)
    assert found.ranking()[0] == ("m1->logits", -2.0)
    assert len(found.ranking()) == SMALL.n_edges
    for wrong in ({}, {"n_edges": 1, "share": 0.1}, {"share": 2.0}, {"n_edges": 10_000}):
        with pytest.raises(errors.RequestError):
            found.circuit(**wrong)


def test_an_edge_between_scored_nodes_counts_as_its_weaker_end():
    values = np.arange(len(SMALL.sources), dtype=float)
    found = scored(values, level="node").edge_values()
    assert found[SMALL.edge("a0.h1->m1")] == 2.0
    assert found[SMALL.edge("m0->logits")] == values[SMALL.sources.index("m0")]
    values[0] = np.nan
    assert scored(values, level="node").edge_values()[SMALL.edge("input->m0")] == values[5]


def test_scores_survive_json_and_merge():
    values = np.where(SMALL.allowed, np.random.default_rng(0).normal(size=SMALL.allowed.shape), np.nan)
    found = scored(values, kept=circuits_graph.Circuit.of(SMALL, ["m1->logits"]), settings={"tau": 0.1})
    back = scores.Scores.from_json(json.loads(json.dumps(found.to_json())))
    assert np.array_equal(back.values, values, equal_nan=True)
    assert back.circuit().names == ("m1->logits",)
    assert back.cost == COST
    assert found.merged().graph == SMALL.merged()
    assert found.node_values().shape == (len(SMALL.sources),)
    with pytest.raises(errors.RequestError, match="edge scores"):
        scored(values[:, :2])


def test_a_users_method_registers_in_five_lines_and_unknown_ones_are_answered_with_the_nearest(monkeypatch):
    registry.methods()  # imports those of the house into the real table first
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    @registry.register("my-method")
    def mine(model, pairs, metric, **options):
        """Scores nothing."""
        return scored(np.where(SMALL.allowed, 0.0, np.nan))

    assert registry.methods()["my-method"] == "Scores nothing."
    assert {"acdc", "exact", "exact-node", "random"} <= set(registry.methods())
    with pytest.raises(errors.RequestError, match="did you mean 'my-method'"):
        registry.get("my-metod")
    with pytest.raises(errors.RequestError, match="already"):
        registry.register("my-method")(mine)
    with pytest.raises(errors.RequestError, match="docstring"):
        registry.register("silent")(lambda model, pairs, metric: None)
