"""The edge-level forward pass: every family, against the plain model and against a naive loop over edges."""

import numpy as np
import pytest
import torch

import sonde
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import running, running_cuts, running_memory
from sonde.core import errors, interventions

FAMILIES = (
    "tiny-plain", "tiny-gpt2", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-neox", "tiny-gemma",
    "tiny-gemma3",
)  # fmt: skip
WIDTH, COUNT = 20, 3  # longer than the window of the families that have one


def made(width=WIDTH, count=COUNT, **more):
    ids = torch.randint(0, 250, (2, count, width))
    options = {"answers": torch.randint(0, 250, (count, 1)), "wrongs": torch.randint(0, 250, (count, 1))}
    return circuits_pairs.Pairs.of_tensors(ids[0], ids[1], **options, **more)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    with sonde.load(request.param) as loaded:
        yield loaded


def naive(model, runner, pairs, mask):
    """The final stream under a mask, destination by destination, by whole runs of the model with interventions.

    All heads of a layer share one input in such a run, so each head's query, key or value is cut out of a run of its own.
    """
    graph, cfg, taps = runner.graph, model.cfg, model.parts.taps
    clean, corrupt = (trace_of(model, ids) for ids in (pairs.clean, pairs.corrupt))
    live = [clean[0]]
    constants = torch.zeros(cfg.d_model)

    def read(j):
        total = constants.clone()
        for i in range(graph.reads[j]):
            total = total + (live[i] if mask[i, j] else corrupt[i])
        return total

    for layer in range(cfg.n_layers):
        at, step = f"blocks.{layer}", cfg.n_heads + 2 * cfg.n_key_value_heads + 1
        wanted = {}
        for place in range(step - 1):
            kind, head = ("q", place) if place < cfg.n_heads else (
                "kv"[(place - cfg.n_heads) // cfg.n_key_value_heads], (place - cfg.n_heads) % cfg.n_key_value_heads
            )  # fmt: skip
            _, cache = run_layer(model, layer, read(layer * step + place), [f"{at}.attn.hook_{kind}"], {})
            wanted.setdefault(f"{at}.attn.hook_{kind}", {})[head] = cache[f"{at}.attn.hook_{kind}"][:, :, head]
        kinds = [f"{at}.attn.hook_result", f"{at}.hook_attn_out"]
        early = read(layer * step + step - 1) if graph.parallel else None
        _, cache = run_layer(model, layer, live[0], kinds, wanted)
        results, added = cache[kinds[0]], cache[kinds[1]]
        bias = taps[f"{at}.attn.hook_z"].module.bias
        whole = results.sum(dim=2) + (0 if bias is None else bias)
        norm = model.parts.blocks[layer].get_submodule(model.parts.family.attn_out)
        if (
            model.parts.family.attn_out != model.parts.family.attn
        ):  # a linear map at this sum: take it apart by its Jacobian
            scale = (whole.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt() * (1 + norm.weight)
            results = results * scale[:, :, None]
            assert torch.allclose(results.sum(dim=2), added, atol=1e-4)
        live += list(results.unbind(dim=2))
        constants = constants if bias is None else constants + bias
        entered = read(layer * step + step - 1) if early is None else early
        block, row = model.parts.blocks[layer], model.parts.family
        out = block.mlp(block.get_submodule(row.mlp_norm)(entered))
        live.append(out if row.mlp_out == "mlp" else block.get_submodule(row.mlp_out)(out))
    return read(len(graph.destinations) - 1)


def trace_of(model, ids):
    """What every source writes, by the Sites of the plain run."""
    cfg = model.cfg
    names = ("hook_embed", "hook_pos_embed", "attn.hook_result", "hook_mlp_out", "hook_attn_out")
    _, cache = model.run_with_cache(ids, lambda name: name.endswith(names))
    found = [cache["hook_embed"] + cache.get("hook_pos_embed", torch.zeros(()))]
    for layer in range(cfg.n_layers):
        result = cache[f"blocks.{layer}.attn.hook_result"]
        if model.parts.family.attn_out != model.parts.family.attn:
            norm = model.parts.blocks[layer].get_submodule(model.parts.family.attn_out)
            whole = result.sum(dim=2)
            result = result * ((whole.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt() * (1 + norm.weight))[:, :, None]
        found += [*result.unbind(dim=2), cache[f"blocks.{layer}.hook_mlp_out"]]
    return found


def run_layer(model, layer, stream, names, given):
    """A whole run in which the input of one layer is replaced, and heads of its queries, keys and values."""
    at = f"blocks.{layer}"

    def put(name, heads):
        def change(value, hook):
            value = value.clone()
            for head, one in heads.items():
                value[:, :, head] = one
            return value

        return interventions.Opaque(fn=change, site=name)

    specs = [interventions.Opaque(fn=lambda value, hook: stream.expand_as(value).clone(), site=f"{at}.hook_resid_pre")]
    specs += [put(name, heads) for name, heads in given.items()]
    ids = torch.zeros(stream.shape[:2], dtype=torch.long)
    return model.run_with_cache(ids, names, interventions=specs)


def test_with_every_edge_the_logits_are_the_plain_ones_and_with_none_those_of_the_corrupt_run(model):
    pairs = made()
    runner = running.Runner(model, pairs, "logit_diff")
    with torch.no_grad():
        clean, corrupt = (pairs.reading(model.hf(input_ids=ids).logits) for ids in (pairs.clean, pairs.corrupt))
    assert torch.allclose(runner.logits(runner.graph.allowed), clean, atol=1e-4)
    assert torch.allclose(runner.logits(np.zeros_like(runner.graph.allowed)), corrupt, atol=1e-4)
    assert torch.allclose(runner.logits(), clean, atol=1e-5)


def test_gradients_of_a_mask_equal_those_taken_at_the_destinations(model):
    runner = running.Runner(model, made(), "logit_diff", batch_size=2)
    mask = torch.ones(runner.graph.allowed.shape, requires_grad=True)
    (expected,) = torch.autograd.grad(runner.loss_of(mask), mask)
    found = torch.zeros_like(expected)
    for batch in runner.batches:
        gradients = runner.destination_gradients(batch)
        found += gradients.dot(gradients.trace.sources - runner.ablated(batch))
    allowed = torch.from_numpy(runner.graph.allowed)
    assert torch.allclose(found, expected * allowed, atol=1e-4)
    assert all(weight.requires_grad for weight in model.hf.parameters())


def test_cutting_edges_one_after_the_other_equals_running_the_mask(model):
    runner = running.Runner(model, made(), "kl")
    mask = runner.graph.allowed & (np.random.default_rng(0).random(runner.graph.allowed.shape) < 0.6)
    state = running_cuts.State(runner, runner.batches[0], mask)
    edges = np.argwhere(mask)
    for i, j in edges[np.random.default_rng(1).permutation(len(edges))[:12]].tolist():
        cut = state.cut(i, j)
        mask[i, j] = False
        expected = runner.metric_of(mask)
        assert torch.allclose(state.metric if cut.metric is None else cut.metric, expected, atol=1e-4)
        state.keep(i, j, cut)
    before = state.metric
    state.rebuild()
    assert torch.allclose(state.metric, before, atol=1e-5)


def test_a_random_mask_equals_a_naive_loop_over_edges(model):
    pairs = made(width=17, count=2)
    runner = running.Runner(model, pairs, "kl")
    mask = runner.graph.allowed & (np.random.default_rng(3).random(runner.graph.allowed.shape) < 0.5)
    with torch.no_grad():
        final = naive(model, runner, pairs, mask)
        expected = pairs.reading(runner.network.unembed(final))
    assert torch.allclose(runner.logits(mask), expected, atol=2e-4)


@pytest.fixture(scope="module")
def plain():
    with sonde.load("tiny-plain") as loaded:
        yield loaded


def test_several_masks_at_once_equal_one_at_a_time(plain):
    runner = running.Runner(plain, made(), "kl", batch_size=2)
    masks = torch.rand(3, *runner.graph.allowed.shape)
    together = runner.loss_of(masks)
    assert torch.allclose(together, torch.stack([runner.loss_of(one) for one in masks]), atol=1e-5)


def test_pairs_of_different_lengths_run_as_they_do_alone(plain):
    rows = [circuits_pairs.Pair(list(range(n)), list(range(9, 9 + n)), (1,), (2,)) for n in (4, 9, 6)]
    runner = running.Runner(plain, circuits_pairs.Pairs.of(rows), "logit_diff")
    mask = runner.graph.allowed & (np.random.default_rng(0).random(runner.graph.allowed.shape) < 0.5)
    alone = [running.Runner(plain, circuits_pairs.Pairs.of([row]), "logit_diff").metric_of(mask) for row in rows]
    assert torch.allclose(runner.metric_of(mask), torch.cat(alone), atol=1e-4)


@pytest.mark.parametrize("other", [12, 28])
def test_corrupt_inputs_may_be_shorter_or_longer_and_corrupt_the_positions_that_both_have(plain, other):
    clean, corrupt = made(), made(width=other)
    pairs = circuits_pairs.Pairs.of_tensors(clean.clean, corrupt.corrupt, answers=clean.answers, wrongs=clean.wrongs)
    runner = running.Runner(plain, pairs, "logit_diff")
    (batch,), shared = runner.batches, min(WIDTH, other)
    own, theirs = trace_of(plain, pairs.clean), trace_of(plain, pairs.corrupt)
    found = runner.ablated(batch)
    assert found.shape[2] == WIDTH
    assert torch.allclose(found[:, :, :shared], torch.stack(list(theirs))[:, :, :shared], atol=1e-5)
    assert torch.allclose(found[:, :, shared:], torch.stack(list(own))[:, :, shared:], atol=1e-5)
    with torch.no_grad():
        expected = plain.hf(input_ids=pairs.clean if other < WIDTH else pairs.corrupt).logits[:, WIDTH - 1]
    assert torch.allclose(runner.logits(np.zeros_like(runner.graph.allowed))[:, 0], expected, atol=1e-4)


def test_pairs_with_padding_all_have_one_length_on_both_sides():
    with pytest.raises(errors.RequestError, match="only pairs without padding may differ in length"):
        circuits_pairs.Pairs(
            torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long), ends=torch.tensor([4, 3]),
            answers=torch.zeros(2, 0, dtype=torch.long), wrongs=torch.zeros(2, 0, dtype=torch.long),
        )  # fmt: skip


def test_zero_and_mean_ablation_carry_nothing_and_the_mean_of_the_corrupt_runs(plain):
    pairs = made()
    zero = running.Runner(plain, pairs, "kl", ablation="zero")
    assert not zero.ablated(zero.batches[0]).any()
    whole = running.Runner(plain, pairs, "kl")
    mean = running.Runner(plain, pairs, "kl", ablation="mean", batch_size=2)
    expected = whole.contributions(whole.batches[0], "corrupt").mean(dim=1)
    assert torch.allclose(mean.ablated(mean.batches[1])[:, 0], expected, atol=1e-5)
    none = np.zeros_like(zero.graph.allowed)
    assert torch.isfinite(mean.logits(none)).all()
    assert (zero.logits(none)[0] - zero.logits(none)[1]).abs().max() < 1e-6


def test_corrupt_positions_are_part_of_what_the_input_writes(plain):
    ids = torch.randint(0, 250, (2, 6))
    positions = torch.stack([torch.randperm(6), torch.randperm(6)])
    pairs = circuits_pairs.Pairs.of_tensors(ids, ids, positions=positions)
    runner = running.Runner(plain, pairs, "kl")
    ones = torch.ones_like(ids)
    with torch.no_grad():
        expected = plain.hf(input_ids=ids, attention_mask=ones, position_ids=positions).logits[:, -1:]
    assert torch.allclose(runner.logits(np.zeros_like(runner.graph.allowed)), expected, atol=1e-4)
    with sonde.load("tiny-llama") as llama, pytest.raises(errors.RequestError, match="rotary"):
        running.Runner(llama, pairs, "kl")


def test_requests_that_make_no_sense_are_refused(plain, monkeypatch):
    pairs = made()
    with pytest.raises(errors.RequestError, match="did you mean 'resample'"):
        running.Runner(plain, pairs, "kl", ablation="resampel")
    with pytest.raises(errors.RequestError, match="vocabulary"):
        running.Runner(plain, circuits_pairs.Pairs.of_tensors(pairs.clean, pairs.corrupt + 100), "kl")
    runner = running.Runner(plain, pairs, "kl")
    with pytest.raises(errors.RequestError, match="sources x destinations"):
        runner.logits(np.ones((2, 2)))
    with pytest.raises(errors.AnalysisError, match="same on the clean and the corrupt"):
        running.Runner(plain, circuits_pairs.Pairs.of_tensors(pairs.clean, pairs.clean), "kl").check_moves()
    monkeypatch.setattr(running_memory, "available", lambda device: 1000)
    with pytest.raises(errors.RequestError, match=r"GiB are free: reduce batch_size"):
        running.Runner(plain, pairs, "kl")


def test_interpolated_inputs_and_replaced_outputs_are_what_they_say(plain):
    runner = running.Runner(plain, made(), "logit_diff")
    (batch,) = runner.batches
    corrupt = runner.ablated(batch)
    at_corrupt = runner.destination_gradients(batch, share=0.0)
    assert torch.allclose(at_corrupt.trace.sources, corrupt, atol=1e-4)
    replaced = runner.destination_gradients(batch, outputs={3: corrupt[3]})
    mask = runner.graph.allowed
    mask[3] = False
    assert torch.allclose(replaced.loss, runner.loss_of(mask), atol=1e-4)
