"""The engine's promises on the embedded model itself, in part: it is large enough to show what tiny ones hide."""

import pytest
import torch

import sonde
from sonde.models import loading, requests, riders

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TEXTS = ("The capital of France is", "Once upon a time there was a small robot that", "2 + 2 =")
SITE = "blocks.14.hook_resid_post"


@pytest.fixture(scope="module")
def model():
    with loading.load() as loaded:
        yield loaded


def ask(model, tokens, **fields):
    sampling = requests.Sampling(max_new_tokens=8, min_new_tokens=8)
    asked = [model.request(tuple(tokens), sampling, fields.pop("specs", ()), **fields)]
    return model.wait(model.submit(asked), asked)[0]


def conversation(model, specs_at, *, forget):
    """Three steps; `specs_at(step)` hold in them; with `forget` every step encodes everything again."""
    tokens, new_start, persisted, answers = [], 0, (), []
    for step, text in enumerate(TEXTS):
        tokens += model.tokenizer.encode(text)
        if forget:
            model.pool.entries.clear()
        answer = ask(
            model, tokens, specs=specs_at(step), new_start=new_start, persisted=persisted, call=riders.Call(step=step)
        )
        tokens += answer.tokens
        new_start, persisted = len(tokens), answer.persisted
        answers.append(answer)
    return answers


def same(left, right):
    assert [one.tokens for one in left] == [one.tokens for one in right]
    for a, b in zip(left, right, strict=True):
        assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-4, rtol=1e-4)


def test_recording_changes_no_bit_of_what_is_generated(model):
    model.pool.entries.clear()
    plain = ask(model, model.tokenizer.encode(TEXTS[1]))
    model.pool.entries.clear()
    with sonde.automatic_activation_capture(model, ["blocks.*.hook_resid_post", "blocks.3.attn.hook_pattern"]):
        recorded = ask(model, model.tokenizer.encode(TEXTS[1]))
    assert (plain.tokens, plain.logprobs) == (recorded.tokens, recorded.logprobs)


def test_a_batch_of_unequal_prompts_equals_each_alone(model):
    model.pool.entries.clear()
    together = model.generate(list(TEXTS), max_new_tokens=8, min_new_tokens=8)
    model.pool.entries.clear()
    same(together, [ask(model, model.tokenizer.encode(text)) for text in TEXTS])


@pytest.mark.parametrize("scope", ["context", "new"])
@pytest.mark.parametrize("after", ["clean", "persist"])
def test_kept_keys_and_values_equal_encoding_everything_again(model, scope, after):
    direction = torch.randn(model.cfg.d_model, generator=torch.Generator().manual_seed(0))
    steer = sonde.Steer(site=SITE, direction=direction, strength=8.0, steps=(1,), scope=scope, after=after)
    model.pool.entries.clear()
    kept = conversation(model, lambda step: (steer,), forget=False)
    again = conversation(model, lambda step: (steer,), forget=True)
    same(kept, again)
    assert sum(one.encoded_tokens for one in kept) < sum(one.encoded_tokens for one in again)
    plain = conversation(model, lambda step: (), forget=True)
    assert plain[0].tokens == kept[0].tokens
    assert plain[1].logprobs != kept[1].logprobs


def test_the_model_is_bit_identical_after_interventions_and_recording(model):
    tokens = torch.tensor([model.tokenizer.encode(TEXTS[1])])
    with torch.no_grad():
        before = model.hf(tokens).logits
        with sonde.InterventionManager(model).add_intervention(SITE, sonde.Zero()):
            changed = model.hf(tokens).logits
        after = model.hf(tokens).logits
    assert not torch.equal(before, changed)
    assert torch.equal(before, after)
