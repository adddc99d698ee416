"""Whatever library loaded a model, `as_model` keeps the promises of a Model and leaves the other library's object alone."""

import copy
import dataclasses
import gc
import pickle  # noqa: TID251 - people pickle their networks
import runpy
import sys
import weakref
from collections.abc import Callable
from typing import Any

import nnsight
import pytest
import torch
import transformers
from transformer_lens import model_bridge

from sonde.core import errors, interventions
from sonde.models import adapters, loading, tiny, zoo

FAMILIES = ("tiny-gpt2", "tiny-llama", "tiny-neox", "tiny-gemma3")
TOKENS = torch.tensor([[5, 90, 17, 200, 61, 33, 8, 120], [7, 7, 41, 99, 180, 2, 64, 250]])
SITE = "blocks.1.hook_attn_out"


@dataclasses.dataclass
class Wrapped:
    """A model in another library's hands.

    Attributes:
        obj: What that library gives its users.
        network: The transformers model inside it.
        logits: What it computes by itself.
    """

    obj: Any
    network: Any
    logits: Callable[[], torch.Tensor]


def boot(folder):
    with zoo.quiet():
        network = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return model_bridge.TransformerBridge.boot_transformers(
        str(folder), hf_model=network, tokenizer=tokenizer, device="cpu"
    )


def traced_logits(envoy):
    with envoy.trace(TOKENS):
        logits = envoy.lm_head.output.save()
    return logits.detach()


def wrap(library, folder):
    if library == "transformer_lens":
        bridge = boot(folder)
        return Wrapped(bridge, bridge.original_model, lambda: bridge(TOKENS).detach())
    with zoo.quiet():
        network = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    if library == "transformers":
        return Wrapped(network, network, lambda: network(TOKENS).logits.detach())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    envoy = nnsight.TransformersModel(network, tokenizer=tokenizer)
    return Wrapped(envoy, network, lambda: traced_logits(envoy))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model folder per family."""
    made = {}
    for name in FAMILIES:
        made[name] = tmp_path_factory.mktemp(name)
        network, tokenizer = tiny.make(name)
        with zoo.quiet():
            network.save_pretrained(made[name])
            tokenizer.save_pretrained(made[name])
    return made


@pytest.fixture(scope="module", params=["transformer_lens", "nnsight", "transformers"])
def library(request):
    return request.param


@pytest.fixture(scope="module", params=FAMILIES)
def wrapped(request, library, folders):
    """Shared by tests that leave it as it was."""
    return wrap(library, folders[request.param])


@pytest.fixture
def gpt2(library, folders):
    return wrap(library, folders["tiny-gpt2"])


@pytest.fixture
def bridge(folders):
    return boot(folders["tiny-gpt2"])


def hooks_of(network):
    return [
        hook for module in network.modules() for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]  # fmt: skip


def plain(logits):
    return logits.as_subclass(torch.Tensor)


# ------------------------------------------------------------------------------------- the promises of a Model


def test_logits_are_the_wrapped_models_own(wrapped):
    logits, _ = adapters.as_model(wrapped.obj).run_with_cache(TOKENS, SITE)
    torch.testing.assert_close(plain(logits), wrapped.logits(), atol=1e-5, rtol=1e-5)


def test_recording_everything_changes_no_bit(wrapped):
    model = adapters.as_model(wrapped.obj)
    with torch.no_grad():
        bare = model.hf(TOKENS, use_cache=False).logits  # with a cache, keys are laid out differently and bits differ
    logits, cache = model.run_with_cache(TOKENS, lambda name: True)
    assert torch.equal(plain(logits), bare)
    assert set(cache) == set(model.site_names)


def test_generation_is_the_greedy_one_of_the_wrapped_network(wrapped):
    answer = adapters.as_model(wrapped.obj).generate(TOKENS[0].tolist(), max_new_tokens=12)
    prompt = TOKENS[:1]
    expected = wrapped.network.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
    )
    assert list(answer.tokens) == expected[0, prompt.shape[1] :].tolist()


def test_an_intervention_acts_at_its_cells_and_only_there(wrapped):
    model = adapters.as_model(wrapped.obj)
    logits, cache = model.run_with_cache(TOKENS, SITE)
    zero = interventions.Zero(site=SITE, positions=(3,))
    changed, after = model.run_with_cache(TOKENS, SITE, interventions=[zero])
    assert not after[SITE][:, 3].any()
    kept = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(after[SITE][:, :3], cache[SITE][:, :3])
    assert after[SITE][:, kept].any(dim=-1).all()
    assert torch.equal(plain(changed)[:, :3], plain(logits)[:, :3])
    assert not torch.allclose(plain(changed)[:, 3:], plain(logits)[:, 3:], atol=1e-3)


def test_an_intervention_acts_in_generation(wrapped):
    model = adapters.as_model(wrapped.obj)
    steer = interventions.Steer(site=SITE, direction=torch.arange(model.cfg.d_model).float().numpy(), strength=9.0)
    plainly = model.generate(TOKENS[0].tolist(), max_new_tokens=12)
    steered = model.generate(TOKENS[0].tolist(), max_new_tokens=12, interventions=[steer])
    assert steered.tokens != plainly.tokens
    assert model.generate(TOKENS[0].tolist(), max_new_tokens=12).tokens == plainly.tokens


def test_the_wrapped_model_is_restored_to_the_bit(wrapped):
    before, hooks = wrapped.logits(), hooks_of(wrapped.network)
    model = adapters.as_model(wrapped.obj)
    everywhere = interventions.Zero(site="blocks.*.attn.hook_pattern")
    model.generate([1, 2, 3], max_new_tokens=3, interventions=[everywhere])
    model.run_with_cache(TOKENS, lambda name: True, interventions=[everywhere])
    with pytest.raises(errors.InterventionError):
        model.run_with_cache(TOKENS, SITE, interventions=[interventions.Zero(site=SITE, positions=(99,))])
    assert torch.equal(wrapped.logits(), before)
    assert hooks_of(wrapped.network) == hooks


def test_the_same_object_gives_the_same_model(wrapped):
    assert adapters.as_model(wrapped.obj) is adapters.as_model(wrapped.obj)


def test_an_adopted_model_agrees_with_the_same_folder_loaded_by_sonde(wrapped):
    model = adapters.as_model(wrapped.obj)
    zero = interventions.Zero(site=SITE)
    with loading.load(wrapped.network.name_or_path) as loaded:
        expected, cache = loaded.run_with_cache(TOKENS, interventions=[zero])
        logits, ours = model.run_with_cache(TOKENS, interventions=[zero])
    torch.testing.assert_close(plain(logits), plain(expected), atol=1e-5, rtol=1e-5)
    assert ours.keys() == cache.keys()
    for name, value in cache.items():
        torch.testing.assert_close(ours[name], value, atol=1e-5, rtol=1e-5)


# --------------------------------------------------------------------------------- whose weights, and how long


def test_a_model_of_sonde_is_returned_as_it_is():
    with loading.load("tiny-llama") as model:
        assert adapters.as_model(model) is model


def test_the_parameters_are_shared_and_not_copied(wrapped):
    model = adapters.as_model(wrapped.obj)
    theirs = {id(parameter) for parameter in wrapped.network.parameters()}
    assert {id(parameter) for parameter in model.hf.parameters()} <= theirs


def test_a_tokenizer_and_its_chat_template_come_along(gpt2):
    model = adapters.as_model(gpt2.obj)
    assert model.tokenizer.chat_template == tiny.CHAT_TEMPLATE
    assert model.tokenizer.decode(model.to_tokens("hello")[0], skip_special_tokens=True) == "hello"


def test_closing_an_adopted_model_leaves_the_weights_alone(gpt2):
    before = gpt2.logits()
    with adapters.as_model(gpt2.obj) as model:
        model.generate([1, 2, 3], max_new_tokens=2)
    assert torch.equal(gpt2.logits(), before)
    with pytest.raises(errors.ModelError, match="closed"):
        model.generate([1, 2, 3], max_new_tokens=2)
    again = adapters.as_model(gpt2.obj)
    assert again is not model
    assert again.generate([1, 2, 3], max_new_tokens=2).tokens


def test_model_and_wrapped_object_are_freed_together(gpt2):
    model = adapters.as_model(gpt2.obj)
    model.generate([1, 2, 3], max_new_tokens=2)
    assert model._scheduler._executor is not None
    model._scheduler._executor.submit(int).result()  # the engine's thread has put the answer's batch away
    gone = [weakref.ref(one) for one in (model, gpt2.obj, gpt2.network, model.hf)]
    gpt2.obj = gpt2.network = gpt2.logits = None
    del model
    gc.collect()
    assert [one() for one in gone] == [None] * 4


def test_a_copy_of_a_network_gets_a_model_of_its_own(folders):
    network = wrap("transformers", folders["tiny-llama"]).obj
    model = adapters.as_model(network)
    for other in (copy.deepcopy(network), copy.copy(network), pickle.loads(pickle.dumps(network))):
        assert adapters.as_model(other) is not model
    assert adapters.as_model(network) is model


def test_one_network_has_one_model_whoever_wraps_it(folders):
    wrapped = wrap("nnsight", folders["tiny-llama"])
    assert adapters.as_model(wrapped.obj) is adapters.as_model(wrapped.network)


def test_weights_that_changed_are_followed_and_stale_caches_dropped(gpt2):
    model = adapters.as_model(gpt2.obj)
    first = model.generate([1, 2, 3], max_new_tokens=4)
    with torch.no_grad():
        for parameter in gpt2.network.get_input_embeddings().parameters():
            parameter.mul_(-3)
    assert adapters.as_model(gpt2.obj) is model
    second = model.generate([1, 2, 3], max_new_tokens=4)
    assert second.encoded_tokens == first.encoded_tokens
    assert second.logprobs != first.logprobs


# ------------------------------------------------------------------------------------------ TransformerBridge


def test_a_bridge_is_unaffected_by_its_model(bridge):
    bridge.train()
    modes = [module.training for module in bridge.modules()]
    names = list(bridge.hook_dict)
    model = adapters.as_model(bridge)
    assert [module.training for module in bridge.modules()] == modes
    bridge.eval()
    logits, cache = bridge.run_with_cache(TOKENS)
    model.generate([1, 2, 3], max_new_tokens=3, interventions=[interventions.Zero(site="blocks.*.attn.hook_pattern")])
    model.run_with_cache(TOKENS, lambda name: True)
    logits_again, cache_again = bridge.run_with_cache(TOKENS)
    assert torch.equal(logits, logits_again)
    assert cache.keys() == cache_again.keys()
    assert all(torch.equal(cache[name], cache_again[name]) for name in cache)
    assert list(bridge.hook_dict) == names
    assert bridge.original_model.config._attn_implementation == "eager"


def test_a_bridge_that_is_cast_is_followed(folders):
    bridge = boot(folders["tiny-llama"])
    model = adapters.as_model(bridge)
    bridge.to(torch.float64)
    assert adapters.as_model(bridge) is model
    logits, _ = model.run_with_cache(TOKENS, SITE)
    assert logits.dtype == torch.float64
    torch.testing.assert_close(plain(logits), bridge(TOKENS).detach(), atol=1e-5, rtol=1e-5)


def test_processed_weights_are_refused_also_when_processed_later(bridge):
    adapters.as_model(bridge)
    bridge.enable_compatibility_mode()
    with pytest.raises(errors.ModelError, match=r"processed its weights.*no_processing=True"):
        adapters.as_model(bridge)


def test_compatibility_mode_without_processing_is_accepted(bridge):
    bridge.enable_compatibility_mode(no_processing=True)
    logits, _ = adapters.as_model(bridge).run_with_cache(TOKENS, SITE)
    torch.testing.assert_close(plain(logits), bridge(TOKENS).detach(), atol=1e-5, rtol=1e-5)


def test_a_bridge_that_computes_something_else_than_its_parameters_is_refused(bridge):
    projection = bridge.blocks[1].attn.q.original_component  # a part of GPT-2's fused projection, as the bridge runs it
    projection.weight = torch.nn.Parameter(2 * projection.weight)
    with pytest.raises(errors.ModelError, match="does not compute what its parameters say"):
        adapters.as_model(bridge)


def test_a_network_inside_a_bridge_is_refused_by_itself(bridge):
    with pytest.raises(errors.ModelError, match="pass the bridge instead"):
        adapters.as_model(bridge.original_model)


# ---------------------------------------------------------------------------------------------------- nnsight


def test_a_lazy_nnsight_model_is_loaded_first(folders):
    envoy = nnsight.TransformersModel(str(folders["tiny-llama"]), task="text-generation")
    assert not envoy.dispatched
    with zoo.quiet():
        model = adapters.as_model(envoy)
    assert envoy.dispatched
    torch.testing.assert_close(plain(model.run_with_cache(TOKENS, SITE)[0]), traced_logits(envoy), atol=1e-5, rtol=1e-5)


def test_a_lazy_nnsight_model_that_cannot_be_loaded_says_so(folders, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folders["tiny-llama"] / name).read_bytes())
    envoy = nnsight.TransformersModel(str(tmp_path), task="text-generation")
    with pytest.raises(errors.ModelError, match="nnsight cannot load the weights"):
        adapters.as_model(envoy)


def test_the_deprecated_language_model_and_a_bare_envoy_are_accepted(folders):
    network, tokenizer = tiny.make("tiny-llama")
    with pytest.warns(nnsight.NNsightDeprecationWarning):
        envoy = nnsight.LanguageModel(network, tokenizer=tokenizer)
    assert adapters.as_model(envoy).hf is network
    network, tokenizer = tiny.make("tiny-llama")
    model = adapters.as_model(nnsight.NNsight(network), tokenizer=tokenizer)
    assert (model.hf, model.tokenizer) == (network, tokenizer)


def test_an_edited_nnsight_model_is_refused(folders):
    envoy = wrap("nnsight", folders["tiny-llama"]).obj
    with envoy.edit() as (_, edited):
        edited.model.layers[0].output[:] = 0
    adapters.as_model(envoy)
    with pytest.raises(errors.ModelError, match="carries edits"):
        adapters.as_model(edited)


# --------------------------------------------------------------------------------- tokenizers, errors, imports


def test_a_tokenizer_is_found_given_or_asked_for(folders):
    assert adapters.as_model(wrap("transformers", folders["tiny-gpt2"]).obj).tokenizer.chat_template
    network, tokenizer = tiny.make("tiny-gpt2")
    with pytest.raises(errors.ModelError, match=r"no tokenizer found .*tokenizer=…"):
        adapters.as_model(network)
    model = adapters.as_model(network, tokenizer=tokenizer)
    assert model.tokenizer is tokenizer
    assert adapters.as_model(network) is model
    with pytest.raises(errors.ModelError, match="already has another tokenizer"):
        adapters.as_model(network, tokenizer=tiny.tokenizer())


def hooked_transformer():
    return type("HookedTransformer", (), {"__module__": "transformer_lens.HookedTransformer"})()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: 3, "cannot make a Model of int: expected a sonde Model, a TransformerLens TransformerBridge"),
        (lambda: "gpt2", "use sonde.load"),
        (lambda: torch.nn.Linear(2, 2), "cannot make a Model of Linear"),
        (lambda: nnsight.NNsight(torch.nn.Linear(2, 2)), "cannot make a Model of Linear inside NNsight"),
        (hooked_transformer, "boot_transformers in place of HookedTransformer"),
        (lambda: tiny.make("tiny-gpt2")[0].transformer, "GPT2Model has no language-model head"),
        (lambda: tiny.make("tiny-gpt2")[0].to("meta"), "has no weights yet"),
        (lambda: transformers.AutoModelForCausalLM.from_config(unknown()), "no family row for model type 'opt'"),
    ],
    ids=["int", "name", "module", "envoy", "hooked", "headless", "meta", "family"],
)
def test_anything_else_is_an_error_that_says_what_to_do(make, says):
    with pytest.raises(errors.ModelError) as raised:
        adapters.as_model(make(), tokenizer=tiny.tokenizer())
    assert says in str(raised.value)


def unknown():
    return transformers.OPTConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, ffn_dim=8, num_attention_heads=1, word_embed_proj_dim=8
    )


def test_neither_package_is_needed_by_the_adapters(monkeypatch):
    for package in ("transformer_lens", "nnsight"):
        monkeypatch.setitem(sys.modules, package, None)  # any import of it fails now
    fresh = runpy.run_path(adapters.__file__)
    network, tokenizer = tiny.make("tiny-llama")
    assert fresh["as_model"](network, tokenizer=tokenizer).hf is network
