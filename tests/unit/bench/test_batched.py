"""Many models at once are the same models, one by one."""

import dataclasses

import pytest
import torch

from sonde.bench import attending, batched
from sonde.core import errors

SHAPE = batched.Shape(
    n_layers=2, n_heads=4, d_model=12, d_head=3, d_mlp=20, d_vocab=7, d_out=5, n_positions=6, causal=True
)
SHAPES = [
    SHAPE,
    dataclasses.replace(SHAPE, causal=False),
    dataclasses.replace(SHAPE, d_head=17, activation="relu"),
    dataclasses.replace(SHAPE, d_head=17, causal=False, activation="gelu"),
    dataclasses.replace(SHAPE, d_head=1, n_positions=20),
]


def tokens(shape, rows=3, seed=0):
    return torch.randint(shape.d_vocab, (rows, shape.n_positions), generator=torch.Generator().manual_seed(seed))


def drawn(shape, seeds=(0, 1, 2)):
    weights = batched.draw(shape, seeds)
    return weights + 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(9))  # biases too


@pytest.mark.parametrize("shape", SHAPES)
def test_each_model_gives_the_logits_of_its_plain_twin(shape):
    weights = drawn(shape)
    found = batched.run(shape, weights, tokens(shape)).logits
    for row, logits in zip(weights, found, strict=True):
        with torch.no_grad():
            expected = batched.to_plain(shape, row)(tokens(shape)).logits
        assert torch.allclose(logits[0], expected, atol=1e-4)


def test_a_model_goes_to_transformers_and_back():
    weights = drawn(SHAPE, [4])
    hf = batched.to_plain(SHAPE, weights[0])
    assert batched.Shape.of(hf.config) == SHAPE
    assert torch.equal(batched.from_plain(hf), weights)


def test_a_seed_gives_the_same_weights_whoever_is_beside_it():
    assert torch.equal(batched.draw(SHAPE, [3, 5])[1], batched.draw(SHAPE, [5])[0])


def test_weights_of_another_shape_are_refused_by_the_parameter_that_differs():
    other = dataclasses.replace(SHAPE, d_out=6)
    with pytest.raises(errors.RequestError, match=r"lm_head.bias is \(5,\), expected \(6,\)"):
        batched.joined(other, batched.named(SHAPE, drawn(SHAPE)[0]))


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_swapped_nodes_write_what_they_wrote_there_and_other_rows_keep_theirs(shape):
    weights, base, other = drawn(shape), tokens(shape), tokens(shape, seed=1)
    there = batched.run(shape, weights, other).kept
    nodes = torch.zeros(3, 2, 3, 10, dtype=torch.bool)
    nodes[1, 1, 0, 5 + 2] = nodes[0, 1, 2, 4] = True  # a1.h2 of the second model, m0 of the first
    plain = batched.run(shape, weights, base, groups=2)
    found = batched.run(shape, weights, base, swap=batched.Swap(there, batched.Masks(nodes)), groups=2)
    changed = (plain.logits != found.logits).any(-1).any(-1)
    assert changed.nonzero().tolist() == [[0, 1, 2], [1, 1, 0]]
    assert torch.equal(found.kept.heads[1][1, 2, :, :, 3], there.heads[1][1, 2, :, :, 0])
    assert torch.equal(found.kept.mlps[0][0, :, :, 5], there.mlps[0][0, :, :, 2])


def test_swapping_every_node_for_what_it_writes_anyway_changes_nothing():
    weights, base = drawn(SHAPE), tokens(SHAPE)
    there = batched.run(SHAPE, weights, base)
    swap = batched.Swap(there.kept, batched.Masks(torch.ones(3, 1, 3, 10, dtype=torch.bool)))
    assert torch.allclose(batched.run(SHAPE, weights, base, swap=swap).logits, there.logits, atol=1e-6)


@pytest.mark.parametrize("counted", [slice(None), slice(1, None), [2, 5]])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("detached", [False, True])
def test_both_runs_in_one_have_the_logits_and_gradients_of_one_after_the_other(shape, counted, detached):
    base, other = tokens(shape), tokens(shape, seed=1)
    nodes = torch.rand(3, 4, 3, 10, generator=torch.Generator().manual_seed(2)) < 0.3
    one, two = drawn(shape).requires_grad_(), drawn(shape).requires_grad_()
    there = batched.run(shape, one.detach() if detached else one, other).kept
    expected = batched.run(shape, one, base, swap=batched.Swap(there, batched.Masks(nodes)), groups=4).logits[
        :, :, :, counted
    ]
    found = batched.exchanged(shape, two, (base, other), batched.Masks(nodes), counted=counted, detached=detached)
    assert torch.allclose(found, expected, atol=1e-5)
    by = torch.randn(found.shape, generator=torch.Generator().manual_seed(3))
    for logits in (expected, found):
        (logits * by).sum().backward()
    assert one.grad is not None
    assert torch.allclose(one.grad, two.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize(("here", "there"), [(4, 6), (6, 4)])
def test_between_inputs_of_different_lengths_nodes_are_swapped_where_both_have_a_position(shape, here, there):
    weights, base, other = drawn(shape), tokens(shape)[:, :here], tokens(shape, seed=1)[:, :there]
    nodes = torch.rand(3, 2, 3, 10, generator=torch.Generator().manual_seed(2)) < 0.3
    earlier, plain = batched.run(shape, weights, other).kept, batched.run(shape, weights, base, groups=2).kept
    found = batched.run(shape, weights, base, swap=batched.Swap(earlier, batched.Masks(nodes)), groups=2)
    shared = min(here, there)
    for mask, mine, theirs in zip(
        nodes.unflatten(-1, (2, 5))[..., 4].unbind(-1), found.kept.mlps, earlier.mlps, strict=True
    ):
        wrote = mine.unflatten(-1, (2, 3)).permute(0, 3, 4, 2, 1)[mask]
        taken = theirs.permute(0, 3, 2, 1)[:, None].expand(-1, 2, -1, -1, -1)[mask]
        assert torch.equal(wrote[:, :shared], taken[:, :shared])
        assert wrote.shape[1] == here
    first = plain.mlps[0].unflatten(-1, (2, 3))[:, :, shared:]
    mlp_alone = torch.zeros_like(nodes)
    mlp_alone[..., 4] = True
    kept = batched.run(shape, weights, base, swap=batched.Swap(earlier, batched.Masks(mlp_alone)), groups=2).kept.mlps[
        0
    ]
    assert torch.equal(kept.unflatten(-1, (2, 3))[:, :, shared:], first)


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize("lengths", [(4, 6), (6, 4), (6, 6)])
def test_exchanged_and_silent_nodes_are_those_of_one_run_after_the_other(lengths, detached):
    (here, there), shape = lengths, SHAPES[1]
    base, other = tokens(shape)[:, :here], tokens(shape, seed=1)[:, :there]
    nodes, silent = (torch.rand(3, 4, 3, 10, generator=torch.Generator().manual_seed(seed)) < 0.2 for seed in (2, 3))
    one, two = drawn(shape).requires_grad_(), drawn(shape).requires_grad_()
    earlier = batched.run(shape, one.detach() if detached else one, other).kept
    expected = batched.run(shape, one, base, swap=batched.Swap(earlier, batched.Masks(nodes, silent)), groups=4).logits[
        :, :, :, 1:
    ]
    found = batched.exchanged(
        shape, two, (base, other), batched.Masks(nodes, silent), counted=slice(1, None), detached=detached
    )
    assert torch.allclose(found, expected, atol=1e-5)
    (expected.square().sum() + found.square().sum()).backward()
    assert torch.allclose(one.grad, two.grad, rtol=1e-4, atol=1e-4)


def test_a_silent_node_writes_nothing():
    weights, base = drawn(SHAPE), tokens(SHAPE)
    there, silent = batched.run(SHAPE, weights, base).kept, torch.zeros(3, 1, 3, 10, dtype=torch.bool)
    silent[..., 1] = silent[..., 9] = True  # a0.h1 and m1
    found = batched.run(
        SHAPE, weights, base, swap=batched.Swap(there, batched.Masks(torch.zeros_like(silent), silent))
    ).kept
    assert not bool(found.heads[0][:, 1].any())
    assert not bool(found.mlps[1].any())
    assert torch.equal(found.heads[0][:, 0], there.heads[0][:, 0])


def test_a_models_gradient_does_not_depend_on_the_others():
    base = tokens(SHAPE)
    together = drawn(SHAPE).requires_grad_()
    batched.run(SHAPE, together, base).logits.square().sum().backward()
    alone = together.detach()[1:2].clone().requires_grad_()
    batched.run(SHAPE, alone, base).logits.square().sum().backward()
    assert torch.allclose(together.grad[1], alone.grad[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_narrow_attention_has_the_values_and_gradients_of_torchs_kernel(causal):
    parts = [torch.randn(2, 3, 4, 5, 6, requires_grad=True) for _ in range(3)]
    query, key, value = (part.permute(0, 4, 1, 3, 2) for part in parts)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal).permute(
        0, 2, 4, 3, 1
    )
    found, weight = attending.narrow(*parts, [at + 1 if causal else 5 for at in range(5)]), torch.randn(2, 3, 4, 5, 6)
    assert torch.allclose(found, expected, atol=1e-5)
    for mine, theirs in zip(
        *(torch.autograd.grad((one * weight).sum(), parts) for one in (found, expected)), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-5)
