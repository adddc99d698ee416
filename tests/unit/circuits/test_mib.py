"""MIB's JSON: what is written is what the format says, and what is read is what was written."""

import json

import numpy as np
import pytest

import sonde
from sonde.circuits import graph, mib, scores
from sonde.core import errors


def made(whole, seed=0):
    values = np.where(whole.allowed, np.random.default_rng(seed).standard_normal(whole.allowed.shape), np.nan)
    return scores.Scores(
        graph=whole, method="eap", level="edge", values=values, metric="kl", ablation="resample", cost=scores.Cost(0.0, 0.0, 0.0)
    )  # fmt: skip


def test_the_file_has_every_edge_under_mibs_names(tmp_path):
    whole = graph.Graph(2, 2, 2)
    found = made(whole)
    chosen = graph.Circuit.of(whole, ["input->a0.h1<q>", "a0.h1->m1", "m1->logits"])
    data = json.loads(mib.write(tmp_path / "made.json", found, circuit=chosen, d_model=8).read_text())
    assert data["cfg"] == {"n_layers": 2, "n_heads": 2, "parallel_attn_mlp": False, "d_model": 8}
    assert list(data["nodes"]) == ["input", "a0.h0", "a0.h1", "m0", "a1.h0", "a1.h1", "m1", "logits"]
    assert {name for name, one in data["nodes"].items() if one["in_graph"]} == {"input", "a0.h1", "m1", "logits"}
    assert set(data["edges"]) == set(whole.edges)
    assert data["edges"]["input->a0.h1<q>"] == {"score": found.values[whole.edge("input->a0.h1<q>")], "in_graph": True}
    assert sum(one["in_graph"] for one in data["edges"].values()) == 3
    again, circuit = mib.read(tmp_path / "made.json", whole)
    assert np.array_equal(again.values, found.values, equal_nan=True)
    assert circuit.names == chosen.names
    assert again.circuit().names == chosen.names


def test_heads_that_share_keys_and_values_have_edges_of_their_own():
    with sonde.load("tiny-llama") as model:
        whole = graph.Graph.of(model)
    found = made(whole)
    chosen = graph.Circuit.of(whole, ["input->a1.h1<k>", "input->a1.h3<q>"])
    data = mib.to_json(found, circuit=chosen, d_model=32)
    named = graph.Graph(whole.n_layers, whole.n_heads, whole.n_heads)
    assert set(data["edges"]) == set(named.edges)
    inside = {name for name, one in data["edges"].items() if one["in_graph"]}
    assert inside == {"input->a1.h2<k>", "input->a1.h3<k>", "input->a1.h3<q>"}
    again, circuit = mib.from_json(data, whole)
    assert np.array_equal(again.values, found.values, equal_nan=True)
    assert circuit.names == chosen.names
    data["edges"]["input->a1.h2<k>"]["in_graph"] = False
    with pytest.raises(errors.RequestError, match="1 of the 2 heads that share it"):
        mib.from_json(data, whole)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"edges": {}}, "no file of MIB"),
        ({"cfg": {"n_layers": 3}}, "n_layers 3, expected 2"),
        ({"edges": {"m0->a0.h0<q>": {"score": 1.0}}}, "not computed before"),
        ({"edges": {"m0->m9": {"score": 1.0}}}, "no destination 'm9'"),
        ({"edges": {"m0->m1": {"score": "x"}}}, "expected a number"),
        ({"edges": {"m0": {"score": 1.0}}}, "is no edge"),
    ],
)
def test_what_is_not_of_this_model_is_refused(change, said, tmp_path):
    whole = graph.Graph(2, 2, 2)
    data = mib.to_json(made(whole), d_model=8) | change
    with pytest.raises(errors.RequestError, match=said):
        mib.from_json(data, whole)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(errors.RequestError, match=r"x\.json cannot be read"):
        mib.read(tmp_path / "x.json", whole)
