"""What Sonde records at a Site is what an nnsight trace saves at the module that holds it."""

import nnsight
import torch

import sonde

TOLERANCE = 1e-5


def trace(envoy, family, n_layers, tokens):
    """The values of some Sites by nnsight, asked for in the order in which the model computes them."""
    # The attention's input projection comes first in a block, then its output projection, then the MLP's.
    with torch.no_grad(), envoy.trace(tokens):
        saved = {}
        saved["hook_embed"] = envoy.get(family.embed).output.save()
        for layer in range(n_layers):
            block = envoy.get(f"{family.layers}.{layer}")
            saved[f"blocks.{layer}.hook_resid_pre"] = block.input.save()
            saved[f"blocks.{layer}.attn.hook_z"] = block.get(f"{family.attn}.{family.o}").input.save()
            saved[f"blocks.{layer}.mlp.hook_pre"] = block.get(family.mlp_pre).output.save()
            saved[f"blocks.{layer}.mlp.hook_post"] = block.get(family.mlp_down).input.save()
            saved[f"blocks.{layer}.hook_mlp_out"] = block.get(family.mlp_out).output.save()
            saved[f"blocks.{layer}.hook_resid_post"] = block.output.save()
        saved["ln_final.hook_out"] = envoy.get(family.final_norm).output.save()
        saved["unembed.hook_out"] = envoy.get(family.unembed).output.save()
        nnsight.save(saved)
    return saved


def test_recorded_values_equal_an_nnsight_trace(pair, tokens):
    model = pair.model
    envoy = nnsight.TransformersModel(pair.network.eval(), tokenizer=pair.tokenizer)
    theirs = trace(envoy, model.parts.family, model.cfg.n_layers, tokens)
    _, ours = model.run_with_cache(tokens, list(theirs))
    assert len(theirs) == 3 + 6 * model.cfg.n_layers
    for name, value in theirs.items():
        mine = ours[name].flatten(2) if name.endswith("hook_z") else ours[name]
        torch.testing.assert_close(
            mine, value, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda text, name=name: f"{name}: {text}"
        )


#: How nnsight itself finds, names and stores models, which is no word for reading one.
INTERNAL = {"AUTO_CLASS", "OVERLOAD_PREFIX", "describe_checkpoint", "estimate_bytes", "from_model_key", "to_model_key",
            "load_adapter", "max_tp_size"}  # fmt: skip


def test_every_public_word_of_an_nnsight_model_works_or_its_error_says_what_to_write():
    words = {name for name in dir(nnsight.TransformersModel) if not name.startswith("_")} - INTERNAL
    with sonde.load("tiny-gpt2") as model:
        lost = {name for name in [*words, "transformer", "lm_head"] if "; " not in told(model, name)}
    assert lost == set()


def told(owner, name):
    try:
        getattr(owner, name)
    except AttributeError as error:
        return str(error)
    return "; it works"
