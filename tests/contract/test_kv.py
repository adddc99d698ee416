"""The cache is invisible: a conversation that goes on equals the same conversation encoded from scratch."""

import pytest
import torch

from sonde.core import interventions as I
from sonde.models import loading, requests

STEPS = 4


def _converse(model, kit, *, cached, recorders=(), specs=(), seed=0, steps=STEPS):
    """Plays several steps; the contexts are forced to be the same by greedy sampling."""
    context, answers, persisted, end = (), [], (), 0
    for step in range(steps):
        context = (*context, *kit.tokens(10 * seed + step, 6 + step))
        if not cached:
            model.pool.entries.clear()
        request = requests.Request(
            tokens=context,
            sampling=kit.greedy(5, seed=step),
            interventions=specs,
            persisted=persisted,
            step=step,
            new_start=end,
            recorders=recorders,
        )
        (answer,) = kit.run(model, [request])
        answers.append(answer)
        context = (*context, *answer.tokens)
        end, persisted = len(context), answer.persisted
    return context, answers


def test_a_cached_conversation_equals_an_uncached_one(model, kit):
    _, cached = _converse(model, kit, cached=True)
    _, fresh = _converse(model, kit, cached=False)
    assert [one.tokens for one in cached] == [one.tokens for one in fresh]
    for left, right in zip(cached, fresh, strict=True):
        assert kit.close(left.logprobs, right.logprobs)
    for step, (left, right) in enumerate(zip(cached, fresh, strict=True)):
        assert right.encoded_tokens == right.prompt_tokens + len(right.tokens) - 1
        if step:  # the new message, and the last token of the answer before it
            assert left.encoded_tokens == 6 + step + 1 + len(left.tokens) - 1


def test_a_recorded_conversation_equals_one_forward_pass_over_all_its_tokens_at_every_site(model, kit):
    keeper = kit.Keeper(model.site_names)
    context, _ = _converse(model, kit, cached=True, recorders=(keeper,))
    assert len(keeper.records) == len(context) - 1  # every token once; the last was never fed back
    _, expected = model.run_with_cache(list(context[:-1]), list(model.site_names))
    for name in model.site_names:
        value = expected[name][0]
        if name.endswith("hook_attn_scores"):
            value = value.masked_fill(torch.ones_like(value).triu(1).bool(), 0)
        assert kit.close(keeper.value(name), value), name


def test_an_edited_conversation_falls_back_to_the_longest_common_prefix(model, kit):
    first = kit.tokens(1, 30)
    kit.run(model, [requests.Request(tokens=first, sampling=kit.greedy(1))])
    edited = (*first[:17], *kit.tokens(2, 10))
    (answer,) = kit.run(model, [requests.Request(tokens=edited, sampling=kit.greedy(4))])
    assert answer.encoded_tokens == 10 + 3
    model.pool.entries.clear()
    (fresh,) = kit.run(model, [requests.Request(tokens=edited, sampling=kit.greedy(4))])
    assert answer.tokens == fresh.tokens
    assert kit.close(answer.logprobs, fresh.logprobs)
    # The first conversation is still there too.
    (again,) = kit.run(model, [requests.Request(tokens=(*edited, 1, 2), sampling=kit.greedy(1))])
    assert again.encoded_tokens == 2


def test_a_prefix_shared_by_two_branches_serves_both_in_one_batch(model, kit):
    trunk = kit.tokens(1, 25)
    kit.run(model, [requests.Request(tokens=trunk, sampling=kit.greedy(1))])
    branches = [requests.Request(tokens=(*trunk, *kit.tokens(n, 3 + n)), sampling=kit.greedy(4)) for n in range(3)]
    answers = kit.run(model, branches)
    assert [one.encoded_tokens for one in answers] == [3 + n + 3 for n in range(3)]
    for branch, answer in zip(branches, answers, strict=True):
        model.pool.entries.clear()
        (fresh,) = kit.run(model, [branch])
        assert fresh.tokens == answer.tokens
        assert kit.close(fresh.logprobs, answer.logprobs)


def test_conversations_that_change_places_and_companions_stay_right(gpt2, kit):
    """Rows go on in place, with all or some of their companions; any other company is copied."""
    contexts = [kit.tokens(n, 5 + n) for n in range(4)]
    for wave in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3], [0, 2], [0, 1, 2, 3], [3, 1, 2], [0, 3], [2]):
        batch = [requests.Request(tokens=contexts[n], sampling=kit.greedy(3)) for n in wave]
        for n, answer in zip(wave, kit.run(gpt2, batch), strict=True):
            with torch.no_grad():
                ids = torch.tensor([(*contexts[n], *answer.tokens)])
                logits = gpt2.hf(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
            expected = [float(logits[len(contexts[n]) - 1 + i, token]) for i, token in enumerate(answer.tokens)]
            assert kit.close(answer.logprobs, expected)
            assert answer.encoded_tokens <= 5 + 3 + 3 + 2
            contexts[n] = (*contexts[n], *answer.tokens, 7, 8)


def test_a_new_recorder_is_given_everything_although_the_prefix_is_cached(gpt2, kit):
    prompt = kit.tokens(1, 12)
    kit.run(gpt2, [requests.Request(tokens=prompt, sampling=kit.greedy(3))])
    keeper = kit.Keeper(["blocks.2.hook_resid_post"])
    (answer,) = kit.run(gpt2, [requests.Request(tokens=prompt, sampling=kit.greedy(3), recorders=(keeper,))])
    assert answer.encoded_tokens == 12 + 2
    assert len(keeper.records) == 12 + 2


def test_two_recorders_that_joined_at_different_times_are_both_complete(gpt2, kit):
    early, late = kit.Keeper(["blocks.2.hook_resid_post"]), kit.Keeper(["blocks.2.hook_resid_post", "hook_embed"])
    context = kit.tokens(1, 10)
    (answer,) = kit.run(gpt2, [requests.Request(tokens=context, sampling=kit.greedy(3), recorders=(early,))])
    context = (*context, *answer.tokens, 5, 6, 7)
    kit.run(gpt2, [requests.Request(tokens=context, sampling=kit.greedy(3), recorders=(early, late))])
    name = "blocks.2.hook_resid_post"
    assert kit.close(early.value(name), late.value(name))
    assert len(late.value(name)) == len(context) + 2


@pytest.mark.parametrize("budget", [0, 400_000])
def test_generation_under_a_tight_budget_is_still_right(kit, budget):
    with loading.load("tiny-gpt2", kv_budget=budget) as tight, loading.load("tiny-gpt2") as roomy:
        for seed in range(2):
            _, left = _converse(tight, kit, cached=True, seed=seed)
            _, right = _converse(roomy, kit, cached=True, seed=seed)
            assert [one.tokens for one in left] == [one.tokens for one in right]
            for one, other in zip(left, right, strict=True):
                assert kit.close(one.logprobs, other.logprobs)
        assert len(tight.pool.entries) == 1 or tight.pool.nbytes <= budget


def test_constant_steering_reuses_the_cache_as_no_steering_does(model, kit):
    steer = I.Steer(site="blocks.1.hook_resid_post", direction=torch.ones(model.cfg.d_model), strength=2.0)
    _, cached = _converse(model, kit, cached=True, specs=(steer,))
    assert [one.encoded_tokens for one in cached[1:]] == [6 + step + 1 + 4 for step in range(1, STEPS)]
    _, fresh = _converse(model, kit, cached=False, specs=(steer,))
    assert [one.tokens for one in cached] == [one.tokens for one in fresh]


def test_a_step_limited_intervention_leaves_the_clean_branch_reusable(model, kit):
    steer = I.Steer(site="blocks.1.hook_resid_post", direction=torch.ones(model.cfg.d_model), strength=5.0, steps=(2,))
    _, answers = _converse(model, kit, cached=True, specs=(steer,))
    full = answers[2].prompt_tokens + 4
    assert answers[2].encoded_tokens == full  # everything anew, steered
    # Step 3 goes on from the clean encoding that step 1 left: steps 2 and 3 are new to it, nothing before.
    clean_end = answers[1].prompt_tokens + 4
    assert answers[3].encoded_tokens == answers[3].prompt_tokens - clean_end + 4


def test_the_same_interventions_in_another_order_do_not_share_a_cache(gpt2, kit):
    site = "blocks.1.hook_resid_post"
    zero, steer = I.Zero(site=site), I.Steer(site=site, direction=torch.ones(gpt2.cfg.d_model), strength=3.0)
    prompt = kit.tokens(1, 12)
    kit.run(gpt2, [requests.Request(tokens=prompt, sampling=kit.greedy(1), interventions=(zero, steer))])
    swapped = requests.Request(tokens=prompt, sampling=kit.greedy(4), interventions=(steer, zero))
    (cached,) = kit.run(gpt2, [swapped])
    gpt2.pool.entries.clear()
    (fresh,) = kit.run(gpt2, [swapped])
    assert cached.encoded_tokens == fresh.encoded_tokens
    assert kit.close(cached.logprobs, fresh.logprobs)
