"""A Llama layer with fewer calls: equal to the layer's own forward pass to the last bit, and out of the way of hooks."""

import contextlib

import pytest
import torch

import sonde
from sonde.models import lean

PROMPTS = [[3, 14, 15, 92, 65, 35, 8, 9, 79], [2, 71, 82, 81, 8], [1, 61, 80]]
INSIDE = ["blocks.*.attn.hook_q", "blocks.*.attn.hook_z", "blocks.*.attn.hook_pattern", "blocks.*.mlp.hook_post"]


@pytest.fixture
def model():
    with sonde.load("tiny-llama") as found:
        yield found


@contextlib.contextmanager
def lean_layers(model):
    for layer in model.parts.blocks:
        assert lean.fits(layer)
        layer.forward = lean.Lean(layer)
    try:
        yield
    finally:
        for layer in model.parts.blocks:
            del layer.forward


def answers(model, prompts, **options):
    model.pool.entries.clear()
    return [(one.tokens, one.logprobs) for one in model.generate(prompts, max_new_tokens=9, **options)]


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one row", "rows of several lengths"])
def test_answers_are_equal_to_the_bit(model, prompts):
    plain = answers(model, prompts, temperature=1.0, seed=3)
    with lean_layers(model):
        assert answers(model, prompts, temperature=1.0, seed=3) == plain


def test_it_serves_the_engine_and_steps_back_for_everything_else(model, monkeypatch):
    served = []
    own = lean.Lean._attend
    monkeypatch.setattr(
        lean.Lean, "_attend", lambda self, *args, **kwargs: served.append(1) or own(self, *args, **kwargs)
    )
    with lean_layers(model):
        answers(model, PROMPTS)
        assert len(served) == 9 * model.cfg.n_layers
        model.run_with_hooks(PROMPTS[0])
        model.hf(input_ids=torch.tensor([PROMPTS[0]]))
        assert len(served) == 9 * model.cfg.n_layers


@pytest.mark.parametrize("site", [*INSIDE, "blocks.*.hook_resid_post", "blocks.*.hook_resid_pre"])
def test_recording_changes_no_bit_and_records_the_same(model, site):
    plain = answers(model, PROMPTS[:1])
    recorded = []
    for block in (contextlib.nullcontext, lambda: lean_layers(model)):
        with block(), sonde.ActivationCapture(model, hook_filter=site) as capture, capture.step():
            assert answers(model, PROMPTS[:1]) == plain
        recorded.append(capture.get_trajectory())
    for name in [site.replace("*", str(layer)) for layer in range(model.cfg.n_layers)]:
        assert torch.equal(recorded[0].get_activation(0, name), recorded[1].get_activation(0, name))


@pytest.mark.parametrize(
    "change",
    [
        sonde.Zero(site="blocks.1.attn.hook_z", heads=(0,)),
        sonde.Scale(site="blocks.0.hook_resid_post", factor=1.5),
        sonde.Knockout(site="blocks.0.attn.hook_pattern", keys=(1,)),
    ],
    ids=lambda change: change.site,
)
def test_interventions_hold_inside_and_around_the_layer(model, change):
    plain, changed = answers(model, PROMPTS), answers(model, PROMPTS, interventions=[change])
    with lean_layers(model):
        assert answers(model, PROMPTS, interventions=[change]) == changed
    assert changed != plain


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-neox", "tiny-gemma"])
def test_other_families_keep_their_own_layers(name):
    with sonde.load(name) as model:
        assert not any(lean.fits(layer) for layer in model.parts.blocks)
