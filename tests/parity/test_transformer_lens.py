"""What Sonde records at a Site is what TransformerLens 4 caches under the same name."""

import pytest
import torch
import transformers
from transformer_lens import model_bridge

from sonde.core import sites
from sonde.models import loading, zoo

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
def recorded(pair, tokens):
    """Logits and cache of Sonde and of the bridge."""
    if pair.name == "tiny-plain":
        pytest.skip("an architecture of Sonde's own, which TransformerLens does not know")
    bridge = boot(pair.folder, pair.network, pair.tokenizer)
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
