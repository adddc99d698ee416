"""Orders that share their first layers with the intact model, against whole forward passes."""

import pytest
import torch

import sonde
from sonde.core import errors
from sonde.core import interventions as I
from sonde.lab import comparing, corruptions, sweeping

IDS = torch.tensor([[(7 * i * i + 3 * row) % 250 for i in range(20)] for row in range(2)])
SPECS = [
    "skip:0",
    "skip:1",
    "skip:3",
    "keep-first:1",
    "keep-first:2",
    "repeat:1",
    "swap:0-1",
    "reverse:1-3",
    "order:1,1,1",
]
WINDOWS = ["parallel:1-2", "looped-parallel:1-2", "middle-repeat:1-2"]


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-neox", "tiny-gemma"])
def test_a_resumed_order_equals_a_whole_forward_pass(name):
    with sonde.load(name) as model:
        specs = SPECS + ([] if name == "tiny-gemma" else WINDOWS) + [f"skip:{model.cfg.n_layers - 1}"]
        found = {spec: corruptions.parse(spec, model.cfg.n_layers).order for spec in specs}
        base = sweeping.Base(model, IDS)
        assert torch.equal(base.logits, model.run_with_hooks(IDS))
        for spec, logits in sweeping.sweep(base, found):
            assert torch.allclose(logits, model.run_with_hooks(IDS, [found[spec]]), atol=1e-5), spec
        assert torch.equal(base.logits, model.run_with_hooks(IDS))


def test_nothing_that_is_shared_runs_again(llama):
    ran = []
    base = sweeping.Base(llama, IDS)
    handles = [
        block.register_forward_hook(lambda *call, at=at: ran.append(at)) for at, block in enumerate(llama.parts.blocks)
    ]
    try:
        for spec in ("skip:2", "keep-first:3", "repeat:3"):
            base.run(corruptions.parse(spec, 4).order)
    finally:
        for handle in handles:
            handle.remove()
    assert ran == [3, 3]


def test_an_order_shares_as_many_stages_as_it_begins_with():
    shared = {(0, 1, 3): 2, (1, 0): 0, (0, 1, 2, 3): 4, (0, (1, 2), 3): 1, (0, 1, 1): 2}
    assert {order: sweeping.common(I.LayerOrder(order=order)) for order in shared} == shared


def test_a_sweep_refuses_a_bad_order_before_anything_runs(llama):
    base = sweeping.Base(llama, IDS)
    with pytest.raises(errors.InterventionError, match="layers 0 to 3"):
        next(sweeping.sweep(base, {"good": I.LayerOrder(order=(0, 1)), "bad": I.LayerOrder(order=(0, 7))}))


def test_a_run_resumed_with_the_own_stream_is_the_intact_run(llama):
    base = sweeping.Base(llama, IDS)
    for layer in (0, 2, 4):
        assert torch.allclose(base.resume(layer, base.streams[layer]), base.logits, atol=1e-5)


def test_texts_that_are_too_short_are_named(llama):
    with pytest.raises(errors.RequestError, match="'short' has 5 tokens, expected at least 9"):
        sweeping.encode(llama, {"short": "hello"}, 9)


def test_predictions_are_compared_as_the_definitions_say():
    generator = torch.Generator().manual_seed(0)
    intact, other = (torch.randn(2, 9, 50, generator=generator) * 3 for _ in range(2))
    ids = torch.randint(0, 50, (2, 9), generator=generator)
    judge = comparing.Judge(intact, ids)
    found = judge.compare(other)
    p, q = intact.double().log_softmax(-1), other.double().log_softmax(-1)
    assert found.kl == pytest.approx((p.exp() * (p - q)).sum(-1).numpy(), abs=1e-5)
    assert found.entropy == pytest.approx(-(q.exp() * q).sum(-1).numpy(), abs=1e-5)
    assert found.loss == pytest.approx(-q[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].numpy(), abs=1e-5)
    assert (found.agreement == (intact.argmax(-1) == other.argmax(-1)).numpy()).all()
    assert judge.intact.kl.max() == 0
    assert judge.intact.agreement.min() == 1
