"""In a model in which only chosen heads write anything, gradient methods and subnetwork probing find these and no others."""

import numpy as np
import pytest
import torch

import sonde
from sonde.circuits import registry, running, tasks

PLANTED = ("a0.h1", "a1.h2")
PROBING = {"steps": 80, "rate": 0.2, "penalty": 0.3}


@pytest.fixture(scope="module")
def planted():
    """Every other head and every MLP writes nothing."""
    model = sonde.load("tiny-plain")
    with torch.no_grad():
        for layer, block in enumerate(model.parts.blocks):
            for name, weight in block.named_parameters():
                if "mlp" in name:
                    weight.zero_()
            out = model.parts.taps[f"blocks.{layer}.attn.hook_z"].module
            for head in range(model.cfg.n_heads):
                if f"a{layer}.h{head}" in PLANTED:
                    continue
                out.weight[:, head * model.cfg.d_head : (head + 1) * model.cfg.d_head] = 0
        model.hf.lm_head.weight *= 20  # so that what is read out hangs on what the heads write
    return model


@pytest.fixture(scope="module")
def made(planted):
    return tasks.get("induction")(planted, n=16, length=6, again=2)[0]


def real(graph):
    """Edges that can carry anything: from `input` or a planted head, to one or to the logits."""
    nodes = {"input", "logits", *PLANTED}
    return np.array(
        [
            [source in nodes and bool(nodes & set(graph.nodes_of(name))) for name in graph.destinations]
            for source in graph.sources
        ]
    )


@pytest.mark.parametrize("method", ["eap", "eap-ig", "eap-ig-activations", "mask-ig"])
def test_edges_that_carry_nothing_score_nothing(planted, made, method):
    scores = registry.find(planted, made, method=method)
    carrying = real(scores.graph) & scores.graph.allowed
    assert np.nanmax(np.abs(scores.values[~carrying])) < 1e-7
    assert np.abs(scores.values[carrying]).max() > 1e-3


def test_hisp_finds_the_planted_heads(planted, made):
    best = [name for name, _ in registry.find(planted, made, method="hisp").ranking() if name != "input"]
    assert set(best[:2]) == set(PLANTED)


@pytest.fixture(scope="module")
def probed(planted, made):
    """Nodes and edges, by subnetwork probing."""
    return {name: registry.find(planted, made, metric="kl", method=name, **PROBING) for name in ("sp", "sp-edges")}


def loss(planted, made, masks):
    return running.Runner(planted, made, "kl").loss_of(masks)


def test_subnetwork_probing_keeps_planted_heads_and_no_others(planted, made, probed):
    scores = probed["sp"]
    values = dict(zip(scores.graph.sources, scores.values, strict=True))
    assert {name for name, value in values.items() if value > 0.5} == set(PLANTED)
    assert set(scores.kept.nodes) == {"input", "logits", *PLANTED}
    assert float(loss(planted, made, scores.kept)) < 0.15 * float(
        loss(planted, made, np.zeros(scores.kept.edges.shape))
    )


def test_subnetwork_probing_of_edges_keeps_real_edges_and_no_others(planted, made, probed):
    kept = probed["sp-edges"].kept
    assert 0 < len(kept) < 20
    assert not (kept.edges & ~real(kept.graph)).any()
    assert float(loss(planted, made, kept)) < 0.1 * float(loss(planted, made, np.zeros(kept.edges.shape)))


def test_random_circuits_of_equal_size_do_not_do(planted, made, probed):
    kept, rng = probed["sp-edges"].kept, np.random.default_rng(0)
    places = np.flatnonzero(kept.graph.allowed)
    masks = np.zeros((20, *kept.edges.shape), dtype=np.float32)
    for mask in masks:
        mask.flat[rng.choice(places, size=len(kept), replace=False)] = 1
    assert float(loss(planted, made, kept)) < 0.2 * float(loss(planted, made, masks).min())
