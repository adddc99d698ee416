"""A tiny model, a client on it, and small conversations."""

import types

import pytest
import torch

import sonde
from sonde.models import riders

SITES = ("blocks.*.hook_resid_post", "blocks.2.attn.*", "hook_embed", "blocks.1.mlp.hook_post")


def count_hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.hf.modules() for kind in kinds)


def logits_of(model):
    with torch.no_grad():
        return model.hf(input_ids=torch.arange(40)[None] * 5 % model.cfg.d_vocab, use_cache=False).logits


def assert_untouched(model, before):
    assert count_hooks(model) == 0
    assert riders.of(model) == ()
    assert torch.equal(logits_of(model), before)


def close(left, right, tolerance=1e-4):
    finite = ~(torch.isneginf(left) & torch.isneginf(right))
    return left.shape == right.shape and bool(torch.allclose(left[finite], right[finite], atol=tolerance, rtol=1e-4))


def turns(count):
    return tuple(f"Turn {i}: say {'word ' * (i % 3 + 1)}" for i in range(count))


async def episode(model, count, *, capture=None, client=None, max_new=6, **settings):
    """Plays a scripted conversation step by step; returns the responses."""
    client = client or sonde.HookedTransformerLLMClient(model, max_new_tokens=max_new, generation_kwargs=settings)
    messages, responses = [], []
    for turn in turns(count):
        messages = [*messages, {"role": "user", "content": turn}]
        if capture is not None:
            capture.start_step()
        response = await client(sonde.LLMRequest(messages=messages))
        if capture is not None:
            capture.end_step()
        responses.append(response)
        messages = [*messages, {"role": "assistant", "content": response.text}]
    return responses


@pytest.fixture(scope="session")
def kit():
    tools = (count_hooks, logits_of, assert_untouched, close, turns, episode)
    return types.SimpleNamespace(SITES=SITES, **{tool.__name__: tool for tool in tools})


@pytest.fixture(scope="session")
def loaded():
    with sonde.load("tiny-gpt2") as model:
        yield model


@pytest.fixture
def model(loaded):
    """With nothing cached, and nothing left behind afterwards."""
    loaded.pool.entries.clear()
    before = logits_of(loaded)
    yield loaded
    assert_untouched(loaded, before)


@pytest.fixture(scope="session")
def llama():
    with sonde.load("tiny-llama") as model:
        yield model
