"""Drawing tokens: seeded, alone, exact; and when a text ends."""

import math

import pytest
import tokenizers
import torch
import transformers

from sonde.core import interventions as I
from sonde.models import loading, requests, sampling, tiny
from sonde.models import model as models_model

END, START = 258, 257


def test_temperature_zero_equals_greedy_generation_of_transformers(model, kit):
    for seed in range(3):
        prompt = kit.tokens(seed, 9 + 6 * seed)
        answer = model.generate(prompt, max_new_tokens=12)
        with torch.no_grad():
            ids = torch.tensor([prompt])
            whole = model.hf.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert list(answer.tokens) == whole[0, len(prompt) :].tolist()


def test_logprobs_are_those_of_a_plain_forward_pass(model, kit):
    prompt = kit.tokens(5, 11)
    answer = model.generate(prompt, max_new_tokens=8, temperature=1.3, top_k=50, seed=4)
    with torch.no_grad():
        logits = model.hf(torch.tensor([[*prompt, *answer.tokens]]), use_cache=False).logits[0].log_softmax(dim=-1)
    assert kit.close(answer.logprobs, [float(logits[10 + i, token]) for i, token in enumerate(answer.tokens)])


def test_a_seed_fixes_the_draw_whatever_else_is_in_the_batch(model, kit):
    def request(seed, prompt=1, n=10):
        return requests.Request(tokens=kit.tokens(prompt, 8), sampling=kit.greedy(n, temperature=1.0, seed=seed))

    (alone,) = kit.run(model, [request(7)])
    model.pool.entries.clear()
    crowd = kit.run(model, [request(1, 2), request(7), request(2, 3, 4), request(8), request(7)])
    assert crowd[1].tokens == crowd[4].tokens == alone.tokens
    assert crowd[3].tokens != alone.tokens


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"temperature": 1.0}, 5),
        ({"temperature": 0.5}, 5),
        ({"temperature": 1.0, "top_k": 2}, 2),
        ({"temperature": 2.0, "top_k": 99}, 5),
        ({"temperature": 1.0, "top_p": 0.75}, 2),
        ({"temperature": 1.0, "top_p": 0.81}, 3),
        ({"temperature": 1.0, "top_p": 1e-6}, 1),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.6}, 2),
    ],
)
def test_frequencies_match_the_exact_distribution(settings, kept):
    probabilities = torch.tensor([0.05, 0.5, 0.15, 0.3, 0.0])
    probabilities[4] = 1e-9
    how = requests.Sampling(**settings)
    exact = (probabilities.log() / how.temperature).softmax(dim=-1)
    order = exact.argsort(descending=True)
    exact[order[kept:]] = 0
    exact /= exact.sum()
    generator, n = torch.Generator().manual_seed(11), 2000
    drawn = torch.tensor([sampling.draw(probabilities.log(), how, generator) for _ in range(n)])
    counts = drawn.bincount(minlength=5) / n
    assert (counts[exact == 0] == 0).all()
    for seen, expected in zip(counts.tolist(), exact.tolist(), strict=True):
        assert abs(seen - expected) <= 4.5 * math.sqrt(expected * (1 - expected) / n) + 1e-9


def test_top_k_keeps_exactly_k_of_equally_probable_tokens():
    generator, how = torch.Generator().manual_seed(1), requests.Sampling(temperature=1.0, top_k=3)
    assert len({sampling.draw(torch.zeros(10), how, generator) for _ in range(300)}) == 3


def test_top_k_and_top_p_restrict_the_tokens_of_the_engine(gpt2, kit):
    prompt = kit.tokens(1, 6)
    with torch.no_grad():
        best = gpt2.hf(torch.tensor([prompt]), use_cache=False).logits[0, -1].softmax(dim=-1).sort(descending=True)
    many = [
        requests.Request(tokens=prompt, sampling=kit.greedy(1, temperature=1.5, top_k=3, seed=seed))
        for seed in range(64)
    ]
    assert {one.tokens[0] for one in kit.run(gpt2, many)} == set(best.indices[:3].tolist())
    narrow = float(best.values[0]) * 0.9
    many = [
        requests.Request(tokens=prompt, sampling=kit.greedy(1, temperature=1.0, top_p=narrow, seed=s))
        for s in range(32)
    ]
    assert {one.tokens[0] for one in kit.run(gpt2, many)} == {int(best.indices[0])}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_that_ends_a_text_is_drawn_before_the_least_number(model, kit, monkeypatch, temperature):
    prompt, how = kit.tokens(3, 7), {"temperature": temperature, "seed": 5}
    free = model.generate(prompt, max_new_tokens=12, **how)
    ends = list(set(free.tokens))
    monkeypatch.setattr(model.hf.generation_config, "eos_token_id", ends)
    assert model.generate(prompt, max_new_tokens=12, **how).tokens == free.tokens[:1]
    both = [
        requests.Request(tokens=prompt, sampling=kit.greedy(12, min_new_tokens=least, **how)) for least in (0, 4, 12)
    ]
    ended, later, full = kit.run(model, both)
    assert ended.tokens == free.tokens[:1], "another row's least number is not this one's"
    assert len(later.tokens) >= 4
    assert not set(later.tokens[:4]) & set(ends)
    assert (len(full.tokens), full.finish_reason) == (12, "length")
    assert not set(full.tokens) & set(ends)
    with torch.no_grad():
        logits = model.hf(torch.tensor([[*prompt, *full.tokens]]), use_cache=False).logits[0].log_softmax(dim=-1)
    assert kit.close(full.logprobs, [float(logits[6 + i, token]) for i, token in enumerate(full.tokens)])


def _forced(model, kit, text, *, n=None, **how):
    tokens = tuple(model.tokenizer.encode(text)) if isinstance(text, str) else text
    request = requests.Request(tokens=kit.tokens(1, 4), sampling=kit.greedy(n or len(tokens), **how), forced=tokens)
    return kit.run(model, [request])[0]


def test_a_stop_string_that_spans_tokens_ends_the_text_and_is_not_part_of_it(gpt2, kit):
    answer = _forced(gpt2, kit, "hello STOP more", stop=("STOP", "never"))
    assert (answer.text, answer.finish_reason) == ("hello ", "stop")
    assert gpt2.tokenizer.decode(answer.tokens) == "hello STOP"


def test_the_stop_string_that_starts_first_cuts_the_text(gpt2, kit):
    answer = _forced(gpt2, kit, "one, two. three", stop=("two.", ".", "o."))
    assert answer.text == "one, "


def test_a_stop_string_longer_than_any_window_is_found(gpt2, kit):
    stop = "x" * 150
    answer = _forced(gpt2, kit, "ab" + stop + "cd", stop=(stop,))
    assert (answer.text, answer.finish_reason) == ("ab", "stop")


def test_a_stop_string_that_ends_inside_a_token_ends_the_text():
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)} | {"ab": 256, "cd": 257, "cde": 258}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("a", "b"), ("c", "d"), ("cd", "e")]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core)
    hf, _ = tiny.make("tiny-gpt2")
    hf.generation_config.eos_token_id = 259
    with models_model.Model(hf, tokenizer) as model:
        tokens = tuple(tokenizer.encode("xyabcdez"))
        assert tokens[2:4] == (256, 258)
        request = requests.Request(
            tokens=(1,), sampling=requests.Sampling(max_new_tokens=9, stop=("bc",)), forced=tokens
        )
        (answer,) = model.wait(model.submit([request]), [request])
    assert (answer.text, answer.finish_reason) == ("xya", "stop")
    assert answer.tokens == tokens[:4]


def test_a_letter_of_several_bytes_is_decoded_whole_and_can_stop_the_text(gpt2, kit):
    answer = _forced(gpt2, kit, "naïve → so", stop=("→",))
    assert (answer.text, answer.finish_reason) == ("naïve ", "stop")


def test_every_finish_reason_is_told(gpt2, kit):
    assert _forced(gpt2, kit, "abcdef", n=3).finish_reason == "length"
    ended = _forced(gpt2, kit, (65, 66, END, 67), n=4)
    assert (ended.finish_reason, ended.tokens, ended.text) == ("stop", (65, 66, END), gpt2.tokenizer.decode([65, 66]))


def test_a_cancelled_request_ends_at_the_next_token_and_its_batch_mates_go_on(gpt2, kit):
    cancelled = requests.Request(tokens=kit.tokens(1, 5), sampling=kit.greedy(40))

    def cancel(value, hook):
        if int(hook.positions.max()) == 10:
            cancelled.cancelled.set()

    mate = requests.Request(
        tokens=kit.tokens(2, 5),
        sampling=kit.greedy(20, stop=("never",)),
        interventions=(I.Opaque(fn=cancel, site="blocks.0.hook_mlp_out"),),
    )
    first, second = kit.run(gpt2, [cancelled, mate])
    assert first.finish_reason == "cancelled"
    assert len(first.tokens) < 10
    assert len(second.tokens) == 20
    again = gpt2.generate(kit.tokens(1, 5), max_new_tokens=len(first.tokens))
    assert again.tokens == first.tokens


def test_special_tokens_never_appear_in_the_text(gpt2, kit):
    tokens = (START, *gpt2.tokenizer.encode("hi"), 259, 256, *gpt2.tokenizer.encode(" you"), END)
    answer = _forced(gpt2, kit, tokens)
    assert answer.text == "hi you"
    assert answer.tokens == tokens


def test_what_follows_forced_tokens_is_drawn_as_if_nothing_had_been_forced(model, kit):
    how = kit.greedy(10, temperature=1.0, seed=5)
    (whole,) = kit.run(model, [requests.Request(tokens=kit.tokens(1, 6), sampling=how)])
    for length in (1, 4):
        model.pool.entries.clear()
        resumed = requests.Request(tokens=kit.tokens(1, 6), sampling=how, forced=whole.tokens[:length])
        assert kit.run(model, [resumed])[0].tokens == whole.tokens


@pytest.mark.slow
def test_the_embedded_model_answers_greedily_as_transformers_does():
    with loading.load("smollm2-135m-instruct") as model:
        chat = [{"role": "user", "content": "Name three colours."}]
        prompt = model.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        answer = model.generate(list(prompt), max_new_tokens=24)
        ids = torch.tensor([prompt])
        with torch.no_grad():
            whole = model.hf.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        assert list(answer.tokens) == whole[0, ids.shape[1] :].tolist()
        assert "<|" not in answer.text
