"""Exact patching of edges and nodes, and the random control."""

import numpy as np
import pytest
import torch

import sonde
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import registry, running


def made(count=3, width=5):
    ids = torch.randint(0, 250, (2, count, width))
    options = {"answers": torch.randint(0, 250, (count, 1)), "wrongs": torch.randint(0, 250, (count, 1))}
    return circuits_pairs.Pairs.of_tensors(ids[0], ids[1], **options)


@pytest.fixture(scope="module", params=["tiny-plain", "tiny-llama", "tiny-gemma"])
def model(request):
    with sonde.load(request.param) as loaded:
        yield loaded


@pytest.mark.parametrize("ablation", ["resample", "mean"])
def test_the_score_of_an_edge_is_the_rise_of_the_loss_when_it_alone_is_cut(model, ablation):
    pairs = made()
    found = registry.find(model, pairs, method="exact", ablation=ablation, batch_size=2)
    runner = running.Runner(model, pairs, "logit_diff", ablation=ablation)
    full = float(runner.loss_of(runner.graph.allowed))
    edges = np.argwhere(found.graph.allowed)
    for i, j in edges[:: max(1, len(edges) // 15)].tolist():
        mask = runner.graph.allowed
        mask[i, j] = False
        assert found.values[i, j] == pytest.approx(float(runner.loss_of(mask)) - full, abs=1e-4)
    assert np.isnan(found.values[~found.graph.allowed]).all()


def test_the_score_of_a_node_is_the_rise_of_the_loss_when_all_its_edges_are_cut(model):
    pairs = made()
    found = registry.find(model, pairs, method="exact-node")
    runner = running.Runner(model, pairs, "logit_diff")
    full = float(runner.loss_of(runner.graph.allowed))
    for index in range(len(found.graph.sources)):
        mask = runner.graph.allowed
        mask[index] = False
        assert found.values[index] == pytest.approx(float(runner.loss_of(mask)) - full, abs=1e-4)
    assert found.level == "node"
    assert found.cost.forwards >= len(found.graph.sources) * len(pairs)


def test_random_scores_depend_on_the_seed_alone():
    with sonde.load("tiny-plain") as model:
        first, again, other = (registry.find(model, made(), method="random", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.values, again.values, equal_nan=True)
    assert not np.array_equal(first.values, other.values, equal_nan=True)
    assert first.cost.forwards == 0
