"""Packed weights: the same products, nothing left behind, no stale copy."""

import pytest
import torch
from torch import nn
from transformers.models.llama import modeling_llama

import sonde
from sonde.models import packing

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35]])


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 32, bias=False))


def packed_layers(network):
    return [module for module in network.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 16, 17, 240])
def test_packed_equals_plain_for_any_number_of_rows(network, rows):
    batch = torch.randn(rows, 5, 48)
    with torch.no_grad():
        plain = network(batch)
        with packing.packed(network):
            assert len(packed_layers(network)) == 2
            torch.testing.assert_close(network(batch), plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(48,), (1, 48), (2, 48), (1, 1, 48), (1, 2, 48), (2, 1, 48), (3, 1, 48)])
@pytest.mark.parametrize("out", [96, 7, 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("slow_alone", [True, False])
def test_few_rows_are_the_same_whatever_the_shape(shape, out, bias, slow_alone, monkeypatch):
    monkeypatch.setattr(packing, "_slow_alone", lambda: slow_alone)
    layer, batch = nn.Linear(48, out, bias=bias), torch.randn(shape)
    with torch.no_grad():
        plain = layer(batch)
        with packing.packed(layer):
            found = layer(batch)
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
    assert found.is_contiguous()


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-neox", "tiny-gemma"])
def test_a_model_is_bit_equal_after_the_block_whatever_happened_in_it(name):
    with sonde.load(name) as model:
        before = model.run_with_hooks(TOKENS)
        with model.packed():
            torch.testing.assert_close(model.run_with_hooks(TOKENS), before, atol=1e-4, rtol=1e-4)
        with pytest.raises(RuntimeError, match="stop"), model.packed():
            raise RuntimeError("stop")
        assert not packed_layers(model.hf)
        assert torch.equal(model.run_with_hooks(TOKENS), before)


def test_blocks_nest_and_the_last_one_out_unpacks(network):
    outer, inner = packing.packed(network), packing.packed(network)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert len(packed_layers(network)) == 2
    inner.__exit__(None, None, None)
    assert not packed_layers(network)


@pytest.mark.parametrize("how", ["in place", "another parameter", "another storage"])
@pytest.mark.parametrize("rows", [2, 8])
@pytest.mark.parametrize("slow_alone", [True, False])
def test_a_weight_that_is_changed_inside_the_block_is_noticed(network, how, rows, slow_alone, monkeypatch):
    monkeypatch.setattr(packing, "_slow_alone", lambda: slow_alone)
    batch = torch.randn(rows, 48)
    with torch.no_grad(), packing.packed(network):
        before = network(batch)
        if how == "in place":
            network[0].weight.mul_(2)
        elif how == "another parameter":
            network[0].weight = nn.Parameter(network[0].weight * 2)
        else:
            network[0].weight.data = network[0].weight.data * 2
        changed = network(batch)
    assert not torch.allclose(changed, before)
    with torch.no_grad():
        torch.testing.assert_close(changed, network(batch), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(48,), (1, 1, 48), (3, 7, 48)])
def test_a_norm_is_the_same_in_fewer_operations(shape, scale):
    norm, batch = modeling_llama.LlamaRMSNorm(48, eps=1e-5), scale * torch.randn(shape)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        plain = norm(batch)
        with packing.packed(norm):
            assert packed_layers(norm) == [norm]
            torch.testing.assert_close(norm(batch), plain, atol=1e-6, rtol=1e-6)
            assert torch.equal(norm(torch.zeros(shape)), torch.zeros(shape))
            norm.weight.mul_(2)
            torch.testing.assert_close(norm(batch), 2 * plain, atol=1e-6, rtol=1e-6)
    with packing.packed(norm):
        norm(batch).sum().backward()
    assert norm.weight.grad is not None


def test_gradients_flow_inside_the_block(network):
    with packing.packed(network):
        network(torch.randn(2, 48)).sum().backward()
    assert network[0].weight.grad is not None


def test_weights_beyond_the_limit_and_other_kinds_are_left_alone(network, monkeypatch):
    with packing.packed(network.to(torch.bfloat16)):
        assert not packed_layers(network)
    monkeypatch.setattr(packing, "LIMIT", 100)
    with packing.packed(network.to(torch.float32)):
        assert not packed_layers(network)
