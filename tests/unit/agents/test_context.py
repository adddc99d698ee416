"""When the context is full: nothing goes silently, and positions keep their meaning."""

import asyncio

import numpy as np
import pytest
import torch

import sonde
from sonde.core import errors
from sonde.models import tiny

RESID = "blocks.3.hook_resid_post"
LONG = "word " * 60  # 300 tokens, one per byte


def chat_of(turns, text=LONG):
    messages = [{"role": "system", "content": "These are the rules."}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Q{turn}: {text}"})
        messages.append({"role": "assistant", "content": f"A{turn}."})
    return [*messages, {"role": "user", "content": "The last question."}]


async def test_by_default_a_full_context_is_an_error_with_numbers_and_advice(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=20)
    with pytest.raises(errors.ContextError, match=r"takes \d+ tokens but only 2028 fit.*drop_oldest_turns"):
        await client(sonde.LLMRequest(messages=chat_of(8)))


async def test_an_answer_as_long_as_the_context_is_an_error(model):
    for wanted in (2048, 5000):
        client = sonde.HookedTransformerLLMClient(model, max_new_tokens=wanted)
        with pytest.raises(errors.ContextError, match=f"max_new_tokens={wanted} leaves no room"):
            await client(sonde.LLMRequest(messages=[{"role": "user", "content": "x"}]))


async def test_an_unknown_policy_is_an_error(model):
    with pytest.raises(errors.RequestError, match="did you mean 'drop_oldest_turns'"):
        sonde.HookedTransformerLLMClient(model, context_policy="drop_oldest")


@pytest.mark.parametrize("policy", ["drop_oldest_turns", "keep_first_and_last"])
async def test_whole_messages_are_dropped_and_counted_and_the_ends_survive(model, policy):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=20, context_policy=policy)
    messages = chat_of(8)
    response = await client(sonde.LLMRequest(messages=messages))
    text = model.tokenizer.decode(response.prompt_token_ids)
    whole = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text.startswith("<|im_start|>system\nThese are the rules.<|im_end|>\n")
    assert text.endswith("The last question.<|im_end|>\n<|im_start|>assistant\n")
    assert ("Q0:" in text) == (policy == "keep_first_and_last")
    assert response.dropped_tokens == len(model.tokenizer.encode(whole)) - len(response.prompt_token_ids) > 0
    assert len(response.prompt_token_ids) <= 2028
    assert len(response.prompt_token_ids) + 2 * 330 > 2028  # no more was dropped than needed
    kept = [message for message in messages if f"\n{message['content']}<|im_end|>" in text]
    expected = model.tokenizer.apply_chat_template(kept, add_generation_prompt=True, tokenize=False)
    assert text == expected


async def test_one_warning_per_episode_says_that_turns_are_dropped(model, caplog):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=1, context_policy="drop_oldest_turns")
    for episode in range(2):
        for turns in (1, 7, 8):
            asked = sonde.LLMRequest(messages=chat_of(turns), metadata={"episode_id": episode})
            assert bool((await client(asked)).dropped_tokens) == (turns > 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert all("from step 1 on, drop_oldest_turns leaves out turns" in message for message in caplog.messages)


async def test_branches_of_an_episode_do_not_repeat_the_warning(model, caplog):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=1, context_policy="keep_first_and_last")
    answer = await client(sonde.LLMRequest(messages=chat_of(7)))
    longer = [*chat_of(7), {"role": "assistant", "content": answer.text}, {"role": "user", "content": "Go on."}]
    await asyncio.gather(*(client(sonde.LLMRequest(messages=longer)) for _ in range(2)))
    assert len(caplog.records) == 1


async def test_what_may_not_be_dropped_and_does_not_fit_is_an_error(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=20, context_policy="drop_oldest_turns")
    messages = [*chat_of(2)[:-1], {"role": "user", "content": "x" * 2100}]
    with pytest.raises(errors.ContextError, match="even with every turn dropped"):
        await client(sonde.LLMRequest(messages=messages))
    with pytest.raises(errors.ContextError):
        await client(sonde.LLMRequest(messages=messages[-1:]))


async def test_without_a_system_prompt_the_oldest_goes_too(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=20, context_policy="drop_oldest_turns")
    response = await client(sonde.LLMRequest(messages=chat_of(8)[1:]))
    assert response.dropped_tokens > 0
    assert model.tokenizer.decode(response.prompt_token_ids).endswith("question.<|im_end|>\n<|im_start|>assistant\n")


async def grown(model, client, turns, capture=None, text=LONG):
    """An episode that outgrows the context."""
    messages = [{"role": "system", "content": "These are the rules."}]
    responses = []
    for turn in range(turns):
        messages = [*messages, {"role": "user", "content": f"Q{turn}: {text}"}]
        if capture is not None:
            capture.start_step()
        responses.append(await client(sonde.LLMRequest(messages=messages)))
        if capture is not None:
            capture.end_step()
        messages = [*messages, {"role": "assistant", "content": responses[-1].text}]
    return responses


@pytest.mark.parametrize("policy", ["drop_oldest_turns", "keep_first_and_last"])
async def test_a_kept_token_keeps_its_episode_position_whatever_is_dropped(model, policy):
    client = sonde.HookedTransformerLLMClient(
        model, max_new_tokens=8, context_policy=policy, generation_kwargs={"temperature": 1.0}
    )
    with sonde.ActivationCapture(model, "hook_embed") as capture:
        responses = await grown(model, client, 9, capture)
    assert responses[-1].dropped_tokens > responses[0].dropped_tokens == 0
    trajectory = capture.get_trajectory()
    known: dict[int, int] = {}
    for step in range(9):
        tokens, positions = trajectory.tokens(step).tolist(), trajectory.positions(step).tolist()
        assert positions == sorted(set(positions))
        for position, token in zip(positions, tokens, strict=True):
            if known.get(position, token) != token:
                assert known[position] in (256, 257, 259)  # sampled special tokens are left out of the next prompt
        known |= dict(zip(positions, tokens, strict=True))
        prompt = responses[step].prompt_token_ids
        assert positions[len(prompt) - 1] == len(prompt) - 1 + responses[step].dropped_tokens


@pytest.mark.parametrize("policy", ["drop_oldest_turns", "keep_first_and_last"])
async def test_an_intervention_at_a_kept_position_hits_that_token_after_dropping(model, kit, policy):
    """Q5 begins like Q0 to Q4, and ends like them: only its place tells it apart."""
    probe = sonde.HookedTransformerLLMClient(model, max_new_tokens=8, context_policy=policy)
    before = await grown(model, probe, 8)
    mark = before[5].prompt_token_ids  # nothing was dropped yet
    assert before[5].dropped_tokens == 0
    wanted = tuple(model.tokenizer.encode("Q5: "))
    (place,) = (i for i in range(len(mark)) if mark[i : i + len(wanted)] == wanted)
    chosen = (place - 3, place, place + 1, len(mark) - 1)
    hook = sonde.create_zero_ablation_hook(positions=chosen, site=RESID)
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=8, context_policy=policy, fwd_hooks=[hook])
    with sonde.ActivationCapture(model, RESID) as capture:
        after = await grown(model, client, 8, capture)
    assert after[7].dropped_tokens > 0
    trajectory = capture.get_trajectory()
    for step in (5, 7):
        zero = (trajectory.get_activation(step, RESID)[0].abs().sum(-1) == 0).nonzero().flatten()
        assert trajectory.positions(step)[zero].tolist() == list(chosen)
        assert trajectory.tokens(step)[zero].tolist() == [mark[position] for position in chosen]


async def test_recordings_after_dropping_equal_a_fresh_run_of_what_was_left(model, kit):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=8, context_policy="keep_first_and_last")
    with sonde.ActivationCapture(model, [RESID, "blocks.2.attn.hook_pattern"]) as capture:
        responses = await grown(model, client, 8, capture)
    context = torch.tensor(responses[-1].prompt_token_ids + responses[-1].token_ids[:-1])
    _, cache = model.run_with_cache(context, [RESID, "blocks.2.attn.hook_pattern"])
    for name, value in cache.items():
        assert kit.close(capture.get_trajectory().get_activation(7, name), value)


@pytest.mark.parametrize("gap", [" ", "\n", ""])
async def test_a_template_without_turn_tokens_keeps_positions_too(model, gap):
    template = (
        "{% for m in messages %}{{ m['role'] }}:" + gap + "{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    never_special = np.where(np.arange(260) < 256, 0.0, -100.0)  # those are left out of the next prompt
    client = sonde.HookedTransformerLLMClient(
        model,
        max_new_tokens=8,
        context_policy="drop_oldest_turns",
        chat_template=template,
        fwd_hooks=[sonde.Steer(site="unembed.hook_out", direction=never_special)],
    )
    with sonde.ActivationCapture(model, "hook_embed") as capture:
        responses = await grown(model, client, 8, capture)
    assert responses[-1].dropped_tokens > 0
    first, last = (
        dict(
            zip(
                capture.get_trajectory().positions(s).tolist(), capture.get_trajectory().tokens(s).tolist(), strict=True
            )
        )
        for s in (5, 7)
    )
    shared = set(first) & set(last)
    assert len(shared) > 200
    assert all(first[position] == last[position] for position in shared)


async def test_a_template_that_refuses_a_chat_without_a_user_still_drops(model):
    template = (
        "{% if messages[-1]['role'] == 'system' %}{{ raise_exception('no user') }}{% endif %}" + tiny.CHAT_TEMPLATE
    )
    client = sonde.HookedTransformerLLMClient(
        model, max_new_tokens=20, context_policy="drop_oldest_turns", chat_template=template
    )
    response = await client(sonde.LLMRequest(messages=chat_of(8)))
    text = model.tokenizer.decode(response.prompt_token_ids)
    assert response.dropped_tokens > 0
    assert text.startswith("<|im_start|>system\nThese are the rules.<|im_end|>\n<|im_start|>")
    assert text.endswith("The last question.<|im_end|>\n<|im_start|>assistant\n")


async def test_without_a_limit_the_answer_takes_what_is_left(model):
    client = sonde.HookedTransformerLLMClient(model)
    response = await client(sonde.LLMRequest(messages=[{"role": "user", "content": "x" * 2000}]))
    assert len(response.prompt_token_ids) + len(response.token_ids) <= 2048
    assert np.isfinite(response.logprobs).all()
