"""The client: requests, settings, hooks, and who waits for whom."""

import asyncio
import time

import numpy as np
import pytest
import torch

import sonde
from sonde.core import errors

RESID = "blocks.3.hook_resid_post"


def user(text):
    return {"role": "user", "content": text}


def ask(text, **settings):
    return sonde.LLMRequest(messages=[user(text)], **settings)


async def test_a_response_says_all_there_is_to_know(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=7)
    response = await client(ask("hello"))
    prompt = model.tokenizer.apply_chat_template([user("hello")], add_generation_prompt=True, tokenize=False)
    assert response.prompt_token_ids == tuple(model.tokenizer.encode(prompt))
    assert response.usage.prompt_tokens == len(response.prompt_token_ids)
    assert response.usage.generated_tokens == len(response.token_ids) == len(response.logprobs) == 7
    assert response.usage.encoded_tokens == len(response.prompt_token_ids) + 6
    assert response.finish_reason == "length"
    assert (response.cost, response.step, response.dropped_tokens) == (0.0, 0, 0)
    assert client.model_name == "tiny-gpt2"
    generation = model.generate(response.prompt_token_ids, max_new_tokens=7)
    assert generation.tokens == response.token_ids
    assert response.text == response.data[0].content == generation.text


async def test_the_text_has_no_special_tokens(model):
    special = [*model.tokenizer.all_special_tokens]
    boost = np.zeros(model.cfg.d_vocab)
    boost[[256, 257, 259]] = 40.0  # special ones that do not end the text
    boost[65] = 40.0
    client = sonde.HookedTransformerLLMClient(
        model, generation_kwargs={"temperature": 1.0}, fwd_hooks=[("unembed.hook_out", sonde.Steer(direction=boost))]
    )
    response = await client(ask("hello", max_output_tokens=40))
    assert set(response.token_ids) & {256, 257, 259}
    assert not any(word in response.text for word in special)


async def test_a_requests_settings_win_over_the_clients(model):
    client = sonde.HookedTransformerLLMClient(
        model, max_new_tokens=9, generation_kwargs={"temperature": 1.0, "seed": 3, "top_k": 50, "max_new_tokens": 5}
    )
    assert len((await client(ask("hi"))).token_ids) == 5
    greedy = await client(ask("hi", temperature=0.0, max_output_tokens=8))
    assert greedy.token_ids == model.generate(greedy.prompt_token_ids, max_new_tokens=8).tokens
    narrow = await client(ask("hi", top_k=1, max_output_tokens=8))
    assert narrow.token_ids == greedy.token_ids
    tight = await client(ask("hi", top_p=1e-9, max_output_tokens=8))
    assert tight.token_ids == greedy.token_ids
    assert (await client(ask("hi", seed=11))).seed == 11
    stop = greedy.text[3]
    stopped = await client(ask("hi", temperature=0.0, max_output_tokens=8, stop_sequences=[stop]))
    assert stopped.finish_reason == "stop"
    assert stop not in stopped.text
    stopping = sonde.HookedTransformerLLMClient(model, max_new_tokens=8, generation_kwargs={"stop": stop})
    assert (await stopping(ask("hi"))).finish_reason == "stop"
    assert (await stopping(ask("hi", stop_sequences=[]))).finish_reason == "length"


async def test_do_sample_false_is_greedy(model):
    greedy = await sonde.HookedTransformerLLMClient(model, max_new_tokens=6)(ask("hi"))
    settings = {"do_sample": False, "temperature": 1.0}
    other = await sonde.HookedTransformerLLMClient(model, max_new_tokens=6, generation_kwargs=settings)(ask("hi"))
    assert other.token_ids == greedy.token_ids


async def test_seeds_reproduce_and_every_step_has_its_own(model, kit):
    first = await kit.episode(model, 3, temperature=1.0, seed=5)
    model.pool.entries.clear()
    again = await kit.episode(model, 3, temperature=1.0, seed=5)
    other = await kit.episode(model, 3, temperature=1.0, seed=6)
    assert [one.token_ids for one in first] == [one.token_ids for one in again]
    assert [one.token_ids for one in first] != [one.token_ids for one in other]
    assert first[0].seed == 5
    assert len({one.seed for one in first}) == 3
    client = sonde.HookedTransformerLLMClient(model, generation_kwargs={"temperature": 1.0})
    same = await client(ask("Turn 0: say word ", seed=first[0].seed, max_output_tokens=6))
    assert same.token_ids == first[0].token_ids


async def test_half_a_character_becomes_a_question_mark(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=2)
    torn, whole = [await client(ask(text, system_prompt=text)) for text in ("\ud800 hi", "? hi")]
    assert torn.prompt_token_ids == whole.prompt_token_ids


async def test_impossible_requests_are_refused_with_advice(model):
    client = sonde.HookedTransformerLLMClient(model)
    with pytest.raises(errors.RequestError, match="at least one message"):
        await client(sonde.LLMRequest(messages=[]))
    with pytest.raises(errors.RequestError, match="needs a role"):
        await client(sonde.LLMRequest(messages=[{"content": "x"}]))
    with pytest.raises(errors.RequestError, match="max_new_tokens must be at least 1, got 0"):
        await client(ask("x", max_output_tokens=0))
    with pytest.raises(errors.RequestError, match="temperature must be 0 or more"):
        await client(ask("x", temperature=-1.0))
    with pytest.raises(errors.RequestError, match="unknown generation settings"):
        sonde.HookedTransformerLLMClient(model, generation_kwargs={"temprature": 1.0})
    with pytest.raises(TypeError, match="unknown options"):
        sonde.HookedTransformerLLMClient(model, polcy="error")


async def test_sixteen_tasks_at_once_get_what_they_would_get_one_after_another(model, kit):
    async def play(number, client):
        return [
            (one.token_ids, one.step, one.seed)
            for one in await kit.episode(model, 3, client=client, temperature=1.0, seed=number % 4)
        ]

    def client_of(number):
        return sonde.HookedTransformerLLMClient(
            model, max_new_tokens=6, generation_kwargs={"temperature": 1.0, "seed": number % 4}
        )

    expected = [await play(number, client_of(number)) for number in range(4)]
    model.pool.entries.clear()
    shared = {number: client_of(number) for number in range(4)}  # four tasks each, in the same words
    together = await asyncio.gather(*(play(number, shared[number % 4]) for number in range(16)))
    for number, found in enumerate(together):
        assert found == expected[number % 4]


async def test_two_continuations_at_once_are_two_episodes_from_there_on(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=4)
    first = await client(ask("start"))
    history = [user("start"), {"role": "assistant", "content": first.text}]
    branches = await asyncio.gather(
        *(client(sonde.LLMRequest(messages=[*history, user(text)])) for text in ("left", "right", "left"))
    )
    assert [one.step for one in branches] == [1, 1, 1]
    later = [*history, user("left"), {"role": "assistant", "content": branches[0].text}, user("on")]
    assert (await client(sonde.LLMRequest(messages=later))).step == 2


async def test_an_agent_that_edits_its_history_stays_in_its_episode(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=4)
    messages = []
    for step in range(4):
        messages = [*messages, user(f"turn {step}")]
        response = await client(sonde.LLMRequest(messages=messages))
        assert response.step == step
        messages = [*messages, {"role": "assistant", "content": f"[parsed {step}]"}]
    assert (await client(sonde.LLMRequest(messages=[user("turn 0")]))).step == 0


async def test_edited_histories_played_at_once_keep_their_steps(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=4)

    async def play():
        messages, steps = [], []
        for step in range(3):
            messages = [*messages, user(f"turn {step}")]
            steps.append((await client(sonde.LLMRequest(messages=messages))).step)
            messages = [*messages, {"role": "assistant", "content": f"[parsed {step}]"}]
        return steps

    assert await asyncio.gather(*(play() for _ in range(4))) == [[0, 1, 2]] * 4


async def test_an_episode_id_names_the_episode(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=3)

    async def step(key, *texts):
        request = sonde.LLMRequest(messages=[user(text) for text in texts], metadata={"episode_id": key})
        return (await client(request)).step

    assert [await step("a", "x"), await step("b", "x"), await step("a", "other", "y"), await step("b", "x", "z")] == [
        0,
        0,
        1,
        1,
    ]


async def test_cancelling_a_task_frees_the_engine(model):
    client = sonde.HookedTransformerLLMClient(model)
    task = asyncio.create_task(client(ask("go on and on", max_output_tokens=1900)))
    await asyncio.sleep(0.1)
    task.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client(ask("next", max_output_tokens=2))
    assert time.monotonic() - started < 2.0
    assert (await client(ask("go on and on", max_output_tokens=2))).step == 0


async def test_the_event_loop_keeps_ticking_while_the_model_works(model):
    ticks = 0

    async def clock():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.002)
            ticks += 1

    ticking = asyncio.create_task(clock())
    await sonde.HookedTransformerLLMClient(model)(ask("hello", max_output_tokens=60))
    ticking.cancel()
    assert ticks >= 5


async def test_hooks_may_be_pairs_wildcards_predicates_async_names_or_an_async_whole(model):
    seen = []

    async def names(state):
        seen.append((state.step, len(state.prompt_tokens), state.request.messages[-1]["content"]))
        return [RESID] if state.step == 1 else None

    async def whole(state):
        return [(RESID, zero)] if state.step == 1 else []

    zero = sonde.create_zero_ablation_hook()
    everywhere = {
        "pair": [(RESID, zero)],
        "function": [(RESID, lambda value, hook: value * 0)],
        "wildcard": [("blocks.3.hook_resid_p*st", zero)],
        "predicate": [(lambda name: name == RESID, zero)],
        "intervention": [zero.at(RESID)],
        "sync whole": lambda state: [zero.at(RESID)],
    }
    at_step_1 = {"async name": [(names, zero)], "async whole": whole, "steps": [zero.at(RESID, steps=(1,))]}
    for label, hooks in {**everywhere, **at_step_1}.items():
        client = sonde.HookedTransformerLLMClient(model, max_new_tokens=3, fwd_hooks=hooks)
        messages = []
        for step in range(3):
            messages = [*messages, user(f"turn {step}")]
            with sonde.automatic_activation_capture(model, RESID, positions="prompt") as capture:
                response = await client(sonde.LLMRequest(messages=messages))
            value = capture.get_trajectory().get_activation(0, RESID)
            assert bool((value == 0).all()) == (label in everywhere or step == 1), (label, step)
            messages = [*messages, {"role": "assistant", "content": response.text}]
    assert [one[0] for one in seen] == [0, 1, 2]
    assert seen[2][2] == "turn 2"


async def test_a_hook_that_names_no_site_is_refused(model):
    client = sonde.HookedTransformerLLMClient(model, fwd_hooks=[("blocks.3.hook_residpost", lambda v, hook: v)])
    with pytest.raises(errors.SiteError, match="did you mean"):
        await client(ask("hi"))


async def test_one_clients_hooks_do_not_touch_another_on_the_same_model(model):
    plain = sonde.HookedTransformerLLMClient(model, max_new_tokens=5)
    hooked = sonde.HookedTransformerLLMClient(
        model, max_new_tokens=5, fwd_hooks=[(RESID, sonde.create_zero_ablation_hook())]
    )
    clean = await plain(ask("hello"))
    both = await asyncio.gather(*(client(ask("hello")) for client in (hooked, plain, hooked, plain)))
    assert [one.token_ids == clean.token_ids for one in both] == [False, True, False, True]


def test_a_client_with_a_template_needs_one(model):
    from sonde.models import tiny

    bare = tiny.tokenizer()
    bare.chat_template = None
    with pytest.raises(errors.RequestError, match="no chat template"):
        sonde.create_hooked_transformer_client_with_chat_template(model, bare)
    client = sonde.create_hooked_transformer_client_with_chat_template(
        model, bare, "mine", 5, {"temperature": 0.5}, chat_template=tiny.CHAT_TEMPLATE
    )
    assert (client.model_name, client.max_new_tokens) == ("mine", 5)
    response = asyncio.run(client(ask("hi")))
    assert response.prompt_token_ids[0] == 257
    plain = sonde.HookedTransformerLLMClient(model, tokenizer=bare, max_new_tokens=2)
    prompt = asyncio.run(plain(ask("hi"))).prompt_token_ids
    assert model.tokenizer.decode(prompt) == "user:\nhi\nassistant:\n"


async def test_persisting_interventions_go_on_for_the_tokens_they_were_made_on(model, kit):
    """`after="persist"` at step 0: later steps equal a fresh run with the intervention at step 0's tokens."""
    steer = sonde.Steer(
        site=RESID, direction=np.linspace(-2, 2, 32), steps=(0,), scope="new", after="persist", phase="prefill"
    )
    with sonde.ActivationCapture(model, "blocks.5.hook_resid_post") as capture:
        client = sonde.HookedTransformerLLMClient(model, max_new_tokens=6, fwd_hooks=[steer])
        responses = await kit.episode(model, 3, capture=capture, client=client)
    first = len(responses[0].prompt_token_ids)
    for step, response in enumerate(responses):
        context = torch.tensor(response.prompt_token_ids + response.token_ids[:-1])
        held = sonde.Steer(site=RESID, direction=steer.direction, positions=tuple(range(first)))
        _, cache = model.run_with_cache(context, "blocks.5.hook_resid_post", interventions=[held])
        value = capture.get_trajectory().get_activation(step, "blocks.5.hook_resid_post")
        assert kit.close(value, cache["blocks.5.hook_resid_post"])
