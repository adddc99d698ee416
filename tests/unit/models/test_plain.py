"""The plain family: a transformers model without norms."""

import pytest
import torch
import transformers

import sonde
from sonde.models import model as models_model
from sonde.models import plain, prove, tiny


def made(**sizes):
    torch.manual_seed(0)
    config = plain.PlainConfig(**{"vocab_size": 20, "hidden_size": 12, "max_position_embeddings": 8, **sizes})
    return plain.PlainForCausalLM(config)


@pytest.mark.parametrize(
    "sizes",
    [{}, {"head_dim": 5, "num_attention_heads": 3}, {"d_out": 3}, {"use_bidirectional_attention": True},
     {"hidden_act": "gelu", "intermediate_size": 7}],
)  # fmt: skip
def test_a_plain_model_of_any_shape_proves_its_sites_and_survives_saving(sizes, tmp_path):
    hf = made(**sizes)
    model = models_model.Model(hf, tiny.tokenizer(), name="plain")
    prove.prove(model)
    hf.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)
    ids = torch.arange(6)[None]
    assert torch.equal(hf.eval()(input_ids=ids).logits, again.eval()(input_ids=ids).logits)
    assert hf(input_ids=ids).logits.shape[-1] == sizes.get("d_out", 20)


@pytest.mark.parametrize("both", [False, True])
def test_only_a_bidirectional_model_looks_ahead(both):
    hf = made(use_bidirectional_attention=both).eval()
    first = torch.arange(6)[None]
    other = first.clone()
    other[0, -1] = 9
    change = (hf(input_ids=first).logits - hf(input_ids=other).logits).abs().amax(dim=-1)[0]
    assert bool((change[:-1] > 0).all()) is both
    assert models_model.Model(hf, tiny.tokenizer(), name="plain").cfg.causal is not both


def test_the_logits_are_those_of_the_formula():
    hf = made(num_hidden_layers=1, num_attention_heads=1).eval()
    ids = torch.tensor([[3, 1, 4]])
    layer = hf.model.layers[0]
    stream = hf.model.embed_tokens.weight[ids[0]] + hf.model.embed_positions.weight[:3]
    query, key, value = (getattr(layer.self_attn, f"{name}_proj")(stream) for name in "qkv")
    scores = (query @ key.T / 12**0.5).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    stream = stream + layer.self_attn.o_proj(scores.softmax(-1) @ value)
    stream = stream + layer.mlp.fc_out(torch.relu(layer.mlp.fc_in(stream)))
    assert torch.allclose(hf(input_ids=ids).logits[0], hf.lm_head(stream), atol=1e-5)


def test_generation_with_and_without_a_cache_gives_the_same_tokens():
    with sonde.load("tiny-plain") as model:
        tokens = list(model.generate([5, 6, 7], max_new_tokens=5, temperature=0.0).tokens)
        ids = [5, 6, 7]
        for token in tokens:
            with torch.no_grad():
                assert int(model.hf(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()) == token
            ids.append(token)


def test_a_loss_comes_with_labels():
    ids = torch.arange(6)[None]
    found = made()(input_ids=ids, labels=ids)
    expected = torch.nn.functional.cross_entropy(found.logits[0, :-1], ids[0, 1:])
    assert torch.allclose(found.loss, expected)
