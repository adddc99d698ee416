"""Subnetwork probing: the distribution of its masks, and how they become scores and circuits."""

import numpy as np
import pytest
import torch

import sonde
from sonde.circuits import registry, running, tasks
from sonde.circuits.methods import sp
from sonde.core import errors


@pytest.fixture(scope="module")
def plain():
    return sonde.load("tiny-plain")


@pytest.fixture(scope="module")
def made(plain):
    return tasks.get("induction")(plain, n=6, length=6, again=2)[0]


def test_the_hard_concrete_mask_lies_between_0_and_1_and_reaches_both():
    drawn = sp.hard_concrete(torch.zeros(4000), torch.rand(4000).clamp(1e-6, 1 - 1e-6))
    assert float(drawn.min()) == 0
    assert float(drawn.max()) == 1
    assert 0.1 < float((drawn == 0).float().mean()) < 0.4
    assert 0.1 < float((drawn == 1).float().mean()) < 0.4


def test_the_chance_that_a_mask_is_not_0_is_what_is_penalised():
    theta = torch.tensor([-1.5, 0.0, 1.0])
    u = torch.rand(20_000, 1).clamp(1e-6, 1 - 1e-6)
    seen = (sp.hard_concrete(theta.expand(20_000, 3), u.expand(20_000, 3)) > 0).float().mean(dim=0)
    assert torch.allclose(seen, torch.sigmoid(theta - sp.BETA * np.log(-sp.GAMMA / sp.ZETA)), atol=0.02)


def test_the_expected_mask_is_the_mean_of_many_draws_and_grows_with_theta():
    theta = torch.linspace(-4, 4, 9)
    u = torch.rand(20_000, 1).clamp(1e-6, 1 - 1e-6)
    seen = sp.hard_concrete(theta.expand(20_000, 9), u.expand(20_000, 9)).mean(dim=0)
    expected = sp.expected_mask(theta)
    assert torch.allclose(expected.float(), seen, atol=0.02)
    assert bool((expected.diff() > 0).all())


@pytest.mark.parametrize("method", ["sp", "sp-edges"])
def test_the_seed_fixes_the_result_and_another_gives_another(plain, made, method):
    one, same, other = (registry.find(plain, made, method=method, steps=4, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.values, same.values, equal_nan=True)
    assert one.kept.names == same.kept.names
    assert not np.array_equal(one.values, other.values, equal_nan=True)


def test_node_masks_are_products_of_what_reads_and_what_writes():
    model = sonde.load("tiny-llama")  # two heads share a key and a value
    graph = running.circuits_graph.Graph.of(model)
    nodes = sp._Nodes(graph)
    names = [name for name in graph.destinations if name.endswith(">")] + [
        n for n in graph.sources if n.startswith("m")
    ]
    assert nodes.count == len(names)
    masks = torch.ones(nodes.count)
    masks[names.index("a1.h1<k>")] = 0
    masks[names.index("m2")] = 0
    edges = nodes.edges(masks).numpy()
    expected = np.ones(edges.shape)
    expected[:, graph.destinations.index("a1.h1<k>")] = 0
    expected[graph.sources.index("m2")] = 0
    assert np.array_equal(edges, expected)
    values = nodes.by_source(np.linspace(0, 1, nodes.count))
    assert np.isnan(values[0])
    shared = np.linspace(0, 1, nodes.count)[[names.index(name) for name in ("a1.h2<q>", "a1.h1<k>", "a1.h1<v>")]]
    assert values[graph.sources.index("a1.h2")] == shared.max()


def test_the_kept_circuit_of_nodes_runs_as_their_masks_do(plain, made):
    runner = running.Runner(plain, made, "logit_diff")
    nodes = sp._Nodes(runner.graph)
    rng = np.random.default_rng(0)
    for _ in range(5):
        parts = rng.random(nodes.count) < 0.5
        masked = runner.logits(nodes.edges(torch.from_numpy(parts).float()))
        assert torch.allclose(runner.logits(nodes.kept(parts)), masked, atol=1e-4)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"rate": 0.0}, {"penalty": -1.0}])
def test_recipes_that_make_no_sense_are_refused(plain, made, wrong):
    with pytest.raises(errors.RequestError, match="expected at least 1, more than 0, at least 0"):
        registry.find(plain, made, method="sp", **wrong)


def test_a_higher_penalty_keeps_less(plain, made):
    none, much = (
        registry.find(plain, made, method="sp-edges", steps=25, rate=0.3, penalty=how) for how in (0.0, 100.0)
    )
    assert len(much.kept) < len(none.kept)
    assert much.settings["share_kept"] == len(much.kept) / much.graph.n_edges
