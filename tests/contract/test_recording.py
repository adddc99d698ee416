"""Recording never changes the run, keeps copies, and leaves nothing behind."""

import pytest
import torch

from sonde.core import errors, interventions
from sonde.models import gate, requests, riders
from sonde.models import model as models_model


def _all_sites(model):
    return list(model.site_names)


def test_recording_every_site_leaves_the_logits_bit_equal(model, kit):
    tokens = torch.tensor([kit.tokens(1, 20), kit.tokens(2, 20)])
    with torch.no_grad():
        bare = model.hf(input_ids=tokens, use_cache=False).logits
    logits, cache = model.run_with_cache(tokens, _all_sites(model))
    assert torch.equal(logits.as_subclass(torch.Tensor), bare)
    assert set(cache) == set(model.site_names)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generating_with_a_recorder_gives_the_same_tokens_and_logprobs_to_the_bit(model, kit, temperature):
    sampling = kit.greedy(8, temperature=temperature, seed=3)
    prompts = [kit.tokens(1, 21), kit.tokens(2, 9)]
    plain = kit.run(model, [requests.Request(tokens=prompt, sampling=sampling) for prompt in prompts])
    model.pool.entries.clear()
    keepers = [kit.Keeper(_all_sites(model)) for _ in prompts]
    recorded = kit.run(
        model,
        [
            requests.Request(tokens=prompt, sampling=sampling, recorders=(keeper,))
            for prompt, keeper in zip(prompts, keepers, strict=True)
        ],
    )
    assert [one.tokens for one in plain] == [one.tokens for one in recorded]
    assert [one.logprobs for one in plain] == [one.logprobs for one in recorded]


def test_a_batch_mate_that_records_does_not_change_the_run_of_one_that_does_not(model, kit):
    batch = [requests.Request(tokens=kit.tokens(n, 10 + n), sampling=kit.greedy(6)) for n in range(3)]
    plain = kit.run(model, batch)
    model.pool.entries.clear()
    watched = requests.Request(
        tokens=kit.tokens(1, 11), sampling=kit.greedy(6), recorders=(kit.Keeper(_all_sites(model)),)
    )
    again = kit.run(model, [batch[0], watched, batch[2]])
    assert [one.logprobs for one in plain] == [one.logprobs for one in again]


def test_recorded_values_are_copies_with_the_batch_axis_kept(model, kit):
    tokens = torch.tensor([kit.tokens(1, 12), kit.tokens(2, 12), kit.tokens(3, 12)])
    _, cache = model.run_with_cache(tokens, _all_sites(model))
    before = {name: value.clone() for name, value in cache.items()}
    storages = [value.untyped_storage().data_ptr() for value in cache.values()]
    assert len(set(storages)) == len(storages)

    def spoil(value, hook):
        value.mul_(-7.0)

    names = [name for name in model.site_names if "hook_attn_scores" not in name]
    model.run_with_hooks(tokens, [(name, spoil) for name in names])
    model.generate([list(row) for row in tokens.tolist()], max_new_tokens=3, interventions=[
        interventions.Zero(site="blocks.*.hook_resid_mid" if "blocks.0.hook_resid_mid" in names else "blocks.*.hook_mlp_out")
    ])  # fmt: skip
    for name, value in cache.items():
        assert value.shape[0] == 3
        assert torch.equal(value, before[name]), name


def test_run_with_cache_reads_the_shapes_that_the_site_table_promises(model, kit):
    cfg = model.cfg
    _, cache = model.run_with_cache(list(kit.tokens(1, 7)), _all_sites(model))
    kinds = {
        "hook_resid_pre": (1, 7, cfg.d_model),
        "attn.hook_q": (1, 7, cfg.n_heads, cfg.d_head),
        "attn.hook_k": (1, 7, cfg.n_key_value_heads, cfg.d_head),
        "attn.hook_v": (1, 7, cfg.n_key_value_heads, cfg.d_head),
        "attn.hook_z": (1, 7, cfg.n_heads, cfg.d_head),
        "attn.hook_result": (1, 7, cfg.n_heads, cfg.d_model),
        "attn.hook_attn_scores": (1, cfg.n_heads, 7, 7),
        "attn.hook_pattern": (1, cfg.n_heads, 7, 7),
        "mlp.hook_post": (1, 7, cfg.d_mlp),
        "hook_mlp_out": (1, 7, cfg.d_model),
    }
    for kind, shape in kinds.items():
        assert tuple(cache[f"blocks.0.{kind}"].shape) == shape, kind
    assert tuple(cache["unembed.hook_out"].shape) == (1, 7, cfg.d_vocab)


def test_no_hook_stays_after_recording_and_generating(model, kit):
    before = kit.fingerprint(model)
    model.run_with_cache(list(kit.tokens(1, 9)), _all_sites(model))
    keeper = kit.Keeper(_all_sites(model))
    kit.run(model, [requests.Request(tokens=kit.tokens(1, 9), sampling=kit.greedy(3), recorders=(keeper,))])
    kit.assert_restored(model, before)
    assert before[1] == 0


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["attn.hook_z", "attn.hook_pattern", "hook_resid_post", "attn.hook_result"])
def test_no_hook_stays_after_an_exception_in_the_middle(model, kit, kind, failure):
    before = kit.fingerprint(model)

    def fail(value, hook):
        raise failure("in the middle")

    prompt = list(kit.tokens(1, 9))
    spec = interventions.Opaque(fn=fail, site=kit.site(model, kind))
    with pytest.raises(failure):
        model.run_with_hooks(prompt, [spec])
    kit.assert_restored(model, before)
    with pytest.raises(failure):
        model.run_with_cache(prompt, _all_sites(model), interventions=[spec])
    kit.assert_restored(model, before)
    with pytest.raises(failure):
        model.generate(prompt, max_new_tokens=4, interventions=[spec])
    kit.assert_restored(model, before)


def test_an_exception_at_decode_leaves_no_hook_and_the_next_request_is_right(model, kit):
    prompt = list(kit.tokens(1, 9))
    plain = model.generate(prompt, max_new_tokens=5)
    before = kit.fingerprint(model)

    def fail_later(value, hook):
        if int(hook.positions.max()) >= 9:
            raise RuntimeError("later")

    with pytest.raises(RuntimeError, match="later"):
        model.generate(
            prompt, max_new_tokens=5, interventions=[interventions.Opaque(fn=fail_later, site="blocks.1.hook_mlp_out")]
        )
    kit.assert_restored(model, before)
    assert model.generate(prompt, max_new_tokens=5).tokens == plain.tokens


def test_a_recorder_that_fails_spoils_its_own_request_only(gpt2, kit):
    class Broken(kit.Keeper):
        def deliver(self, recorded):
            raise OSError("disk full")

    keepers = [kit.Keeper(["blocks.0.hook_mlp_out"]), Broken(["blocks.0.hook_mlp_out"]), kit.Keeper(["hook_embed"])]
    batch = [
        requests.Request(tokens=kit.tokens(n, 8), sampling=kit.greedy(3), recorders=(keeper,))
        for n, keeper in enumerate(keepers)
    ]
    answers = gpt2.submit(batch)
    assert answers[0].result().finish_reason == "length"
    with pytest.raises(OSError, match="disk full"):
        answers[1].result()
    assert answers[2].result().finish_reason == "length"
    assert len(keepers[0].delivered) == len(keepers[2].delivered) == 1


def test_what_was_not_recorded_is_a_capture_error_that_suggests(gpt2, kit):
    _, cache = gpt2.run_with_cache(list(kit.tokens(1, 5)), "blocks.*.hook_resid_post")
    with pytest.raises(errors.CaptureError, match=r"did you mean 'blocks\.3\.hook_resid_post'"):
        cache["blocks.3.hook_resid_pst"]


def test_bare_generate_of_transformers_records_every_position_once(model, kit):
    prompt = torch.tensor([kit.tokens(4, 20)])
    names = ["blocks.1.hook_resid_post", "blocks.1.attn.hook_pattern", "blocks.0.attn.hook_attn_scores"]
    keeper = kit.Keeper(names)
    plain = model.hf.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=-1)
    with riders.riding(models_model._Fixed(model, (), (keeper,))):
        sequence = model.hf.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=-1)
    assert torch.equal(sequence, plain)
    assert len(keeper.records) == sequence.shape[1] - 1
    _, cache = model.run_with_cache(sequence[:, :-1], names)
    for name in names:
        expected = cache[name][0]
        if name.endswith("scores"):
            expected = expected.masked_fill(torch.ones_like(expected).triu(1).bool(), 0)
        assert kit.close(keeper.value(name), expected), name


def test_two_threads_that_enter_and_leave_leave_no_hook(gpt2, kit):
    import threading

    before = kit.fingerprint(gpt2)

    def ride():
        for _ in range(200):
            with riders.riding(models_model._Fixed(gpt2, (), (gate.Collector(("hook_embed",)),))):
                pass

    threads = [threading.Thread(target=ride) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kit.assert_restored(gpt2, before)
