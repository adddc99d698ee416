"""A batch is a convenience: every row is what it would be alone."""

import pytest
import torch

from sonde.core import interventions as I
from sonde.models import requests


def _specs(model):
    """One intervention per row, all different, two of them sharing a Site."""
    wide = torch.randn(model.cfg.d_model, generator=torch.Generator().manual_seed(0))
    return [
        (),
        (I.Steer(site="blocks.1.hook_resid_post", direction=wide, strength=2.0),),
        (I.Zero(site="blocks.1.hook_resid_post", positions=(3, -1)), I.Scale(site="blocks.*.hook_mlp_out", factor=0.5)),
        (I.Knockout(site="blocks.2.attn.hook_attn_scores", keys=(0, 1), heads=(1,)),),
        (I.Opaque(site="blocks.0.attn.hook_z", fn=lambda value, hook: value * 2, heads=(0, 2), phase="decode"),),
        (I.Mean(site="blocks.1.hook_mlp_out"),),
    ]


@pytest.mark.parametrize("changed", [False, True])
def test_prompts_of_different_lengths_in_one_batch_equal_each_alone(model, kit, changed):
    specs = _specs(model) if changed else [()] * 6
    batch = [
        requests.Request(tokens=kit.tokens(row, 5 + 7 * row), sampling=kit.greedy(6), interventions=own)
        for row, own in enumerate(specs)
    ]
    together = kit.run(model, batch)
    for request, answer in zip(batch, together, strict=True):
        model.pool.entries.clear()
        (alone,) = kit.run(model, [request])
        assert answer.tokens == alone.tokens
        assert kit.close(answer.logprobs, alone.logprobs)


def test_recordings_of_a_batch_equal_the_rows_alone(model, kit):
    names = [name for name in model.site_names if name.startswith("blocks.1.") or "." not in name]
    specs = _specs(model)[:4]
    keepers = [kit.Keeper(names) for _ in specs]
    batch = [
        requests.Request(
            tokens=kit.tokens(row, 4 + 6 * row), sampling=kit.greedy(4), interventions=own, recorders=(keepers[row],)
        )
        for row, own in enumerate(specs)
    ]
    kit.run(model, batch)
    for request, keeper in zip(batch, keepers, strict=True):
        alone = kit.Keeper(names)
        model.pool.entries.clear()
        kit.run(model, [requests.Request(
            tokens=request.tokens, sampling=request.sampling, interventions=request.interventions, recorders=(alone,)
        )])  # fmt: skip
        for name in names:
            assert kit.close(keeper.value(name), alone.value(name)), name


def test_a_left_padded_bare_forward_equals_each_row_alone_at_every_site(model, kit):
    rows = [kit.tokens(1, 20), kit.tokens(2, 13), kit.tokens(3, 4)]
    width = max(map(len, rows))
    padded = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    logits, cache = model.run_with_cache(padded, list(model.site_names), attention_mask=mask)
    for index, row in enumerate(rows):
        alone, expected = model.run_with_cache(list(row), list(model.site_names))
        assert kit.close(logits.as_subclass(torch.Tensor)[index, -len(row) :], alone.as_subclass(torch.Tensor)[0])
        for name, value in expected.items():
            got = cache[name][index]
            got = got[:, -len(row) :, -len(row) :] if "pattern" in name or "scores" in name else got[-len(row) :]
            assert kit.close(got, value[0]), name


@pytest.mark.parametrize("kind", ["hook_resid_post", "attn.hook_q", "hook_mlp_out"])
def test_positions_in_a_left_padded_bare_forward_do_not_count_the_padding(model, kit, kind):
    rows = [kit.tokens(1, 12), kit.tokens(2, 5)]
    padded = torch.tensor([list(rows[0]), [0] * 7 + list(rows[1])])
    mask = torch.tensor([[1] * 12, [0] * 7 + [1] * 5])
    site = f"blocks.1.{kind}"
    _, cache = model.run_with_cache(
        padded, site, attention_mask=mask, interventions=[I.Zero(site=site, positions=(2, -1))]
    )
    assert [int(p) for p in (cache[site][0].flatten(1) == 0).all(dim=1).nonzero()] == [2, 11]
    assert [int(p) for p in (cache[site][1].flatten(1) == 0).all(dim=1).nonzero()] == [9, 11]


def test_rows_that_apply_equal_interventions_in_another_order_keep_their_own_order(gpt2, kit):
    site = "blocks.1.hook_resid_post"
    zero, steer = I.Zero(site=site), I.Steer(site=site, direction=torch.ones(gpt2.cfg.d_model), strength=3.0)
    orders = [(zero, steer), (steer, zero), (zero, steer, zero), (steer,)]
    keepers = [kit.Keeper([site]) for _ in orders]
    kit.run(
        gpt2,
        [
            requests.Request(
                tokens=kit.tokens(1, 6), sampling=kit.greedy(3), interventions=order, recorders=(keepers[row],)
            )
            for row, order in enumerate(orders)
        ],
    )
    assert torch.equal(keepers[0].value(site), torch.full_like(keepers[0].value(site), 3.0))
    assert not keepers[1].value(site).any()
    assert not keepers[2].value(site).any()
    assert keepers[3].value(site).std() > 0


def test_a_batch_larger_than_the_limit_is_answered_in_several(gpt2, kit):
    batch = [requests.Request(tokens=kit.tokens(n, 3), sampling=kit.greedy(1)) for n in range(70)]
    answers = gpt2.submit(batch)
    assert [answer.result(timeout=60).prompt_tokens for answer in answers] == [3] * 70


def test_requests_with_and_without_a_layer_order_submitted_together_are_all_answered(gpt2, kit):
    order = I.LayerOrder(order=(0, 2, 1, 3))
    batch = [
        requests.Request(tokens=kit.tokens(n, 6), sampling=kit.greedy(3), interventions=(order,) if n % 2 else ())
        for n in range(6)
    ]
    together = [answer.result(timeout=60) for answer in gpt2.submit(batch)]
    for request, answer in zip(batch, together, strict=True):
        gpt2.pool.entries.clear()
        assert kit.run(gpt2, [request])[0].tokens == answer.tokens


def test_stored_values_for_several_rows_patch_row_by_row_in_a_bare_forward_only(gpt2, kit):
    site = "blocks.0.hook_mlp_out"
    tokens = torch.tensor([kit.tokens(1, 5), kit.tokens(2, 5)])
    values = torch.randn(2, 5, gpt2.cfg.d_model)
    _, cache = gpt2.run_with_cache(tokens, site, interventions=[I.Patch(site=site, values=values)])
    assert torch.equal(cache[site], values)
    with pytest.raises(ValueError, match="batch of 2 do not fit an input of 1"):
        gpt2.run_with_hooks(tokens[:1], [I.Patch(site=site, values=values)])
    with pytest.raises(ValueError, match=r"Patch\.values at blocks\.0\.hook_mlp_out.*one row.*batch of 2"):
        gpt2.generate(kit.tokens(1, 5), interventions=[I.Patch(site=site, values=values)])
