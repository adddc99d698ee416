"""Path patching: the direct path, by hand, and the whole as the sum of its paths."""

import pytest
import torch

from sonde.core import errors
from sonde.core import interventions as I
from sonde.models import taps

TOKENS = [(11 * i * i + 5) % 256 for i in range(12)]
SENDERS = ("attn.hook_z", "attn.hook_result", "hook_attn_out", "hook_mlp_out")


def _values(model, name, seed=0):
    shape = taps.value_shape(model.parts.taps[name].site, model.cfg)
    return torch.randn(len(TOKENS), *shape, generator=torch.Generator().manual_seed(seed))


def _all_readers(model, kind, layer):
    """Everything that reads the stream after a sender."""
    following = f"blocks.{layer + 1}.hook_resid_pre" if layer + 1 < model.cfg.n_layers else "ln_final.hook_out"
    beside = kind != "hook_mlp_out" and model.parts.family.resid_mid is not None
    return (f"blocks.{layer}.mlp.hook_pre", following) if beside else (following,)


def _same(left, right):
    scale = right.abs().max()
    assert float((left - right).abs().max()) <= 1e-4 * float(scale)


@pytest.mark.parametrize("kind", SENDERS)
@pytest.mark.parametrize("from_end", [3, 1])
def test_patching_the_paths_to_all_readers_equals_patching_the_sender(model, kind, from_end):
    layer = model.cfg.n_layers - from_end
    site = f"blocks.{layer}.{kind}"
    where = {"site": site, "values": _values(model, site), "positions": (2, 3, 7, 11)}
    where |= {"heads": (0, 3)} if kind in ("attn.hook_z", "attn.hook_result") else {}
    whole = model.run_with_hooks(TOKENS, [I.Patch(**where)])
    path = I.PathPatch(**where, receivers=_all_readers(model, kind, layer))
    # The MLP beside the sender also reads it: what it then writes must reach the rest, as it does in a plain patch.
    _same(model.run_with_hooks(TOKENS, [path]), whole)
    assert (whole - model.run_with_hooks(TOKENS)).abs().max() > 1e-3


def test_patching_the_path_from_the_embedding_to_the_first_layer_equals_patching_the_embedding(model):
    where = {"site": "hook_embed", "values": _values(model, "hook_embed"), "positions": (1, 4)}
    whole = model.run_with_hooks(TOKENS, [I.Patch(**where)])
    _same(model.run_with_hooks(TOKENS, [I.PathPatch(**where, receivers=("blocks.0.hook_resid_pre",))]), whole)


def _delta(model, sender, values):
    """What a patch of the sender changes in the stream, straight after it."""
    after = f"blocks.{model.parts.taps[sender].site.layer}.hook_resid_post"
    _, clean = model.run_with_cache(TOKENS, [sender, after])
    return (torch.as_tensor(values) - clean[sender][0])[None]


@pytest.mark.parametrize("letter", ["q", "k", "v"])
def test_the_direct_path_to_one_head_equals_a_by_hand_computation(model, letter):
    sender, receiver = "blocks.0.hook_mlp_out", f"blocks.2.attn.hook_{letter}"
    values = _values(model, sender)
    tap, family = model.parts.taps[receiver], model.parts.family
    norm = model.parts.blocks[2].get_submodule(family.attn_norm)
    _, clean = model.run_with_cache(TOKENS, ["blocks.2.hook_resid_pre"])
    with torch.no_grad():
        read = norm(clean["blocks.2.hook_resid_pre"] + _delta(model, sender, values))
        by_hand = tap.view(tap.module(read))[0]
    expected = model.run_with_hooks(TOKENS, [I.Patch(site=receiver, values=by_hand, heads=(1,))])
    path = I.PathPatch(site=sender, values=values, receivers=(receiver,), receiver_heads=(1,))
    logits, cache = model.run_with_cache(TOKENS, receiver, interventions=[path])
    _same(logits.as_subclass(torch.Tensor), expected)
    # What is recorded at the receiver is what it really read.
    _same(cache[receiver][0, :, 1], by_hand[:, 1])


def test_the_direct_path_to_the_logits_equals_a_by_hand_computation(model):
    sender, last = "blocks.1.hook_mlp_out", f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    values = _values(model, sender)
    _, clean = model.run_with_cache(TOKENS, last)
    with torch.no_grad():
        normed = model.parts.taps["ln_final.hook_out"].module(clean[last] + _delta(model, sender, values))
        by_hand = model.parts.taps["unembed.hook_out"].module(normed)
    path = I.PathPatch(site=sender, values=values, receivers=("ln_final.hook_out",))
    _, cache = model.run_with_cache(TOKENS, ["unembed.hook_out", "ln_final.hook_out", last], interventions=[path])
    _same(cache["ln_final.hook_out"], normed)
    _same(cache["unembed.hook_out"], by_hand)
    assert torch.equal(cache[last], clean[last])


def test_the_direct_path_to_an_mlp_changes_that_mlp_alone(model):
    sender, receiver = "blocks.0.hook_attn_out", "blocks.2.mlp.hook_pre"
    path = I.PathPatch(site=sender, values=_values(model, sender), receivers=(receiver,))
    names = [name for name in model.site_names if name.startswith(("blocks.0", "blocks.1", "blocks.2"))]
    _, clean = model.run_with_cache(TOKENS, names)
    _, patched = model.run_with_cache(TOKENS, names, interventions=[path])
    changed = {name for name in names if not torch.equal(clean[name], patched[name])}
    downstream = {"mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post", "hook_mlp_out", "hook_resid_post"}
    assert changed == {f"blocks.2.{kind}" for kind in downstream} & set(names)


@pytest.mark.parametrize("receiver", ["ln_final.hook_out", "blocks.3.attn.hook_q", "blocks.3.mlp.hook_pre"])
def test_two_paths_to_one_receiver_add_up_before_its_norm(model, receiver):
    first, second = "blocks.0.hook_mlp_out", "blocks.1.hook_mlp_out"
    paths = [
        I.PathPatch(site=s, values=_values(model, s, i), receivers=(receiver,)) for i, s in enumerate((first, second))
    ]
    stream = "blocks.3.hook_resid_mid" if receiver.endswith("hook_pre") else "blocks.3.hook_resid_pre"
    if receiver.startswith("ln_final"):
        stream = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    stream = stream if stream in model.site_names else "blocks.3.hook_resid_pre"
    _, clean = model.run_with_cache(TOKENS, stream)
    total = clean[stream] + sum(_delta(model, s, _values(model, s, i)) for i, s in enumerate((first, second)))
    family, tap = model.parts.family, model.parts.taps[receiver]
    with torch.no_grad():
        if receiver.startswith("ln_final"):
            expected = tap.module(total)
        else:
            norm = family.mlp_norm if receiver.endswith("hook_pre") else family.attn_norm
            expected = tap.view(tap.module(model.parts.blocks[3].get_submodule(norm)(total)))
    _, cache = model.run_with_cache(TOKENS, receiver, interventions=paths)
    _same(cache[receiver], expected)


def test_a_path_from_one_head_leaves_the_sender_as_it_is(model):
    site = "blocks.0.attn.hook_z"
    path = I.PathPatch(site=site, values=_values(model, site), heads=(2,), receivers=("blocks.1.attn.hook_v",))
    _, clean = model.run_with_cache(TOKENS, [site, "blocks.0.hook_attn_out", "blocks.1.hook_resid_pre"])
    _, patched = model.run_with_cache(TOKENS, list(clean), interventions=[path])
    assert all(torch.equal(clean[name], patched[name]) for name in clean)


@pytest.mark.parametrize("receiver", ["blocks.1.hook_resid_pre", "blocks.1.attn.hook_q", "blocks.0.mlp.hook_pre"])
def test_a_path_to_a_receiver_before_the_sender_is_refused(model, receiver):
    path = I.PathPatch(
        site="blocks.1.attn.hook_z", values=_values(model, "blocks.1.attn.hook_z"), receivers=(receiver,)
    )
    with pytest.raises(errors.InterventionError, match=rf"from blocks\.1\.attn\.hook_z to {receiver}.*forward"):
        model.run_with_hooks(TOKENS, [path])


def test_a_parallel_block_has_no_path_from_a_head_to_the_mlp_beside_it(model):
    site = "blocks.1.attn.hook_z"
    path = I.PathPatch(site=site, values=_values(model, site), receivers=("blocks.1.mlp.hook_pre",))
    if model.parts.family.resid_mid is None:
        with pytest.raises(errors.InterventionError, match=r"blocks\.1\.mlp\.hook_pre does not lead forward"):
            model.generate(TOKENS, interventions=[path])
    else:
        assert not torch.equal(model.run_with_hooks(TOKENS, [path]), model.run_with_hooks(TOKENS))


def test_paths_that_make_no_sense_are_refused(gpt2):
    wide = torch.zeros(gpt2.cfg.d_model)
    cases = [
        ({"site": "blocks.1.hook_resid_post", "receivers": ("ln_final.hook_out",)}, "does not write", ValueError),
        ({"site": "blocks.1.hook_mlp_out", "receivers": ()}, "at least one receiver", ValueError),
        ({"site": "blocks.1.hook_mlp_out", "receivers": ("blocks.2.hook_mlp_out",)}, "cannot receive", ValueError),
        ({"site": "blocks.1.hook_mlp_out", "receivers": ("blocks.9.attn.hook_q",)}, "layers 0 to 5", errors.SiteError),
        (
            {"site": "blocks.1.hook_mlp_out", "receivers": ("blocks.2.attn.hook_q",), "receiver_heads": (4,)},
            "heads 0 to 3",
            ValueError,
        ),
    ]
    for fields, told, kind in cases:
        with pytest.raises(kind, match=told):
            gpt2.run_with_hooks(TOKENS, [I.PathPatch(values=wide, **fields)])
