"""ACDC: the fast search decides as the masked forward pass per edge does."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import sonde
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits.methods import acdc
from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import plain, tiny


def made(vocab, width=6, count=8):
    ids = torch.randint(0, vocab, (2, count, width))
    return circuits_pairs.Pairs.of_tensors(ids[0], ids[1], answers=ids[0][:, :1], wrongs=ids[1][:, :1])


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    config = plain.PlainConfig(vocab_size=16, hidden_size=12, max_position_embeddings=8, initializer_range=0.3)
    return models_model.Model(plain.PlainForCausalLM(config), tiny.tokenizer(), name="small")


@pytest.mark.parametrize("metric", ["kl", "mse", "logit_diff"])
@pytest.mark.parametrize("tau", [0.001, 0.02])
def test_the_fast_search_keeps_exactly_the_edges_of_the_reference(small, metric, tau):
    pairs = made(16)
    fast, slow = (acdc.acdc(small, pairs, metric, tau=tau, fast=fast) for fast in (True, False))
    assert fast.kept.names == slow.kept.names
    assert 0 < len(fast.kept) < fast.graph.n_edges
    assert np.allclose(fast.values, slow.values, atol=1e-4, equal_nan=True)
    assert fast.cost.forwards < 0.8 * slow.cost.forwards


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-neox", "tiny-gemma"])
def test_the_fast_search_keeps_the_edges_of_the_reference_in_other_families(name):
    with sonde.load(name) as model:
        pairs = made(250, width=4, count=2)
        fast, slow = (acdc.acdc(model, pairs, "kl", tau=0.05, fast=fast) for fast in (True, False))
    assert fast.kept.names == slow.kept.names
    assert 0 < len(fast.kept) < fast.graph.n_edges


def test_the_batch_size_does_not_change_the_circuit(small):
    pairs = made(16)
    whole, parts = (acdc.acdc(small, pairs, "kl", tau=0.005, batch_size=size) for size in (None, 3))
    assert whole.kept.names == parts.kept.names


def test_the_kept_edges_are_those_whose_rise_is_at_least_tau(small):
    found = acdc.acdc(small, made(16), "kl", tau=0.005)
    assert found.circuit().names == found.circuit(threshold=0.005, absolute=False).names


def test_edges_are_tried_from_output_to_input_and_from_late_to_early(small):
    found = acdc.acdc(small, made(16), "kl", tau=0.01)
    names = [f"{found.graph.sources[i]}->{found.graph.destinations[j]}" for i, j in acdc.order(found.graph)]
    assert names[0] == "m1->logits"
    assert names[-1] == "input->a0.h0<q>"
    assert sorted(names) == sorted(found.graph.edges)


def test_progress_is_told_and_wrong_options_are_refused(small):
    told = []
    acdc.acdc(small, made(16, count=2), "kl", tau=0.1, tell=lambda doing, done, of: told.append((done, of)))
    assert told[-1] == (110, 110)
    with pytest.raises(errors.RequestError, match="did you mean 'ablation'"):
        acdc.acdc(small, made(16), "kl", ablaton="zero")
    with pytest.raises(errors.RequestError, match="tau"):
        acdc.acdc(small, made(16), "kl", tau=float("nan"))
    same = made(16)
    with pytest.raises(errors.AnalysisError, match="same"):
        acdc.acdc(small, circuits_pairs.Pairs.of_tensors(same.clean, same.clean), "kl")


@pytest.mark.slow
def test_the_circuit_does_not_depend_on_the_hash_seed():
    code = (
        "import json, torch, sonde\n"
        "from sonde.circuits import pairs, registry\n"
        "ids = torch.arange(24).reshape(2, 3, 4) * 7 % 250\n"
        "found = registry.find(sonde.load('tiny-plain'), pairs.Pairs.of_tensors(ids[0], ids[1]), metric='kl',\n"
        "                      method='acdc', tau=0.05)\n"
        "print(json.dumps([found.kept.to_json(), found.to_json()['values']]))\n"
    )
    found = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0] == found[1]
