"""What Sonde records at a Site is what TransformerLens 4 caches under the same name."""

import dataclasses
import re

import pytest
import torch
import transformer_lens
import transformers
from transformer_lens import model_bridge
from transformer_lens.config import transformer_lens_config

from sonde.core import sites
from sonde.models import loading, weights, zoo

TOLERANCE = 1e-5
#: A bridge caches this only after `set_use_attn_result(True)`.
NEEDS_A_FLAG = "attn.hook_result"
#: Sites that a bridge does not cache even then: none.
LACKED_BY_THE_BRIDGE: frozenset[str] = frozenset()
#: Sites that a model has in TransformerLens and not in Sonde, though Sonde has the name: none.
LACKED_BY_SONDE: frozenset[str] = frozenset()


def boot(folder, network, tokenizer):
    """A bridge that runs `network`, which it changes."""
    return model_bridge.TransformerBridge.boot_transformers(folder, hf_model=network, tokenizer=tokenizer, device="cpu")


def kinds(names):
    return {sites.Site.parse(name).kind for name in names}


def as_site(name):
    try:
        return sites.Site.parse(name)
    except ValueError:
        return None


@pytest.fixture(scope="module")
def bridge(pair):
    if pair.name == "tiny-plain":
        pytest.skip("an architecture of Sonde's own, which TransformerLens does not know")
    return boot(pair.folder, pair.network, pair.tokenizer)


@pytest.fixture(scope="module")
def recorded(pair, bridge, tokens):
    """Logits and cache of Sonde and of the bridge."""
    with torch.no_grad():
        _, unasked = bridge.run_with_cache(tokens)
        bridge.set_use_attn_result(True)
        theirs = bridge.run_with_cache(tokens)
    assert kinds(name for name in pair.model.site_names if name not in unasked) == {NEEDS_A_FLAG, *LACKED_BY_THE_BRIDGE}
    return pair.model.run_with_cache(tokens, lambda name: True), theirs


def test_the_logits_are_equal(recorded):
    (ours, _), (theirs, _) = recorded
    torch.testing.assert_close(ours.as_subclass(torch.Tensor), theirs, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_bridge_has_every_site_but_the_listed_ones(recorded):
    (_, ours), (_, theirs) = recorded
    assert kinds(name for name in ours if name not in theirs) == LACKED_BY_THE_BRIDGE


def test_sonde_has_every_site_of_a_bridge_that_it_has_a_name_for(recorded):
    (_, ours), (_, theirs) = recorded
    assert kinds(name for name in theirs if as_site(name) and name not in ours) == LACKED_BY_SONDE


@pytest.mark.parametrize("kind", [*sites.GLOBAL_KINDS, *sites.BLOCK_KINDS])
def test_recorded_values_are_equal_at(recorded, kind):
    (_, ours), (_, theirs) = recorded
    names = [name for name in ours if sites.Site.parse(name).kind == kind]
    if not names:
        pytest.skip("this family has no such Site")
    for name in names:
        mine, other = ours[name], theirs[name]
        if kind == "attn.hook_attn_scores":  # masked cells: -inf here, the smallest float there
            masked = mine == -torch.inf
            assert torch.equal(masked, other == torch.finfo(other.dtype).min), name
            mine, other = mine.masked_fill(masked, 0), other.masked_fill(masked, 0)
        torch.testing.assert_close(
            mine, other, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
        )


# ------------------------------------------------------------------------ the words of people who come from there


def close(ours, theirs):
    torch.testing.assert_close(ours.as_subclass(torch.Tensor), theirs, atol=TOLERANCE, rtol=TOLERANCE)


def test_weights_of_the_same_name_are_equal_and_those_that_are_missing_are_missing_there(pair, bridge):
    for name in weights.NAMES:
        theirs = getattr(bridge, name, None)
        assert hasattr(pair.model, name) == (theirs is not None), name
        if theirs is not None:
            assert torch.equal(getattr(pair.model, name), theirs.detach()), name


def test_calling_the_model_gives_equal_logits_and_losses(pair, bridge, tokens):
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    with torch.no_grad():
        close(pair.model(tokens), bridge(tokens))
        for ours, theirs in zip(
            pair.model(tokens, return_type="both"), bridge(tokens, return_type="both"), strict=True
        ):
            close(ours, theirs)
        close(pair.model(tokens, "loss", loss_per_token=True), bridge(tokens, "loss", loss_per_token=True))
        close(pair.model(tokens, "loss", attention_mask=mask), bridge(tokens, "loss", attention_mask=mask))
    assert pair.model(tokens, return_type=None) is None


def test_the_ends_of_the_model_are_equal_modules(pair, bridge, recorded):
    (_, ours), _ = recorded
    stream = ours["resid_post", -1]
    with torch.no_grad():
        close(pair.model.unembed(pair.model.ln_final(stream)), bridge.unembed(bridge.ln_final(stream)))


@pytest.mark.parametrize("prepend_bos", [True, False])
def test_texts_are_cut_into_equal_tokens_and_back(pair, bridge, prepend_bos):
    for text in ("The cat", " sat…", "<|im_end|>"):
        ours, theirs = (one.to_tokens(text, prepend_bos=prepend_bos) for one in (pair.model, bridge))
        assert torch.equal(ours, theirs)
        assert pair.model.to_str_tokens(text, prepend_bos) == bridge.to_str_tokens(text, prepend_bos)
        assert pair.model.to_str_tokens(ours) == bridge.to_str_tokens(theirs)
        assert pair.model.to_string(ours) == bridge.to_string(theirs)
        assert pair.model.to_string(ours[0]) == bridge.to_string(theirs[0])
    assert pair.model.to_str_tokens(["a b", "c"], prepend_bos) == bridge.to_str_tokens(["a b", "c"], prepend_bos)
    assert pair.model.to_single_token("b") == bridge.to_single_token("b")
    assert pair.model.to_single_str_token(98) == bridge.to_single_str_token(98)


SHORT = [
    ("resid_pre", 0), ("resid_post", -1), ("attn_out", 1), ("mlp_out", 0), ("pattern", 1, "attn"), ("attn", 1),
    ("attn_scores", 0), ("q", 1), ("k", 0), ("key", 0, "a"), ("v", 1), ("z", 0), ("result", 1), ("pre", 0, "mlp"),
    ("post", 1), ("mlp_post", 1), "k1", "pattern0", "embed", ("embed", None),
]  # fmt: skip


def test_a_short_form_finds_in_a_cache_what_it_finds_there(recorded):
    (logits, ours), (_, theirs) = recorded
    for key in SHORT:
        mine = ours[key]
        masked = torch.isneginf(mine)
        close(mine.masked_fill(masked, 0), theirs[key].masked_fill(masked, 0))
        assert torch.equal(logits[key], mine)


def test_a_stack_of_one_activation_is_equal(recorded):
    (_, ours), (_, theirs) = recorded
    close(ours.stack_activation("attn_out"), theirs.stack_activation("attn_out"))
    close(ours.stack_activation("z", 1), theirs.stack_activation("z", 1))


def test_hooks_written_for_a_bridge_do_the_same_here(pair, bridge, tokens):
    def ablate(value, hook):
        value[:, :, 1] = 0.0
        return value

    def halve(value, hook):
        return value * 0.5

    hooks = [(lambda name: name.endswith("hook_z"), ablate), ("blocks.1.hook_mlp_out", halve)]
    with torch.no_grad():
        theirs = bridge.run_with_hooks(tokens, return_type="loss", fwd_hooks=hooks)
        close(pair.model.run_with_hooks(tokens, return_type="loss", fwd_hooks=hooks), theirs)
        with pair.model.hooks(fwd_hooks=hooks) as hooked, bridge.hooks(fwd_hooks=hooks) as bridged:
            close(hooked(tokens), bridged(tokens))
        assert abs(theirs - bridge(tokens, return_type="loss")) > 1e-3  # it was no idle hook
    close(pair.model(tokens), bridge(tokens).detach())


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


#: Words of torch's modules that nobody reads a language model with.
UNUSUAL = re.compile(
    r"register_|(get|set|add|load)_|.*state_dict|dump_|extra_|call_super|T_destination|share_|ipu|xpu|mtia|to_empty|compile|type"
)


def test_every_public_word_of_a_bridge_works_or_its_error_says_what_to_write():
    with loading.load("tiny-gpt2") as model:
        own = public(torch.nn.Module)
        words = {w for w in public(model_bridge.TransformerBridge) if w not in own or not UNUSUAL.match(w)}
        _, cache = model.run_with_cache("hi", "hook_embed")
        known = ((model, words), (cache, public(transformer_lens.ActivationCache) | {"cache_dict", "model"}),
                 (model.cfg, {field.name for field in dataclasses.fields(transformer_lens_config.TransformerLensConfig)}))  # fmt: skip
        for owner, names in known:
            lost = {name for name in names if "; " not in told(owner, name)}
            assert lost == set(), type(owner)


def told(owner, name):
    """What is said when a word is used; of one that works, that it does."""
    try:
        getattr(owner, name)
    except AttributeError as error:
        return str(error)
    return "; it works"


@pytest.mark.slow
def test_smollm2_is_equal_to_a_bridge_in_stream_heads_and_patterns():
    folder = str(zoo.local_folder(zoo.DEFAULT))
    wanted = ["blocks.*.hook_resid_post", "blocks.*.attn.hook_z", "blocks.*.attn.hook_pattern"]
    with loading.load(zoo.DEFAULT) as model:
        tokens = model.to_tokens("When Mary and John went to the store, John gave a drink to")
        _, ours = model.run_with_cache(tokens, wanted)
    with zoo.quiet():
        network = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    bridge = boot(folder, network, transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    with torch.no_grad():
        _, theirs = bridge.run_with_cache(tokens, names_filter=lambda name: name in ours)
    assert len(ours) == 3 * model.cfg.n_layers
    for name, value in ours.items():
        difference = (value - theirs[name]).abs().max() / value.abs().max()  # its stream reaches the thousands
        assert difference < TOLERANCE, f"{name}: {difference}"
