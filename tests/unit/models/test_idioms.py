"""Words of TransformerLens and nnsight: those with the same meaning work, and the errors of the others are right."""

import copy
import functools
import re

import pytest
import torch

import sonde
from sonde.core import errors, sites
from sonde.models import idioms

END = "<|endoftext|>"
SITE = "blocks.1.hook_mlp_out"
TABLES = {"MODEL": idioms.MODEL, "CACHE": idioms.CACHE, "CONFIG": idioms.CONFIG, "PACKAGE": idioms.PACKAGE,
          "ARGUMENTS": idioms.ARGUMENTS}  # fmt: skip


def double(value, hook):
    return value * 2


def plain(logits):
    return logits.as_subclass(torch.Tensor)


# ----------------------------------------------------------------------------------------- what an error advises


def exists(dotted, model):
    """Whether a dotted name such as `model.hf.config` is there for one who has imported sonde alone."""
    first, *rest = dotted.split(".")
    cache = model.run_with_cache("hi")[1]
    if first == "sonde" and rest[0] not in sonde.__all__:
        return False
    start = {"model": model, "cache": cache, "sonde": sonde}[first]
    return functools.reduce(getattr, rest, start) is not None


@pytest.mark.parametrize("table", TABLES)
def test_every_name_that_an_error_advises_is_there(model, table):
    text = " ".join(TABLES[table].values())
    given = {}
    for line in re.findall(r"`(from \S+ import \w+)`", text):
        exec(line, given)
    alone = re.sub(r"`from .*?`", "", text)
    advised = set(re.findall(r"\b(?:model|cache|sonde)(?:\.\w+)+", alone))
    assert advised
    assert [name for name in sorted(advised) if not exists(name, model)] == []
    for name in re.findall(r"\b(?:lenses|families)(?:\.\w+)+", alone):
        assert functools.reduce(getattr, name.split(".")[1:], given[name.split(".")[0]]), name


@pytest.mark.parametrize(
    "site", [site for way in idioms.MODEL.values() for site in re.findall(r"'(blocks[^']*)'", way)]
)
def test_every_site_that_an_error_advises_is_there(model, site):
    assert sites.select(site, model.site_names)


def test_no_word_in_the_tables_works_already(model):
    _, cache = model.run_with_cache("hi")
    for owner, table in (
        (model, idioms.MODEL),
        (cache, idioms.CACHE),
        (model.cfg, idioms.CONFIG),
        (sonde, idioms.PACKAGE),
    ):
        assert [name for name in table if name != "save" and hasattr(owner, name)] == []  # nnsight gives all a `save`


def test_an_error_names_the_way_and_hasattr_stays_honest(model):
    assert not hasattr(model, "add_hook")
    with pytest.raises(AttributeError, match=r"'Model' object has no attribute 'add_hook'; write `with model\.hooks"):
        model.add_hook(SITE, double)
    with pytest.raises(AttributeError, match=r"`model\.hf\.transformer`"):
        model.transformer  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'run_with_cash'$"):
        model.run_with_cash  # noqa: B018
    for owner in (sonde.Model, model):
        assert not hasattr(owner, "from_pretrained")
        with pytest.raises(AttributeError, match=r"sonde\.load"):
            owner.from_pretrained("gpt2", trust_remote_code=False)
    with pytest.raises(AttributeError, match=r"module 'sonde' has no attribute 'HookedTransformer'; .*sonde\.load"):
        sonde.HookedTransformer.from_pretrained("gpt2", trust_remote_code=False)


@pytest.mark.parametrize("call", [
    lambda m: m.generate("hi", do_sample=True), lambda m: m.run_with_cache("hi", remove_batch_dim=True),
    lambda m: m.run_with_hooks("hi", fwd_hooks=[], bwd_hooks=[]), lambda m: m("hi", prepend_bos=True),
    lambda m: m.hooks(fwd_hooks=[], reset_hooks_end=True), lambda m: m.run_with_cache("hi", return_type="loss"),
    lambda m: m.to_tokens("hi", truncate=True), lambda m: m.to_str_tokens("hi", move_to_device=False),
])  # fmt: skip
def test_an_argument_of_another_library_is_answered_with_what_to_write(model, call):
    with pytest.raises(errors.RequestError, match=r"takes no '\w+': \w"):
        call(model)


def test_an_argument_that_a_method_has_is_taken_whatever_others_say_of_it(model):
    assert model.to_tokens("hi", prepend_bos=True).shape == (1, 3)
    assert model("hi", return_type="loss").ndim == 0


def test_a_misspelt_argument_is_the_usual_type_error(model):
    with pytest.raises(TypeError, match="max_new_token"):
        model.generate("hi", max_new_token=3)


# ------------------------------------------------------------------------------------------------- hooks in a block


def test_hooks_hold_in_forward_passes_and_in_generation_and_end_with_their_block(model):
    def ablate(value, hook):
        value[:] = 0.0  # in place, as many do it

    zero = sonde.Zero(site=SITE)
    expected, alone = model.run_with_hooks("hello", [zero]), model.generate("hello", max_new_tokens=8)
    wanted = model.generate("hello", max_new_tokens=8, interventions=[zero])
    assert wanted.tokens != alone.tokens
    with model.hooks(fwd_hooks=[(lambda name: name == SITE, ablate)]) as same:
        assert same is model
        assert torch.equal(model("hello"), expected)
        assert model.generate("hello", max_new_tokens=8).tokens == wanted.tokens
        _, cache = model.run_with_cache("hello", SITE)
        assert not cache[SITE].any()
    with pytest.raises(ZeroDivisionError), model.hooks([zero]):
        raise ZeroDivisionError
    assert model.generate("hello", max_new_tokens=8).tokens == alone.tokens


def test_a_layer_order_in_a_block_is_obeyed_or_refused_but_never_ignored(model):
    skip = (
        sonde.LayerOrder.skip(2, n_layers=6)
        if hasattr(sonde.LayerOrder, "skip")
        else sonde.LayerOrder(order=(0, 1, 3, 4, 5))
    )
    wanted = model.generate("hello", max_new_tokens=8, interventions=[skip])
    assert wanted.tokens != model.generate("hello", max_new_tokens=8).tokens
    with model.hooks([skip]):
        assert model.generate("hello", max_new_tokens=8).tokens == wanted.tokens
        with pytest.raises(errors.InterventionError, match="LayerOrder"):
            model("hello")


async def test_an_intervention_for_one_step_acts_at_that_step_of_an_episode(model, kit):
    alone = await kit.episode(model, 3)
    with model.hooks([sonde.Zero(site=SITE, steps=(1,))]):
        changed = await kit.episode(model, 3)
    reference = sonde.InterventionManager(model).add_intervention(hook_fn=sonde.Zero(site=SITE, steps=(1,)))
    with reference:
        expected = await kit.episode(model, 3)
    assert [one.text for one in changed] == [one.text for one in expected]
    assert changed[0].text == alone[0].text
    assert changed[1].text != alone[1].text


# ------------------------------------------------------------------------------------------------ values and texts


def test_weights_explain_what_the_model_computes(model):
    logits, cache = model.run_with_cache("hello there", ["*"])
    torch.testing.assert_close(cache["ln_final.hook_out"] @ model.W_U + model.b_U, plain(logits))
    torch.testing.assert_close(cache["embed"], model.W_E[model.to_tokens("hello there")])
    for layer in (0, -1):
        heads = torch.einsum("bphd,hdm->bpm", cache["z", layer], model.W_O[layer]) + model.b_O[layer]
        torch.testing.assert_close(heads, cache["attn_out", layer])
        torch.testing.assert_close(
            cache["post", layer] @ model.W_out[layer] + model.b_out[layer], cache["mlp_out", layer]
        )


def test_weights_are_detached_and_stacked_ones_are_copies(model):
    assert not model.W_U.requires_grad
    model.W_Q.zero_()
    assert model.W_Q.any()


def test_a_cache_without_the_site_says_what_it_looked_for(model):
    _, cache = model.run_with_cache("hi", "blocks.0.hook_resid_post")
    for key, name in ((("resid_post", 1), r"blocks\.1\.hook_resid_post"), ("k0", r"blocks\.0\.attn\.hook_k"),
                      (("scale", 0, "ln1"), "scale"), (("resid_post", -9), r"blocks\.-3"), (("embed", 0), "embed"),
                      ((), r"\(\)"), (("resid_post", "0"), "resid_post"), (3, "3")):  # fmt: skip
        with pytest.raises(errors.CaptureError, match=f"{name}.*was not recorded"):
            cache[key]


def test_a_copied_cache_is_whole(model):
    _, cache = model.run_with_cache("hi", "*.hook_resid_post")
    for one in (copy.copy(cache), copy.deepcopy(cache)):
        assert torch.equal(one["resid_post", -1], cache["resid_post", -1])
        assert dict(one).keys() == dict(cache).keys()


def test_ids_out_of_range_and_texts_of_many_tokens_are_refused(model):
    for call in (lambda: model.to_string([999]), lambda: model.to_str_tokens([-1]), lambda: model.to_single_token("ab"),
                 lambda: model.to_single_token(""), lambda: model.to_string([])):  # fmt: skip
        with pytest.raises(errors.RequestError):
            call()


def test_a_bos_is_prepended_once_and_only_where_there_is_one():
    with sonde.load("tiny-gpt2") as model:
        bos = model.tokenizer.bos_token_id
        assert model.to_tokens("hi", prepend_bos=True)[0].tolist() == [bos, *model.to_tokens("hi")[0].tolist()]
        assert model.to_str_tokens(["hi", "you"], prepend_bos=True) == [[END, "h", "i"], [END, "y", "o", "u"]]
        assert torch.equal(model.to_tokens("hi", prepend_bos=False), model.to_tokens("hi"))
        model.tokenizer.bos_token = None
        with pytest.raises(errors.RequestError, match="no BOS token"):
            model.to_tokens("hi", prepend_bos=True)
        assert torch.equal(model.to_tokens("hi", prepend_bos=False), model.to_tokens("hi"))


def test_what_to_return_is_checked(model):
    with pytest.raises(errors.RequestError, match="'logits', 'loss', 'both' or None, got 'losses'"):
        model("hi", return_type="losses")
