"""The lens ends in the model's own logits, and the parts of a logit add up to it."""

import json

import numpy as np
import pytest
import torch

import sonde
from sonde.analysis import lenses
from sonde.core import errors

TOKENS = [10, 50, 90, 130, 170]
ANSWER, OTHER = 33, 77


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2", "tiny-neox", "tiny-gemma"])
def family(request):
    with sonde.load(request.param) as model:
        for name, parameter in model.hf.named_parameters():  # biases and norms start trivial: make them matter
            if name.endswith("bias") or "norm" in name or "ln_" in name:
                generator = torch.Generator().manual_seed(len(name))
                parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
        yield model


def test_the_last_row_of_the_lens_is_what_the_model_says(family):
    lens = lenses.logit_lens(family, TOKENS)
    assert lens.logits.shape == (family.cfg.n_layers + 1, len(TOKENS), family.cfg.d_vocab)
    true = family.run_with_hooks(TOKENS)[0]
    torch.testing.assert_close(lens.logits[-1], true, atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(lens.top[-1], true.argmax(dim=-1).numpy())
    assert (lens.rank(int(true[-1].argmax()))[-1, -1]) == 0
    assert not torch.allclose(lens.logits[0], true, atol=0.1)


def test_some_layers_and_positions_of_the_lens_are_those_of_the_whole(family):
    whole, part = lenses.logit_lens(family, TOKENS), lenses.logit_lens(family, TOKENS, layers=[1, 3], positions=[-1, 0])
    assert (part.layers, part.positions) == ((1, 3), (4, 0))
    torch.testing.assert_close(part.logits, whole.logits[[1, 3]][:, [4, 0]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("other", "position"), [(None, -1), (OTHER, 2)])
def test_the_parts_add_up_to_the_logit_before_any_cap(family, other, position):
    parts = lenses.direct_logit_attribution(family, TOKENS, ANSWER, other, position=position)
    _, cache = family.run_with_cache(TOKENS, ["unembed.hook_out"])
    logits = cache["unembed.hook_out"][0, position]
    true = float(logits[ANSWER] - (logits[other] if other is not None else 0))
    assert parts.logit == pytest.approx(true, abs=1e-6)
    assert parts.total == pytest.approx(true, abs=1e-3)
    assert parts.heads.shape == (family.cfg.n_layers, family.cfg.n_heads)
    assert sum(parts.entries().values()) == pytest.approx(parts.total)
    assert json.loads(json.dumps(parts.to_json()))["logit"] == parts.logit


def test_a_part_that_writes_nothing_gets_nothing(family):
    """Zeroing one head changes its own entry to 0; others only through later layers and the norms' scales."""
    layer = family.cfg.n_layers - 1
    with sonde.InterventionManager(family) as manager:
        manager.add_intervention(f"blocks.{layer}.attn.hook_z", sonde.Zero(heads=(1,)))
        parts = lenses.direct_logit_attribution(family, TOKENS, ANSWER, OTHER)
    assert parts.heads[layer, 1] == 0
    assert (np.abs(parts.heads).sum(axis=1) > 0).all()


def test_what_does_not_exist_is_refused(family):
    for wrong, message in (
        (lambda: lenses.logit_lens(family, TOKENS, layers=[99]), "no layer 99"),
        (lambda: lenses.logit_lens(family, TOKENS, positions=[5]), "position 5 is out of range"),
        (lambda: lenses.direct_logit_attribution(family, TOKENS, 9999), "no token 9999"),
        (lambda: lenses.direct_logit_attribution(family, torch.tensor([TOKENS] * 2), 1), "one text at a time"),
    ):
        with pytest.raises(errors.RequestError, match=message):
            wrong()
