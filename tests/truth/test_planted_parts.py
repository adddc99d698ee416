"""Models whose working part is known, because everything else was taken out: interventions must find it, and only it."""

import pytest
import torch

from sonde.core import interventions as I
from sonde.models import loading, taps

TOKENS = [(17 * i * i + 3) % 256 for i in range(14)]
LIVE = (2, 1)


@pytest.fixture
def one_head():
    """A tiny model in which one head of one layer writes to the stream, and no MLP does."""
    with loading.load("tiny-llama") as model:
        with torch.no_grad():
            for layer in range(model.cfg.n_layers):
                projection = model.parts.taps[f"blocks.{layer}.attn.hook_z"].module
                by_head = taps.output_weight(projection, model.cfg.n_heads).clone()
                for head in range(model.cfg.n_heads):
                    if (layer, head) != LIVE:
                        by_head[head] = 0
                projection.weight.copy_(by_head.flatten(0, 1).T)
                model.parts.taps[f"blocks.{layer}.mlp.hook_post"].module.weight.zero_()
        yield model


def _effects(model, make):
    plain = model.run_with_hooks(TOKENS)
    cells = [(layer, head) for layer in range(model.cfg.n_layers) for head in range(model.cfg.n_heads)]
    return {cell: float((model.run_with_hooks(TOKENS, [make(*cell)]) - plain).abs().max()) for cell in cells}


@pytest.mark.parametrize("kind", ["attn.hook_z", "attn.hook_result", "attn.hook_q", "attn.hook_pattern"])
def test_ablating_heads_one_by_one_finds_the_only_live_one(one_head, kind):
    effects = _effects(one_head, lambda layer, head: I.Zero(site=f"blocks.{layer}.{kind}", heads=(head,)))
    assert effects.pop(LIVE) > 1e-2
    assert max(effects.values()) <= (1e-4 if "pattern" in kind else 0)  # its explicit kernel rounds differently


def test_knocking_out_keys_matters_in_the_live_head_alone(one_head):
    effects = _effects(
        one_head,
        lambda layer, head: I.Knockout(site=f"blocks.{layer}.attn.hook_attn_scores", keys=(0, 3), heads=(head,)),
    )
    assert effects.pop(LIVE) > 1e-3
    assert max(effects.values()) < 1e-4  # another kernel rounds differently


def test_the_only_path_of_the_live_head_is_the_direct_one(one_head):
    site = f"blocks.{LIVE[0]}.attn.hook_z"
    shape = taps.value_shape(one_head.parts.taps[site].site, one_head.cfg)
    where = {"site": site, "heads": (LIVE[1],), "values": torch.randn(*shape)}
    plain = one_head.run_with_hooks(TOKENS)
    whole = one_head.run_with_hooks(TOKENS, [I.Patch(**where)])
    direct = one_head.run_with_hooks(TOKENS, [I.PathPatch(**where, receivers=("ln_final.hook_out",))])
    through = one_head.run_with_hooks(TOKENS, [I.PathPatch(**where, receivers=("blocks.3.attn.hook_v",))])
    assert float((whole - plain).abs().max()) > 1e-2
    torch.testing.assert_close(direct, whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(through, plain, rtol=1e-5, atol=1e-5)


def test_steering_along_a_planted_direction_says_the_planted_token_and_a_random_one_does_not(one_head):
    token = 77
    generator = torch.Generator().manual_seed(4)
    planted = one_head.hf.lm_head.weight[token].detach()
    random = torch.randn(planted.shape, generator=generator)
    random = random * planted.norm() / random.norm()
    site = f"blocks.{one_head.cfg.n_layers - 1}.hook_resid_post"

    def says(direction):
        spec = I.Steer(site=site, direction=direction, strength=200.0)
        return one_head.generate(TOKENS, max_new_tokens=5, interventions=[spec]).tokens

    assert says(planted) == (token,) * 5
    assert token not in says(random)


def test_patching_a_clean_run_into_a_corrupt_one_restores_the_answer_at_the_changed_position_only(one_head):
    """Before any mixing of positions, what differs is where the token differs."""
    corrupt = [*TOKENS[:5], 200, *TOKENS[6:]]
    site = "blocks.0.hook_resid_pre"
    clean, cache = one_head.run_with_cache(TOKENS, site)
    clean = clean.as_subclass(torch.Tensor)
    for position in range(len(TOKENS)):
        spec = I.Patch(site=site, values=cache[site], positions=(position,))
        patched = one_head.run_with_hooks(corrupt, [spec])
        assert torch.equal(patched, clean) == (position == 5)
