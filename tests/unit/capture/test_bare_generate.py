"""transformers' own `generate` under a capture: logits, late riders, and what is freed afterwards."""

import gc
import weakref

import pytest
import torch

import sonde
from sonde.models import loading

PROMPT = torch.tensor([[72, 101, 108, 108, 111, 32, 116, 104, 101, 114, 101]])


@pytest.fixture(scope="module", params=["tiny-gpt2", "tiny-llama", "tiny-gemma"])
def model(request):
    return loading.load(request.param)


def generate(model, **options):
    with torch.no_grad():
        return model.hf.generate(
            PROMPT, max_new_tokens=6, min_new_tokens=6, do_sample=False, return_dict_in_generate=True, **options
        )


def test_logits_are_recorded_at_every_position_and_the_run_keeps_its_bits(model):
    plain = generate(model, output_logits=True)
    with sonde.automatic_activation_capture(model, ["unembed.hook_out", "ln_final.hook_out"]) as capture:
        seen = generate(model, output_logits=True)
    assert torch.equal(plain.sequences, seen.sequences)
    assert all(torch.equal(a, b) for a, b in zip(plain.logits, seen.logits, strict=True))
    trajectory = capture.get_trajectory()
    assert len(trajectory) == 1
    whole = seen.sequences[:, :-1]
    _, cache = model.run_with_cache(whole, "unembed.hook_out")
    got = trajectory.get_activation(0, "unembed.hook_out")
    assert got.shape == cache["unembed.hook_out"].shape
    assert torch.allclose(got, cache["unembed.hook_out"], atol=1e-4)


def test_an_edit_of_the_logits_acts_on_what_generate_draws_from(model):
    flat = sonde.Steer(site="unembed.hook_out", direction=_one_hot(model, 65), strength=1e4)
    with sonde.InterventionManager(model).add_intervention(hook_fn=flat):
        said = generate(model).sequences[0, PROMPT.shape[1] :]
    assert said.tolist() == [65] * 6


def test_a_capture_that_joins_late_records_what_it_sees(model):
    with torch.no_grad():
        first = model.hf(PROMPT, use_cache=True)
        after = torch.tensor([[33]])
        with sonde.automatic_activation_capture(model, "blocks.1.hook_resid_post") as capture:
            model.hf(after, past_key_values=first.past_key_values, use_cache=True)
    _, cache = model.run_with_cache(torch.cat([PROMPT, after], dim=1), "blocks.1.hook_resid_post")
    got = capture.get_trajectory().get_activation(0, "blocks.1.hook_resid_post")
    assert torch.allclose(got, cache["blocks.1.hook_resid_post"][:, -1:], atol=1e-4)
    assert capture.get_trajectory().positions(0).tolist() == [PROMPT.shape[1]]


def test_a_capture_is_freed_when_its_user_lets_go_of_it(model):
    with sonde.automatic_activation_capture(model, "blocks.0.hook_resid_post") as capture:
        model.generate("hello", max_new_tokens=2)
    gone = weakref.ref(capture)
    del capture
    for _ in range(50):  # the engine's thread may still be finishing its last lines
        gc.collect()
        if gone() is None:
            break
    assert gone() is None


def _one_hot(model, token):
    return torch.nn.functional.one_hot(torch.tensor(token), model.cfg.d_vocab).float()
