"""Subspaces: what was planted is found, interchanges move only what they should, and the model is as before."""

import numpy as np
import pytest
import torch
import transformers

import sonde
from sonde.analysis import subspaces
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import tiny

CLASSES, PER_CLASS, WIDTH, PLANTED = 5, 40, 32, 4
FIRST = 20
TOKENS = range(FIRST, FIRST + CLASSES * PER_CLASS)


def planted_basis():
    """The directions in which the planted model has a token's class."""
    return np.linalg.qr(np.random.default_rng(7).standard_normal((WIDTH, WIDTH)))[0].T[:PLANTED]


@pytest.fixture(scope="module")
def planted():
    """A network whose answer, one of the first tokens, is the class of its last token; the class lies in four directions.

    Attention and MLPs write nothing. Outside the planted directions a token has noise of its own.
    """
    rng = np.random.default_rng(3)
    config = transformers.LlamaConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=WIDTH,
        intermediate_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        bos_token_id=256,
        eos_token_id=258,
        pad_token_id=259,
    )
    network = transformers.AutoModelForCausalLM.from_config(config)
    basis = planted_basis()
    codes = np.linalg.svd(np.eye(CLASSES) - 1 / CLASSES)[0][:, :PLANTED]  # the corners of a simplex, centred
    codes *= 4 / np.linalg.norm(codes, axis=1, keepdims=True)
    noise = rng.standard_normal((tiny.VOCAB, WIDTH))
    noise -= noise @ basis.T @ basis
    embedding = noise.copy()
    for token in TOKENS:
        embedding[token] += codes[token % CLASSES] @ basis
    reading = np.zeros((tiny.VOCAB, WIDTH))
    reading[:CLASSES] = 2 * codes @ basis
    with torch.no_grad():
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        network.model.embed_tokens.weight.copy_(torch.from_numpy(embedding))
        network.lm_head.weight.copy_(torch.from_numpy(reading))
    with models_model.Model(network, tiny.tokenizer(), name="planted") as model:
        yield model


def drawn_pairs(count, seed):
    rng = np.random.default_rng(seed)
    found = []
    while len(found) < count:
        one, other = rng.choice(TOKENS, 2).tolist()
        if one % CLASSES != other % CLASSES:
            found.append(tracing_pairs.TracePair((30, 40, one), (30, 40, other), one % CLASSES, other % CLASSES))
    return found


LAST = subspaces.Place(2, [2])


def overlap(one, other):
    """1 if the smaller subspace lies inside the larger, about its dimension's share of the width if it is random."""
    return float((np.linalg.svd(one @ other.T)[1] ** 2).mean())


def test_the_planted_directions_are_found_from_labels(planted):
    rows = [(30, 40, token) for token in TOKENS]
    labels = np.array([token % CLASSES for token in TOKENS])
    states = subspaces.states(planted, rows, LAST)
    fitted = subspaces.of_labels(states, labels, components=8)
    assert fitted.accuracy.value > 0.9
    assert fitted.majority == pytest.approx(1 / CLASSES)
    assert overlap(fitted.basis, planted_basis()) > 0.8
    shuffled = subspaces.of_labels(states, np.random.default_rng(0).permutation(labels), components=8)
    assert shuffled.accuracy.value < 0.5
    np.testing.assert_allclose(fitted.basis @ fitted.basis.T, np.eye(8), atol=1e-8)


def test_a_learned_rotation_finds_the_planted_directions_and_holds_on_other_pairs(planted):
    learning = subspaces.Learning(steps=150, batch=32, rate=0.05)
    learned = subspaces.rotated(planted, drawn_pairs(200, 1), LAST, PLANTED, learning=learning)
    assert overlap(learned.basis, planted_basis()) > 0.6
    assert learned.losses[-1] < learned.losses[0]
    found = subspaces.compare(planted, drawn_pairs(100, 2), LAST, learned.basis)
    assert found.inside.value > 0.85
    assert found.random.high < 0.3
    assert found.outside.value < 0.15
    assert found.whole.value == 1.0


def test_a_rotation_where_nothing_is_carried_learns_nothing(planted):
    learned = subspaces.rotated(
        planted, drawn_pairs(50, 1), subspaces.Place(2, [0]), PLANTED, learning=subspaces.Learning(steps=5)
    )
    found = subspaces.compare(planted, drawn_pairs(50, 2), subspaces.Place(2, [0]), learned.basis, draws=1)
    assert found.inside.value == found.whole.value == 0.0


def test_learning_is_fixed_by_its_seed(planted):
    some = drawn_pairs(30, 1)
    first, again = (
        subspaces.rotated(planted, some, LAST, 2, learning=subspaces.Learning(steps=3)).basis for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-neox", "tiny-gemma"])
def test_interchange_of_the_whole_stream_is_a_patch_and_leaves_the_model_as_it_was(name):
    with sonde.load(name) as model:
        clean, other = (5, 6, 7, 8, 9), (5, 60, 7, 8, 9)
        before = model.run_with_hooks(torch.tensor([clean]))
        for layer in range(model.cfg.n_layers + 1):
            place = subspaces.Place(layer, [1])
            site = place.site(model)
            patch = sonde.Patch(site=site, values=model.run_with_cache(list(other), site)[1][site][0, 1], positions=[1])
            expected = int(model.run_with_hooks(torch.tensor([clean]), [patch])[0, -1].argmax())
            pair = tracing_pairs.TracePair(clean, other, 0, expected)
            assert subspaces.successes(model, [pair], place).tolist() == [1.0]
            whole = subspaces.random(model.cfg.d_model, model.cfg.d_model, 0)
            assert subspaces.successes(model, [pair], place, whole).tolist() == [1.0]
        subspaces.rotated(model, [pair], subspaces.Place(1, [1]), 2, learning=subspaces.Learning(steps=1))
        assert all(value.requires_grad for value in model.hf.parameters())
        assert torch.equal(model.run_with_hooks(torch.tensor([clean])), before)


def test_pairs_of_different_lengths_are_compared_together(planted):
    short = tracing_pairs.TracePair((21, 22), (21, 23), 22 % CLASSES, 23 % CLASSES)
    longer = tracing_pairs.TracePair((30, 21, 22), (30, 21, 24), 22 % CLASSES, 24 % CLASSES)
    place = subspaces.Place(1, [1, 2])
    assert subspaces.successes(planted, [short, longer], place).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: subspaces.Place(9, [0]).site(model), "no layer 9"),
        (lambda model: subspaces.states(model, [(1, 2)] * 3, subspaces.Place(0, [0, 1])), "2 positions for 3 rows"),
        (lambda model: subspaces.rotated(model, drawn_pairs(4, 0), LAST, 99), "99 components"),
        (lambda model: subspaces.of_labels(np.ones((8, 4)), np.zeros(8)), "two labels"),
        (lambda model: subspaces.of_labels(np.eye(8), np.arange(8) % 2, components=50), "50 components"),
    ],
)
def test_what_makes_no_sense_is_refused(planted, call, message):
    with pytest.raises(errors.SondeError, match=message):
        call(planted)
