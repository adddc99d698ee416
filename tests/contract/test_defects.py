"""Defects of the original toolkit (facts/agents-and-20q.md), each by its number: the engine must be free of them."""

import asyncio

import torch

from sonde.core import interventions as I
from sonde.models import model as models_model
from sonde.models import requests, riders

NAME = "blocks.1.hook_resid_post"


def test_defect_1_hooks_are_removed_after_the_block(model, kit):
    for _ in range(3):
        with riders.riding(models_model._Fixed(model, (), (kit.Keeper(model.site_names),))):
            model.hf(input_ids=torch.tensor([kit.tokens(1, 6)]), use_cache=False)
    assert kit.count_hooks(model) == 0


def test_defect_2_decoding_does_not_overwrite_the_recorded_prompt(model, kit):
    keeper = kit.Keeper([NAME])
    prompt = kit.tokens(1, 9)
    (answer,) = kit.run(model, [requests.Request(tokens=prompt, sampling=kit.greedy(5), recorders=(keeper,))])
    assert len(answer.tokens) > 1
    assert keeper.value(NAME).shape[0] == 9 + len(answer.tokens) - 1
    _, cache = model.run_with_cache([*prompt, *answer.tokens[:-1]], NAME)
    assert kit.close(keeper.value(NAME), cache[NAME][0])


def test_defect_3_what_was_captured_does_not_alias_what_is_edited_later(model, kit):
    tokens = list(kit.tokens(1, 9))
    _, cache = model.run_with_cache(tokens)
    kept = {name: value.clone() for name, value in cache.items()}

    def in_place(value, hook):
        value.zero_()

    model.run_with_hooks(tokens, [("blocks.*.hook_resid_post", in_place), ("blocks.*.hook_mlp_out", in_place)])
    assert all(torch.equal(cache[name], kept[name]) for name in kept)


def test_defect_5_a_head_ablation_zeroes_the_head_at_all_positions_and_nothing_else(model, kit):
    site = "blocks.1.attn.hook_z"
    _, before = model.run_with_cache(list(kit.tokens(1, 7)), site)
    _, after = model.run_with_cache(list(kit.tokens(1, 7)), site, interventions=[I.Zero(site=site, heads=(2,))])
    assert not after[site][:, :, 2].any()
    others = [head for head in range(model.cfg.n_heads) if head != 2]
    assert torch.equal(after[site][:, :, others], before[site][:, :, others])


def test_defect_6_positions_mean_the_same_at_decode(model, kit):
    """One position of the prompt is patched: decoding neither crashes nor patches again."""
    prompt = kit.tokens(1, 8)
    values = torch.randn(8, model.cfg.d_model, generator=torch.Generator().manual_seed(1))
    for spec in (I.Patch(site=NAME, values=values), I.Patch(site=NAME, values=values, positions=(2, 5))):
        keeper = kit.Keeper([NAME])
        request = requests.Request(tokens=prompt, sampling=kit.greedy(5), interventions=(spec,), recorders=(keeper,))
        (answer,) = kit.run(model, [request])
        recorded = keeper.value(NAME)
        chosen = list(range(8)) if spec.positions is None else [2, 5]
        assert torch.equal(recorded[chosen], values[chosen])
        logits = model.run_with_hooks([*prompt, *answer.tokens], [spec])[0].log_softmax(dim=-1)
        assert kit.close(answer.logprobs, [float(logits[7 + i, token]) for i, token in enumerate(answer.tokens)])


def test_defect_6_mean_ablation_at_decode_uses_the_mean_of_the_prompt(model, kit):
    prompt = kit.tokens(1, 8)
    _, clean = model.run_with_cache(list(prompt), NAME)
    mean = clean[NAME][0].mean(dim=0)
    for phase, first in (("both", 0), ("decode", 8)):
        keeper = kit.Keeper([NAME])
        spec = I.Mean(site=NAME, phase=phase)
        request = requests.Request(tokens=prompt, sampling=kit.greedy(5), interventions=(spec,), recorders=(keeper,))
        kit.run(model, [request])
        assert kit.close(keeper.value(NAME)[first:], mean.expand(12 - first, -1))
        with riders.riding(models_model._Fixed(model, (spec,), (bare := kit.Keeper([NAME]),))):
            model.hf.generate(
                torch.tensor([prompt]), max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=-1
            )
        assert kit.close(bare.value(NAME)[first:], mean.expand(12 - first, -1))


def test_defect_6_negative_positions_mean_the_prompt_at_decode_and_under_padding(model, kit):
    """-1 is the last prompt token of each row, at every generated token."""
    rows = [kit.tokens(1, 9), kit.tokens(2, 4)]
    padded = torch.tensor([list(rows[0]), [0] * 5 + list(rows[1])])
    mask = torch.tensor([[1] * 9, [0] * 5 + [1] * 4])
    seen = []

    def note(value, hook):
        seen.append(hook.positions.tolist())

    spec = I.Opaque(fn=note, site=NAME, positions=(-1,))
    keeper_positions = []

    class Zeros(kit.Keeper):
        def deliver(self, recorded):
            fresh = recorded.positions[len(recorded.reused) :]
            keeper_positions.append((recorded.row, fresh[(recorded.values[NAME] == 0).all(dim=1).numpy()].tolist()))
            return super().deliver(recorded)

    zero = I.Zero(site=NAME, positions=(-1,))
    with riders.riding(models_model._Fixed(model, (spec, zero), (Zeros([NAME]),))):
        model.hf.generate(
            padded, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=-1
        )
    assert [found for _, found in keeper_positions] == [[8], [3], [], [], [], []]
    assert seen == [[list(range(9))], [list(range(4))]]


async def test_defect_10_the_event_loop_runs_on_and_requests_share_a_batch(gpt2, kit):
    batches = []
    run = gpt2._scheduler._run
    gpt2._scheduler._run = lambda batch, limit: batches.append(len(batch)) or run(batch, limit)
    try:
        waiting = gpt2.submit([requests.Request(tokens=kit.tokens(n, 5), sampling=kit.greedy(40)) for n in range(5)])
        ticks = 0
        while not all(future.done() for future in waiting):
            await asyncio.sleep(0.001)
            ticks += 1
    finally:
        gpt2._scheduler._run = run
    assert ticks > 5
    assert batches == [5]


def test_defect_10_top_p_top_k_and_stop_sequences_are_honoured(gpt2, kit):
    prompt = kit.tokens(1, 5)
    best = gpt2.generate(prompt, max_new_tokens=6)
    assert gpt2.generate(prompt, max_new_tokens=6, temperature=5.0, top_k=1, seed=9).tokens == best.tokens
    assert gpt2.generate(prompt, max_new_tokens=6, temperature=5.0, top_p=1e-9, seed=9).tokens == best.tokens
    request = requests.Request(
        tokens=prompt, sampling=kit.greedy(9, stop=("b",)), forced=tuple(gpt2.tokenizer.encode("aabaa"))
    )
    (answer,) = kit.run(gpt2, [request])
    assert (answer.text, answer.finish_reason) == ("aa", "stop")


def test_defect_13_head_results_fire_without_any_flag_and_add_up(model, kit):
    site = "blocks.1.attn.hook_result"
    _, cache = model.run_with_cache(list(kit.tokens(1, 7)), [site, "blocks.1.attn.hook_z", "blocks.1.hook_attn_out"])
    assert cache[site].shape == (1, 7, model.cfg.n_heads, model.cfg.d_model)
    projection = model.parts.taps[site].module
    with torch.no_grad():
        whole = projection(cache["blocks.1.attn.hook_z"].flatten(2))
    bias = 0 if getattr(projection, "bias", None) is None else projection.bias
    assert kit.close(cache[site].sum(dim=2) + bias, whole.detach())
    calls = []
    model.run_with_hooks(list(kit.tokens(1, 7)), [(site, lambda value, hook: calls.append(hook.name))])
    assert calls == [site]


def test_defect_13_zeroing_one_heads_result_equals_zeroing_its_z(model, kit):
    tokens = list(kit.tokens(1, 9))
    results = [I.Zero(site="blocks.1.attn.hook_result", heads=(3,), positions=(2, 8))]
    zs = [I.Zero(site="blocks.1.attn.hook_z", heads=(3,), positions=(2, 8))]
    assert kit.close(model.run_with_hooks(tokens, results), model.run_with_hooks(tokens, zs))
