"""What every circuit finder promises, on models of several families and on compiled ones."""

import numpy as np
import pytest
import torch

import sonde
from sonde.bench import finding, shipped
from sonde.circuits import graph, pairs, registry, scores

FEW = {"sp": {"steps": 2}, "sp-edges": {"steps": 2}, "eap-ig": {"steps": 2}, "mask-ig": {"steps": 2},
       "eap-ig-activations": {"steps": 2}}  # fmt: skip
MODELS = ("tiny-llama", "tiny-plain", "compiled-3", "compiled-15")


@pytest.fixture(scope="module", params=MODELS)
def given(request):
    """A model, pairs of inputs, and a metric."""
    kind, _, case = request.param.partition("-")
    if kind == "compiled":
        subject = shipped.compiled(case)
        with subject.model as model:
            found = finding.pairs_of(subject, n=4)
            yield model, found, finding.metric_named(subject, found, "answer_diff")
        return
    with sonde.load(request.param) as model:
        ids = torch.randint(3, min(model.cfg.d_vocab, 100), (2, 3, 5), generator=torch.Generator().manual_seed(0))
        found = pairs.Pairs.of_tensors(ids[0], ids[1], answers=ids[0][:, :1], wrongs=ids[1][:, :1])
        yield model, found, "logit_diff"


@pytest.mark.parametrize("method", sorted(registry.methods()))
def test_a_method_scores_every_edge_or_node_and_says_what_it_took(given, method):
    model, some, metric = given
    before = model.hf(some.clean, attention_mask=torch.ones_like(some.clean)).logits.detach()
    found = registry.find(model, some, metric=metric, method=method, seed=0, **FEW.get(method, {}))
    whole = graph.Graph.of(model)
    assert found.graph == whole
    assert found.method == method
    assert np.isfinite(found.values[whole.allowed] if found.level == "edge" else found.values[1:]).all()
    assert found.cost.seconds >= 0
    assert len(found.circuit(n_edges=min(5, whole.n_edges))) == min(5, whole.n_edges)
    kept = scores.Scores.from_json(found.to_json())
    assert np.array_equal(kept.values, found.values, equal_nan=True)
    after = model.hf(some.clean, attention_mask=torch.ones_like(some.clean)).logits.detach()
    assert torch.equal(before, after)


@pytest.mark.parametrize("method", ["random", "sp"])
def test_a_seed_fixes_what_a_method_finds(given, method):
    model, some, metric = given
    one, two = (
        registry.find(model, some, metric=metric, method=method, seed=4, **FEW.get(method, {})) for _ in range(2)
    )
    assert np.array_equal(one.values, two.values, equal_nan=True)


def test_the_whole_model_does_as_the_model_does(given):
    from sonde.circuits import running

    model, some, metric = given
    runner = running.Runner(model, some, metric)
    whole = runner.logits(graph.Circuit.full(runner.graph))
    assert torch.allclose(whole, runner.logits(), atol=1e-3)
