"""A sweep run by nnsight, one trace per cell, finds what resumed runs find, and leaves the network without a trace."""

import numpy as np
import pytest

import sonde
from sonde.analysis.tracing import pairs, sweeps

PAIR = pairs.TracePair((50, 60, 70), (51, 60, 70), 3, 9)


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2", "tiny-neox", "tiny-gemma"])
def model(request):
    with sonde.load(request.param) as model:
        yield model


@pytest.mark.parametrize("component", ["residual_stream", "attention_heads", "attention", "mlp"])
def test_both_backends_agree(model, component):
    had = [set(vars(module)) for module in model.hf.modules()]
    layers = (1, model.cfg.n_layers - (component != "residual_stream"))
    ours, theirs = (
        sweeps.sweep(model, [PAIR], component, settings=sweeps.Settings(layers=layers, backend=backend))
        for backend in ("sonde", "nnsight")
    )
    assert [set(vars(module)) for module in model.hf.modules()] == had
    one, other = ours.grids[0], theirs.grids[0]
    np.testing.assert_allclose(one.answer_logit, other.answer_logit, atol=1e-4)
    np.testing.assert_allclose(one.counterfactual_logit, other.counterfactual_logit, atol=1e-4)
    np.testing.assert_array_equal(one.top, other.top)
    assert np.ptp(one.answer_logit) > 0.01
