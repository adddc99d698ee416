"""A network that copies from one known step: its influence map shows that cell and no other.

Two attention layers written by hand, no MLP, one head each. The first writes nothing. In the second, the token `ASK_k` looks
for the token `WORD_k` wherever it stands and copies it; every other token looks at the very first one and copies nothing.
"""

import numpy as np
import pytest
import torch
import transformers

from sonde.analysis.tracing import temporal
from sonde.models import adapters, tiny

FIRST, FILL, SAID = 0, 1, 2
WORDS, ASKS = (4, 5, 6), (8, 9, 10)
SIZE = 16
#: Steps after the first token; each prompt has a word, the last prompt asks for one of them.
STEPS = ((1, 4, 6), (6, 9, 11), (11, 14, 16), (16, 18, 20))


def network(copies=True):
    config = transformers.GPT2Config(
        vocab_size=SIZE,
        n_embd=SIZE,
        n_layer=2,
        n_head=1,
        n_inner=4,
        n_positions=64,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=3,
    )
    made = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        made.transformer.wte.weight.copy_(torch.eye(SIZE))
        made.lm_head.weight.copy_(torch.eye(SIZE))
        attention = made.transformer.h[1].attn
        queries, keys, values = attention.c_attn.weight.view(SIZE, 3, SIZE).unbind(dim=1)
        for slot, (word, ask) in enumerate(zip(WORDS, ASKS, strict=True)):
            queries[ask, slot] = 40.0
            keys[word, slot] = 1.0
            values[word, word] = 1.0
        attention.c_attn.bias[len(WORDS)] = 40.0  # all look at the first token unless something draws them more
        keys[FIRST, len(WORDS)] = 1.0
        if copies:
            attention.c_proj.weight.copy_(4.0 * torch.eye(SIZE))
    return adapters.as_model(made, tokenizer=tiny.tokenizer())


def episode(asked):
    """Three steps that name a word each, and one that asks for one of them."""
    named = [token for word in WORDS for token in (FILL, word, FILL, SAID, SAID)]
    return (FIRST, *named, FILL, ASKS[asked], WORDS[asked], SAID)


@pytest.mark.parametrize("asked", [0, 1, 2])
@pytest.mark.parametrize("replacement", ["mean", "zero"])
def test_only_the_step_that_is_copied_from_stands_out(asked, replacement):
    model = network()
    tokens = episode(asked)
    said = model.run_with_hooks(list(tokens))[0].argmax(dim=-1)
    assert int(said[17]) == WORDS[asked], "the network says the word that it is asked for"
    found = temporal.influence(model, tokens, STEPS, layer=1, replacement=replacement)
    planted = (asked, 3)
    assert found.values[planted] > 0.5
    assert found.drop[planted] > 0.5
    others = [found.values[i, j] for i in range(4) for j in range(i + 1, 4) if (i, j) != planted]
    assert max(others) < 1e-3
    assert np.isnan(found.values[np.tril_indices(4)]).all()


@pytest.mark.parametrize("asked", [0, 2])
def test_without_the_copying_head_nothing_stands_out(asked):
    found = temporal.influence(network(copies=False), episode(asked), STEPS, layer=1)
    assert np.nanmax(np.abs(found.values)) < 1e-6


def test_other_stretches_do_nothing_beside_the_planted_step_and_show_it_beside_another():
    planted = temporal.influence(network(), episode(2), STEPS, layer=1, controls=4)
    assert planted.values[2, 3] > 0.5
    assert planted.control.n[2, 3] == 4
    assert planted.control.below[2, 3] == 1
    assert planted.control.high[2, 3] < 1e-3
    assert planted.sham < 1e-6
    other = temporal.influence(network(), episode(1), STEPS, layer=1, controls=6)
    assert other.values[2, 3] < 1e-3
    assert other.control.mean[2, 3] > 0.1
