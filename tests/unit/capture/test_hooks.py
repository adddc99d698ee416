"""The ready-made interventions change the cells they name, and no others."""

import pytest
import torch

import sonde
from sonde.core import errors

RESID = "blocks.2.hook_resid_post"
Z = "blocks.2.attn.hook_z"
TOKENS = torch.arange(9)[None] * 7 + 3


def value_under(model, hook, site, tokens=TOKENS):
    _, clean = model.run_with_cache(tokens, site)
    _, changed = model.run_with_cache(tokens, site, interventions=[hook.at(site)])
    return clean[site], changed[site]


def contexts(model, site, prompt, new=5, **managed):
    """The Site over the whole context of one generation, without and with an intervention."""
    values = []
    for hook in (None, managed["hook"]):
        manager = sonde.InterventionManager(model)
        if hook is not None:
            manager.add_intervention(site, hook)
        with manager, sonde.automatic_activation_capture(model, site) as capture:
            model.generate(prompt, max_new_tokens=new, min_new_tokens=new)
        values.append(capture.get_trajectory().get_activation(0, site)[0])
    return values


def test_zero_ablation_of_positions_zeroes_those_positions_only(model):
    clean, changed = value_under(model, sonde.create_zero_ablation_hook(positions=[1, 4]), RESID)
    expected = clean.clone()
    expected[:, [1, 4]] = 0
    assert torch.equal(changed, expected)


def test_zero_ablation_of_heads_zeroes_heads_not_positions(model):
    for site in (Z, "blocks.2.attn.hook_result", "blocks.2.attn.hook_q"):
        clean, changed = value_under(model, sonde.create_zero_ablation_hook(heads=[0, 3]), site)
        expected = clean.clone()
        expected[:, :, [0, 3]] = 0
        assert torch.equal(changed, expected), site


def test_zero_ablation_of_heads_at_positions_zeroes_the_crossing(model):
    clean, changed = value_under(model, sonde.create_zero_ablation_hook(positions=[2], heads=[1]), Z)
    expected = clean.clone()
    expected[:, 2, 1] = 0
    assert torch.equal(changed, expected)


def test_heads_of_a_pattern_are_its_second_axis(model):
    pattern = "blocks.2.attn.hook_pattern"
    clean, changed = value_under(model, sonde.create_zero_ablation_hook(heads=[2]), pattern)
    expected = clean.clone()
    expected[:, 2] = 0
    assert torch.equal(changed, expected)


def test_heads_where_there_are_none_are_an_error(model):
    with pytest.raises(errors.InterventionError, match="no head axis"):
        sonde.create_zero_ablation_hook(heads=[0]).at(RESID)


def test_positions_are_absolute_also_while_decoding(model):
    clean, changed = contexts(model, RESID, list(range(20, 26)), hook=sonde.create_zero_ablation_hook([2, 7]))
    assert (changed.abs().sum(-1) == 0).nonzero().flatten().tolist() == [2, 7]
    assert torch.equal(changed[:2], clean[:2])


def test_negative_positions_count_back_from_the_end_of_the_prompt(model):
    _, changed = contexts(model, RESID, list(range(20, 26)), hook=sonde.create_zero_ablation_hook([-1]))
    assert (changed.abs().sum(-1) == 0).nonzero().flatten().tolist() == [5]


def test_mean_ablation_with_a_mean_sets_it(model):
    mean = torch.randn(32)
    clean, changed = value_under(model, sonde.create_mean_ablation_hook(mean, positions=[3]), RESID)
    expected = clean.clone()
    expected[:, 3] = mean
    assert torch.equal(changed, expected)


def test_mean_ablation_takes_one_mean_per_position_too(model):
    means = torch.randn(1, 4, 32)
    clean, changed = value_under(model, sonde.create_mean_ablation_hook(means), RESID)
    assert torch.equal(changed[:, :4], means)
    assert torch.equal(changed[:, 4:], clean[:, 4:])


def test_mean_ablation_of_heads_leaves_the_other_heads(model):
    mean = torch.randn(4, 8)
    clean, changed = value_under(model, sonde.create_mean_ablation_hook(mean, heads=[1]), Z)
    assert torch.equal(changed[:, :, 1], mean[1].expand(1, 9, 8))
    assert torch.equal(changed[:, :, [0, 2, 3]], clean[:, :, [0, 2, 3]])


def test_mean_ablation_without_arguments_holds_the_mean_over_the_prompt_while_decoding(model):
    clean, changed = contexts(model, RESID, list(range(20, 26)), hook=sonde.create_mean_ablation_hook())
    mean = clean[:6].mean(0)
    assert torch.allclose(changed, mean.expand_as(changed), atol=1e-5)
    assert not torch.allclose(changed[6:], clean[6:], atol=1e-2)  # not the identity


def test_a_patch_sets_the_other_runs_values_position_by_position(model):
    _, other = model.run_with_cache(TOKENS + 1, RESID)
    clean, changed = value_under(model, sonde.create_path_patching_hook(other[RESID], positions=[5, 6]), RESID)
    expected = clean.clone()
    expected[:, 5:7] = other[RESID][:, 5:7]
    assert torch.equal(changed, expected)


def test_a_patch_shorter_than_the_context_leaves_the_rest_alone_and_a_longer_one_is_cut(model):
    prompt = list(range(20, 26))
    clean, _ = contexts(model, "hook_embed", prompt, hook=sonde.create_zero_ablation_hook([0]))
    for length in (4, 40):
        values = torch.randn(length, 32)
        _, changed = contexts(model, "hook_embed", prompt, hook=sonde.create_path_patching_hook(values))
        end = min(length, len(changed))
        assert torch.equal(changed[:end], values[:end])
        assert length == 40 or not torch.equal(changed[end], values[-1])
    assert torch.equal(clean[:6], model.run_with_cache(prompt, "hook_embed")[1]["hook_embed"][0])


def test_a_patch_of_heads_leaves_the_other_heads(model):
    _, other = model.run_with_cache(TOKENS + 1, Z)
    clean, changed = value_under(model, sonde.create_path_patching_hook(other[Z], positions=[5], heads=[2]), Z)
    expected = clean.clone()
    expected[:, 5, 2] = other[Z][:, 5, 2]
    assert torch.equal(changed, expected)


def test_a_patch_is_a_copy_of_what_it_was_given(model):
    values = torch.randn(1, 9, 32)
    hook = sonde.create_path_patching_hook(values)
    kept = values.clone()
    values.zero_()
    assert torch.equal(value_under(model, hook, RESID)[1], kept)


def test_attention_knockout_forbids_queries_to_see_keys(model):
    hook = sonde.create_attention_knockout_hook(source_positions=[6], target_positions=range(3), heads=[1])
    pattern = "blocks.2.attn.hook_pattern"
    _, clean = model.run_with_cache(TOKENS, [pattern])
    scores = "blocks.2.attn.hook_attn_scores"
    _, changed = model.run_with_cache(TOKENS, [pattern], interventions=[hook.at(scores)])
    expected = clean[pattern].clone()
    expected[:, 1, 6, :3] = 0
    expected[:, 1, 6] /= expected[:, 1, 6].sum(-1, keepdim=True)
    assert torch.allclose(changed[pattern], expected, atol=1e-6)
    kept, zeroed = value_under(model, hook, pattern)
    kept[:, 1, 6, :3] = 0
    assert torch.allclose(zeroed, kept, atol=1e-6)


def test_attention_knockout_elsewhere_is_an_error(model):
    with pytest.raises(errors.InterventionError, match="hook_attn_scores"):
        sonde.create_attention_knockout_hook([1], [0]).at(RESID)


def test_every_hook_takes_where_and_when_as_keywords(model):
    hook = sonde.create_zero_ablation_hook(site=RESID, steps=(3,), phase="prefill", scope="new", after="persist")
    assert (hook.site, hook.steps, hook.phase, hook.scope, hook.after) == (RESID, (3,), "prefill", "new", "persist")


def test_mean_activations_are_the_mean_over_all_tokens(model):
    dataset = ["short", "a longer text", [1, 2, 3]]
    means = sonde.compute_mean_activations(model, dataset, [RESID, Z, "blocks.*.attn.hook_pattern"])
    assert set(means) == {RESID, Z}
    for name, mean in means.items():
        rows = torch.cat([model.run_with_cache(item, name)[1][name][0] for item in dataset])
        assert torch.allclose(mean, rows.mean(0), atol=1e-6)
        assert mean.shape == rows.shape[1:]
    hook = sonde.create_mean_ablation_hook(mean_activation=means[RESID], positions=[1])
    assert torch.equal(value_under(model, hook, RESID)[1][0, 1], means[RESID])


def test_mean_activations_of_nothing_are_an_error(model):
    with pytest.raises(errors.CaptureError, match="the dataset is empty"):
        sonde.compute_mean_activations(model, [], RESID)
    with pytest.raises(errors.SondeError, match="no mean"):
        sonde.compute_mean_activations(model, ["abc"], "blocks.0.attn.hook_pattern")
