"""Published InterpBench folders: their layout, read without pickle."""

import json

import pytest
import safetensors.torch
import torch

from sonde.bench import cases, evaluating, published, shipped
from sonde.core import errors


def theirs(case):
    """A case's compiled model as TransformerLens would keep it, with tokens and answers in tracr's order."""
    compiled = cases.get(case).compiled()
    state, sizes = compiled.network().state_dict(), compiled.config
    layers, heads, width = (sizes[name] for name in ("num_hidden_layers", "num_attention_heads", "head_dim"))
    words = (*compiled.vocabulary, "BOS", "PAD")
    order = [words.index(word) for word in published._sorted(words)]
    outputs = compiled.outputs or (0,)
    answers = [outputs.index(value) for value in published._sorted(outputs)]
    found = {
        "embed.W_E": state["model.embed_tokens.weight"][order],
        "pos_embed.W_pos": state["model.embed_positions.weight"],
        "unembed.W_U": state["lm_head.weight"][answers].T,
        "unembed.b_U": state["lm_head.bias"][answers],
    }
    for layer in range(layers):
        ours, at = f"model.layers.{layer}", f"blocks.{layer}"
        for letter in "QKV":
            name = f"{ours}.self_attn.{letter.lower()}_proj"
            found[f"{at}.attn.W_{letter}"] = state[f"{name}.weight"].unflatten(0, (heads, width)).transpose(1, 2)
            found[f"{at}.attn.b_{letter}"] = state[f"{name}.bias"].unflatten(0, (heads, width))
        found[f"{at}.attn.W_O"] = state[f"{ours}.self_attn.o_proj.weight"].T.unflatten(0, (heads, width))
        found[f"{at}.attn.b_O"] = state[f"{ours}.self_attn.o_proj.bias"]
        found[f"{at}.attn.mask"] = torch.ones(4, 4)  # TransformerLens keeps its masks as well
        for name, letter in (("fc_in", "in"), ("fc_out", "out")):
            found[f"{at}.mlp.W_{letter}"] = state[f"{ours}.mlp.{name}.weight"].T
            found[f"{at}.mlp.b_{letter}"] = state[f"{ours}.mlp.{name}.bias"]
    config = {
        "n_layers": layers, "n_heads": heads, "d_head": width, "d_model": sizes["hidden_size"],
        "d_mlp": sizes["intermediate_size"], "d_vocab": sizes["vocab_size"], "d_vocab_out": sizes["d_out"],
        "n_ctx": sizes["max_position_embeddings"], "act_fn": "relu", "normalization_type": None,
        "attention_dir": "causal" if compiled.causal else "bidirectional",
    }  # fmt: skip
    return {name: value.contiguous() for name, value in found.items()}, config


def written(folder, case, **changes):
    weights, config = theirs(case)
    place = folder / str(case)
    place.mkdir(parents=True)
    safetensors.torch.save_file(weights, place / published.MODEL)
    (place / published.CONFIG).write_text(json.dumps(config | changes))
    return place


@pytest.mark.parametrize("case", [11, 2, 40])  # words, letters, numbers
def test_a_published_model_is_the_one_that_was_published(case, tmp_path):
    place = written(tmp_path, case)
    assert published.places(tmp_path) == {str(case): place}
    subject = published.opened(str(case), place)
    compiled = shipped.compiled(str(case))
    ids = torch.tensor(cases.get(case).compiled().encode_batch(cases.get(case).sample(5)))[:, :4]
    with torch.no_grad():
        assert torch.allclose(subject.model.hf(ids).logits, compiled.model.hf(ids).logits, atol=1e-5)
    assert subject.truth.names == compiled.truth.names
    assert evaluating.iit(subject, rows=40)["accuracy"] > 0.99


def test_the_true_circuit_may_come_from_a_file_in_transformer_lens_names(tmp_path):
    place = written(tmp_path, 11)
    edges = [["hook_embed", "blocks.0.mlp.hook_post"], ["blocks.0.mlp.hook_post", "blocks.1.attn.hook_result[:, :, 0]"],
             ["blocks.1.attn.hook_result[0]", "blocks.1.hook_resid_post"]]  # fmt: skip
    (place / published.EDGES).write_text(json.dumps(edges))
    assert published.opened("11", place).truth.names == (
        "input->m0", "m0->a1.h0<q>", "m0->a1.h0<k>", "m0->a1.h0<v>", "a1.h0->logits",
    )  # fmt: skip
    (place / published.EDGES).write_text('[["here", "m0"]]')
    with pytest.raises(errors.RequestError, match="'here' is no node"):
        published.opened("11", place)


def test_pickles_are_not_read(tmp_path):
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "ll_model.pth").write_bytes(b"x")
    with pytest.raises(errors.RequestError, match="holds pickles"):
        published.places(tmp_path)
    with pytest.raises(errors.RequestError, match="is no InterpBench folder"):
        published.places(tmp_path / "none")


def test_a_model_of_another_kind_or_case_is_refused(tmp_path):
    place = written(tmp_path / "norms", 11, normalization_type="LN")
    with pytest.raises(errors.RequestError, match="normalization_type is 'LN', expected None"):
        published.opened("11", place)
    place = written(tmp_path / "other", 40)
    with pytest.raises(errors.RequestError, match="another case's"):
        published.opened("11", place)
    with pytest.raises(errors.RequestError, match="no numbered case"):
        published.opened("ioi", place)


def test_a_model_that_does_not_do_its_task_is_refused(tmp_path):
    place = written(tmp_path, 11)
    weights = safetensors.torch.load_file(place / published.MODEL)
    safetensors.torch.save_file(weights | {"unembed.W_U": -weights["unembed.W_U"]}, place / published.MODEL)
    with pytest.raises(errors.RequestError, match=r"of 200 inputs as case 11 does, expected at least 90%"):
        published.opened("11", place)
