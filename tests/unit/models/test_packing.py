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


class Attention(nn.Module):
    """Three layers that read one input, and one that reads what they make of it."""

    def __init__(self, bias, odd=False):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(48, 96, bias=bias), nn.Linear(48, 32, bias=bias != odd)
        self.v_proj, self.o_proj = nn.Linear(48, 32, bias=bias), nn.Linear(160, 48)

    def forward(self, *inputs):
        return self.o_proj(torch.cat([one(x) for one, x in zip(self.projections, inputs, strict=True)], dim=-1))

    @property
    def projections(self):
        return self.q_proj, self.k_proj, self.v_proj


@pytest.fixture
def products(monkeypatch):
    """The widths of the products that were computed."""
    found, own = [], packing._Product.whole
    monkeypatch.setattr(
        packing._Product, "whole", lambda self, given: found.append(len(self._weight)) or own(self, given)
    )
    return found


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 70])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("slow_alone", [True, False])
def test_layers_that_read_one_input_are_one_product(products, rows, bias, slow_alone, monkeypatch):
    monkeypatch.setattr(packing, "_slow_alone", lambda: slow_alone)
    network, batch = Attention(bias), torch.randn(rows, 1, 48)
    with torch.no_grad():
        plain = network(batch, batch, batch)
        with packing.packed(network):
            torch.testing.assert_close(network(batch, batch, batch), plain, atol=1e-5, rtol=1e-5)
            assert products == [160, 48]
            assert torch.equal(network.q_proj.forward.whole(batch)[..., 96:128], network.k_proj(batch))
            assert network.o_proj.forward.whole(torch.randn(rows, 160)) is None


def test_a_layer_with_a_bias_beside_one_without_is_on_its_own(products):
    network, batch = Attention(bias=True, odd=True), torch.randn(5, 48)
    with torch.no_grad(), packing.packed(network):
        network(batch, batch, batch)
        assert products == [96, 32, 32, 48]
        assert network.q_proj.forward.whole(batch) is None


@pytest.mark.parametrize("how", ["another tensor", "changed in place", "inference"])
@pytest.mark.parametrize("rows", [2, 8])
def test_a_product_is_never_taken_for_that_of_another_input(how, rows):
    network, batch = Attention(bias=False), torch.randn(rows, 48)
    with torch.inference_mode() if how == "inference" else torch.no_grad(), packing.packed(network):
        batch = batch.clone()
        first = network.q_proj(batch)
        other = batch.mul_(2) if how != "another tensor" else batch * 2
        torch.testing.assert_close(network.q_proj(other), 2 * first, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(network.k_proj(other), other @ network.k_proj.weight.T, atol=1e-5, rtol=1e-5)
        other.zero_()
        assert not network.v_proj(other).any()


def test_a_part_that_was_changed_in_place_is_not_given_again():
    network, batch = Attention(bias=False), torch.randn(4, 48)
    with torch.no_grad(), packing.packed(network):
        for layer in network.projections:
            plain = layer(batch).clone()
            layer(batch).zero_()
            assert torch.equal(layer(batch), plain)


@pytest.mark.parametrize("rows", [1, 8])
def test_a_changed_layer_takes_its_group_back_to_plain_kernels(rows):
    network, batch = Attention(bias=True), torch.randn(rows, 48)
    with torch.no_grad(), packing.packed(network):
        network.k_proj.bias.add_(1)
        network.v_proj.weight.mul_(2)
        assert network.q_proj.forward.whole(batch) is None
        found = network(batch, batch, batch)
    with torch.no_grad():
        torch.testing.assert_close(found, network(batch, batch, batch), atol=1e-5, rtol=1e-5)


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
