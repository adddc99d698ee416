"""Layers in another order, against a plain loop over the network's own layers."""

import pytest
import torch

from sonde.core import errors
from sonde.core import interventions as I
from sonde.models import requests, taps

TOKENS = [(13 * i * i + 7) % 256 for i in range(24)]
ORDERS = [(0, 2, 3), (0, 1, 1, 2, 3), (3, 1, 0, 2), (2,), (0, (1, 3), 2), ((0, 2), (1, 3), 0), (1, 1, 1, 1, 1, 1, 0)]


def _by_hand(model, order, combine="sum", tokens=TOKENS):
    """Each layer is called with the very arguments it gets in a plain run, only in another order."""
    calls, handles = {}, []

    def remember(index):
        def hook(module, args, kwargs):
            calls[index] = (args, kwargs)

        return hook

    for index, block in enumerate(model.parts.blocks):
        handles.append(block.register_forward_pre_hook(remember(index), with_kwargs=True))
    with torch.no_grad():
        model.hf(input_ids=torch.tensor([tokens]), use_cache=False)
        for handle in handles:
            handle.remove()

        def run(index, stream):
            args, kwargs = calls[index]
            return taps.first_tensor(model.parts.blocks[index](stream, *args[1:], **kwargs))

        stream = calls[0][0][0]
        for stage in order:
            beside = stage if isinstance(stage, tuple) else (stage,)
            share = 1 / len(beside) if combine == "mean" else 1
            stream = stream + sum(run(index, stream) - stream for index in beside) * share
        final = model.parts.taps["ln_final.hook_out"].module(stream)
        logits = model.parts.taps["unembed.hook_out"].module(final)
        cap = getattr(model.hf.config, "final_logit_softcapping", None)
        return torch.tanh(logits / cap) * cap if cap else logits


def _possible(model, order):
    kinds = getattr(model.hf.config, "layer_types", None)
    return kinds is None or all(len({kinds[i] for i in stage}) == 1 for stage in order if isinstance(stage, tuple))


CASES = [(order, "sum") for order in ORDERS] + [(ORDERS[4], "mean"), (ORDERS[5], "mean")]


@pytest.mark.parametrize(("order", "combine"), CASES, ids=str)
def test_any_order_equals_a_by_hand_loop_over_the_layers(model, kit, order, combine):
    spec = I.LayerOrder(order=order, combine=combine)
    if not _possible(model, order):
        with pytest.raises(errors.InterventionError, match=r"side by side.*attend differently"):
            model.run_with_hooks(TOKENS, [spec])
        return
    before = kit.fingerprint(model)
    expected = _by_hand(model, order, combine)
    assert kit.close(model.run_with_hooks(TOKENS, [spec]), expected)
    answer = model.generate(TOKENS, max_new_tokens=1, interventions=[spec])
    assert kit.close(answer.logprobs[0], expected[0, -1].log_softmax(dim=-1)[answer.tokens[0]], 1e-3)
    kit.assert_restored(model, before)


def test_the_identity_order_equals_no_order_to_the_bit(model):
    spec = I.LayerOrder(order=tuple(range(model.cfg.n_layers)))
    assert torch.equal(model.run_with_hooks(TOKENS, [spec]), model.run_with_hooks(TOKENS))


def test_skipping_a_layer_equals_zeroing_what_it_adds(model, kit):
    order = tuple(layer for layer in range(model.cfg.n_layers) if layer != 1)
    zeros = [I.Zero(site=f"blocks.1.{kind}") for kind in ("hook_attn_out", "hook_mlp_out")]
    skipped = model.run_with_hooks(TOKENS, [I.LayerOrder(order=order)])
    assert kit.close(skipped, model.run_with_hooks(TOKENS, zeros))


@pytest.mark.parametrize("order", [(0, 1, 1, 3), (3, 0, 2), ((0, 2), 1)], ids=str)
def test_a_conversation_in_another_order_is_the_same_cached_and_uncached(model, kit, order):
    spec = I.LayerOrder(order=order)
    context = tuple(TOKENS)
    for step in range(3):
        request = requests.Request(tokens=context, sampling=kit.greedy(4), interventions=(spec,), step=step)
        (cached,) = kit.run(model, [request])
        assert step == 0 or cached.encoded_tokens == 3 + 1 + 3
        logits = model.run_with_hooks([*context, *cached.tokens], [spec])[0].log_softmax(dim=-1)
        expected = [float(logits[len(context) - 1 + i, token]) for i, token in enumerate(cached.tokens)]
        assert kit.close(cached.logprobs, expected, 1e-3)
        context = (*context, *cached.tokens, 1, 2, 3)


def test_an_order_limited_to_a_step_does_not_touch_the_others(model, kit):
    spec = I.LayerOrder(order=(0, 2, 1), steps=(1,))
    plain = model.generate(TOKENS, max_new_tokens=4)
    for step in range(3):
        request = requests.Request(tokens=tuple(TOKENS), sampling=kit.greedy(4), interventions=(spec,), step=step)
        (answer,) = kit.run(model, [request])
        assert (answer.logprobs == plain.logprobs) == (step != 1) or kit.close(answer.logprobs, plain.logprobs)
        assert kit.close(answer.logprobs, plain.logprobs) == (step != 1)


def test_sites_keep_their_meaning_in_another_order(model, kit):
    """`blocks.2` is the third layer of the model, wherever in the order it runs."""
    spec = I.LayerOrder(order=(0, 2, 1, 3))
    names = [
        "blocks.0.hook_resid_post",
        "blocks.2.hook_resid_pre",
        "blocks.2.hook_resid_post",
        "blocks.1.hook_resid_pre",
    ]
    _, cache = model.run_with_cache(TOKENS, names, interventions=[spec])
    assert torch.equal(cache[names[0]], cache[names[1]])
    assert torch.equal(cache[names[2]], cache[names[3]])
    zero = I.Zero(site="blocks.2.hook_mlp_out")
    assert not torch.equal(model.run_with_hooks(TOKENS, [spec, zero]), model.run_with_hooks(TOKENS, [spec]))


def test_recording_a_layer_that_the_order_skips_is_an_error_that_says_so(gpt2, kit):
    spec, name = I.LayerOrder(order=(0, 2, 3)), "blocks.1.hook_resid_post"
    before = kit.fingerprint(gpt2)
    with pytest.raises(errors.CaptureError, match=r"blocks\.1\.hook_resid_post.*layer order"):
        gpt2.run_with_cache(TOKENS, name, interventions=[spec])
    request = requests.Request(
        tokens=tuple(TOKENS), sampling=kit.greedy(2), interventions=(spec,), recorders=(kit.Keeper([name]),)
    )
    with pytest.raises(errors.CaptureError, match=r"blocks\.1\.hook_resid_post.*layer order"):
        kit.run(gpt2, [request])
    kit.assert_restored(gpt2, before)


def test_the_order_is_restored_after_an_exception(model, kit):
    before = kit.fingerprint(model)

    def fail(value, hook):
        raise ValueError("in the middle")

    specs = [I.LayerOrder(order=(0, 2, 2)), I.Opaque(fn=fail, site="blocks.2.hook_mlp_out")]
    with pytest.raises(ValueError, match="middle"):
        model.run_with_hooks(TOKENS, specs)
    kit.assert_restored(model, before)
    with pytest.raises(ValueError, match="middle"):
        model.generate(TOKENS, max_new_tokens=3, interventions=specs)
    kit.assert_restored(model, before)


def test_orders_that_make_no_sense_are_refused(gpt2):
    for order in ((), (0, 6), (-1,), (0, (1, 9))):
        with pytest.raises(errors.InterventionError, match="layers 0 to 5"):
            gpt2.generate(TOKENS, interventions=[I.LayerOrder(order=order)])
    two = [I.LayerOrder(order=(0, 1)), I.LayerOrder(order=(1, 0))]
    with pytest.raises(errors.InterventionError, match="only one LayerOrder"):
        gpt2.generate(TOKENS, interventions=two)
    with pytest.raises(errors.InterventionError, match="no site, positions, heads or phase"):
        I.LayerOrder(order=(0, 1), positions=(1,))
    with pytest.raises(errors.InterventionError, match="re-encodes"):
        I.LayerOrder(order=(0, 1), scope="new")


def test_a_prompts_mean_held_while_generating_is_that_of_each_run_of_a_layer(gpt2, kit):
    order, length = (0, 1, 1, 2, 3), len(TOKENS)
    held = [I.LayerOrder(order=order), I.Mean(site="blocks.1.hook_mlp_out", phase="decode")]
    answer = gpt2.generate(TOKENS, max_new_tokens=4, interventions=held)

    def hold(module, args, output):
        changed = output.clone()
        changed[:, length:] = output[:, :length].mean(dim=1, keepdim=True)
        return changed

    handle = gpt2.parts.blocks[1].mlp.register_forward_hook(hold)
    try:
        logits = _by_hand(gpt2, order, tokens=[*TOKENS, *answer.tokens[:-1]])[0, length - 1 :]
    finally:
        handle.remove()
    expected = logits.log_softmax(dim=-1)[range(4), list(answer.tokens)]
    assert kit.close(answer.logprobs, expected)
