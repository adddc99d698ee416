"""EAP-IG against its definition in plain torch: a forward pass by hand, hooks on every input, autograd."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import sonde
from sonde.circuits import registry, tasks
from sonde.core import errors

STEPS = 5


def forward(model, embedded, probes=None):
    """What every source writes, the final stream, and logits; `probes` are added to what each destination reads."""
    hf, cfg = model.hf, model.cfg
    written, probes = {"input": embedded}, probes or {}

    def read(name):
        stream = sum(written.values()) + bias
        return stream + probes[name] if name in probes else stream

    bias = torch.zeros(())
    for index, block in enumerate(hf.transformer.h):
        weight = block.attn.c_attn.weight.view(-1, 3, cfg.n_heads, cfg.d_head)
        offset = block.attn.c_attn.bias.view(3, cfg.n_heads, cfg.d_head)
        out = block.attn.c_proj.weight.view(cfg.n_heads, cfg.d_head, -1)
        found = {}
        for head in range(cfg.n_heads):
            name = f"a{index}.h{head}"
            query, key, value = (
                block.ln_1(read(f"{name}<{letter}>")) @ weight[:, part, head] + offset[part, head]
                for part, letter in enumerate("qkv")
            )
            scores = query @ key.mT / cfg.d_head**0.5
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
            found[name] = scores.softmax(-1) @ value @ out[head]
        written |= found
        bias = bias + block.attn.c_proj.bias
        written[f"m{index}"] = block.mlp(block.ln_2(read(f"m{index}")))
    return written, hf.lm_head(hf.transformer.ln_f(read("logits")))


def reference(model, pairs, whole, first):
    """Change of the source times the gradient at the destination, averaged over k = first … first + STEPS - 1."""
    network = model.hf.transformer
    places = torch.arange(pairs.clean.shape[1])
    clean, corrupt = (network.wte(ids).detach() + network.wpe(places).detach() for ids in (pairs.clean, pairs.corrupt))
    with torch.no_grad():
        (here, _), (there, _) = forward(model, clean), forward(model, corrupt)
    scores = np.full((len(whole.sources), len(whole.destinations)), np.nan)
    scores[whole.allowed] = 0.0
    for step in range(first, first + STEPS):
        probes = {name: torch.zeros_like(clean, requires_grad=True) for name in whole.destinations}
        _, logits = forward(model, corrupt + step / STEPS * (clean - corrupt), probes)
        at = torch.arange(len(clean))
        last = logits[at, pairs.ends]
        loss = -(last[at, pairs.answers[:, 0]] - last[at, pairs.wrongs[:, 0]]).mean()
        gradients = dict(zip(probes, torch.autograd.grad(loss, list(probes.values())), strict=True))
        for i, source in enumerate(whole.sources):
            for j, name in enumerate(whole.destinations):
                if whole.allowed[i, j]:
                    scores[i, j] += float(((there[source] - here[source]) * gradients[name]).sum()) / STEPS
    return scores


@pytest.fixture(scope="module")
def model():
    with sonde.load("tiny-gpt2") as found:
        yield found


@pytest.mark.parametrize("first", [0, 1])
def test_scores_are_those_of_the_definition_wherever_the_steps_begin(model, first):
    made = tasks.get("induction")(model, n=3, seed=0, length=6, again=2)[0]
    found = registry.find(model, made, method="eap-ig", steps=STEPS, steps_from=first)
    expected = reference(model, made, found.graph, first)
    assert np.nanmax(np.abs(expected)) > 0.01
    assert np.allclose(found.values, expected, rtol=0, atol=1e-5, equal_nan=True)
    other = registry.find(model, made, method="eap-ig", steps=STEPS, steps_from=1 - first)
    assert np.nanmax(np.abs(other.values - expected)) > 1e-3
    assert found.settings.get("steps_from", 1) == first


def test_steps_begin_at_0_or_1(model):
    made = tasks.get("induction")(model, n=2, seed=0, length=6, again=2)[0]
    with pytest.raises(errors.RequestError, match="steps_from is 2: expected 1"):
        registry.find(model, made, method="eap-ig", steps_from=2)


def test_the_hand_written_pass_is_the_models_own(model):
    made = tasks.get("induction")(model, n=2, seed=0, length=6, again=2)[0]
    network = model.hf.transformer
    with torch.no_grad():
        _, logits = forward(model, network.wte(made.clean) + network.wpe(torch.arange(made.clean.shape[1])))
        own = model.hf(made.clean).logits
    assert torch.allclose(F.log_softmax(logits, -1), F.log_softmax(own, -1), atol=1e-4)
