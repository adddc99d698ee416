"""A sweep finds in resumed runs what one full forward pass per patch finds, and leaves the model as it was."""

import itertools
import json

import numpy as np
import pytest
import torch

import sonde
from sonde.analysis.tracing import pairs, resuming, sweeps
from sonde.core import errors

SITES = {"attention_heads": "attn.hook_z", "attention": "hook_attn_out", "mlp": "hook_mlp_out"}
COMPONENTS = ("residual_stream", *SITES)
FAMILIES = ("tiny-llama", "tiny-gpt2", "tiny-neox", "tiny-gemma")
TOLERANCE = 1e-4


def make_pair(length, seed=0, different=(1,)):
    rng = np.random.default_rng(seed)
    clean = rng.integers(4, 250, length)
    other = clean.copy()
    for position in different:
        other[position] = (clean[position] + 7) % 250
    return pairs.TracePair(tuple(clean.tolist()), tuple(other.tolist()), 3, 9, name=f"pair {seed}")


def places(model, component):
    n_layers = model.cfg.n_layers
    if component in SITES:
        return [f"blocks.{layer}.{SITES[component]}" for layer in range(n_layers)]
    return [f"blocks.{layer}.hook_resid_pre" for layer in range(n_layers)] + [f"blocks.{n_layers - 1}.hook_resid_post"]


def reference(model, pair, component, cells):
    """Logits at the final position, from one full forward pass with a Patch per cell (layer, position, head)."""
    names = places(model, component)
    _, cache = model.run_with_cache(list(pair.counterfactual), names)
    found = []
    for layer, position, head in cells:
        heads = (head,) if component == "attention_heads" else None
        patch = sonde.Patch(site=names[layer], values=cache[names[layer]], positions=(position,), heads=heads)
        found.append(model.run_with_hooks(list(pair.clean), [patch])[0, -1])
    return torch.stack(found)


def every_cell(model, component, positions):
    heads = range(model.cfg.n_heads) if component == "attention_heads" else [0]
    return list(itertools.product(range(len(places(model, component))), positions, heads))


def assert_equals_reference(model, pair, component, grid, cells):
    expected = reference(model, pair, component, cells)
    at = [(layer, grid.positions.index(position), head) for layer, position, head in cells]
    at = at if component == "attention_heads" else [cell[:2] for cell in at]
    for got, token in ((grid.answer_logit, pair.answer), (grid.counterfactual_logit, pair.counterfactual_answer)):
        np.testing.assert_allclose([got[cell] for cell in at], expected[:, token].numpy(), atol=TOLERANCE)
    best = expected.topk(2).values
    clear = (best[:, 0] - best[:, 1] > TOLERANCE).numpy()
    tops = np.array([grid.top[cell] for cell in at])
    assert (tops == expected.argmax(dim=-1).numpy())[clear].all()
    assert np.ptp(expected[:, pair.answer].numpy()) > 0.01, "the patches do something"


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    with sonde.load(request.param) as model:
        yield model


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_cell_equals_a_full_forward_pass_with_the_patch(family, kit, component):
    before = kit.logits_of(family)
    three = [make_pair(3), make_pair(5, seed=1), make_pair(3, seed=2, different=(0, 2))]
    found = sweeps.sweep(family, three, component)
    kit.assert_untouched(family, before)
    assert found.layers == tuple(range(len(places(family, component))))
    assert_equals_reference(family, three[2], component, found.grids[2], every_cell(family, component, range(3)))
    some = every_cell(family, component, range(5))[::7]
    assert_equals_reference(family, three[1], component, found.grids[1], some)


@pytest.mark.parametrize("component", COMPONENTS)
def test_positions_patched_together_equal_a_full_forward_pass_with_one_patch_of_all(family, component):
    two = [make_pair(6, different=(1, 3)), make_pair(6, seed=1, different=(0, 2, 4))]
    groups = [[(1, 3)], [(4, 0), (2, 3, 5), (2,)]]
    settings = sweeps.Settings(positions=[[3], [2]], together=groups)
    found = sweeps.sweep(family, two, component, settings=settings)
    assert [grid.positions for grid in found.grids] == [(3, -1), (2, -1, -2, -3)]
    for pair, grid, own in zip(two, found.grids, groups, strict=True):
        for column, group in enumerate(own, start=1):
            assert_group_equals_reference(family, pair, component, grid, column, group)
    grid = found.grids[1]
    np.testing.assert_array_equal(grid.answer_logit[:, 0], grid.answer_logit[:, 3])  # a group of one is that one


def assert_group_equals_reference(model, pair, component, grid, column, group):
    names = places(model, component)
    _, cache = model.run_with_cache(list(pair.counterfactual), names)
    for layer, head in itertools.product(range(len(names)), range(model.cfg.n_heads)):
        if head and component != "attention_heads":
            continue
        heads = (head,) if component == "attention_heads" else None
        patch = sonde.Patch(site=names[layer], values=cache[names[layer]], positions=group, heads=heads)
        expected = model.run_with_hooks(list(pair.clean), [patch])[0, -1]
        at = (layer, column, head) if heads else (layer, column)
        assert grid.answer_logit[at] == pytest.approx(float(expected[pair.answer]), abs=TOLERANCE)
        assert grid.counterfactual_logit[at] == pytest.approx(
            float(expected[pair.counterfactual_answer]), abs=TOLERANCE
        )


@pytest.mark.parametrize(
    ("together", "message"),
    [
        ([], "groups of 0 pairs"),
        ([[()]], "at least one position"),
        ([[(9,)]], "no position in pair 0 9: expected 0 to 4"),
    ],
)
def test_groups_that_do_not_fit_are_refused(family, together, message):
    with pytest.raises(errors.RequestError, match=message):
        sweeps.sweep(family, [make_pair(5)], "mlp", settings=sweeps.Settings(together=together))


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-gemma3", "tiny-mistral"])
def test_layers_with_a_sliding_window_see_the_same_keys_as_in_a_full_run(name):
    with sonde.load(name) as model:
        pair = make_pair(model.cfg.sliding_window + 6)
        chosen = (1, 4, len(pair) - 2)
        (grid,) = sweeps.sweep(model, [pair], "attention", settings=sweeps.Settings(positions=chosen)).grids
        assert_equals_reference(model, pair, "attention", grid, every_cell(model, "attention", chosen))


@pytest.mark.parametrize("component", ["residual_stream", "attention_heads"])
def test_neither_batch_size_nor_skipping_equal_cells_changes_a_result(llama, component):
    both = [make_pair(4, seed=seed, different=(2,)) for seed in range(3)]
    some = {"layers": (0, 1, 3)}
    plain = sweeps.sweep(llama, both, component, settings=sweeps.Settings(**some))
    for rows, skip in ((3, True), (7, False)):
        settings = sweeps.Settings(batch_rows=rows, skip_equal=skip, **some)
        for one, other in zip(plain.grids, sweeps.sweep(llama, both, component, settings=settings).grids, strict=True):
            np.testing.assert_allclose(one.answer_logit, other.answer_logit, atol=TOLERANCE)
            np.testing.assert_allclose(one.counterfactual_logit, other.counterfactual_logit, atol=TOLERANCE)


def test_cells_before_the_first_difference_have_the_very_bits_of_the_clean_run(llama):
    (grid,) = sweeps.sweep(llama, [make_pair(6, different=(4,))], "residual_stream").grids
    assert (grid.answer_logit[:, :4] == grid.clean.answer_logit).all()
    assert (grid.answer_logit[:-1, 4] != grid.clean.answer_logit).all()


def test_the_stream_after_the_last_layer_matters_at_the_final_position_only(llama):
    pair = make_pair(5)
    (grid,) = sweeps.sweep(llama, [pair], "residual_stream", settings=sweeps.Settings(layers=[4])).grids
    assert (grid.answer_logit[0, :-1] == grid.clean.answer_logit).all()
    assert grid.answer_logit[0, -1] == pytest.approx(grid.counterfactual.answer_logit, abs=TOLERANCE)
    assert grid.recovery[0, -1] == pytest.approx(1, abs=1e-3)


def test_some_layers_positions_and_heads_are_those_of_the_whole_sweep(llama):
    two = [make_pair(6), make_pair(5, seed=1)]
    whole = sweeps.sweep(llama, two, "attention_heads")
    settings = sweeps.Settings(layers=[2, 0], heads=[3, 1], positions=[[5, 1], [4]])
    part = sweeps.sweep(llama, two, "attention_heads", settings=settings)
    assert (part.layers, part.heads) == ((0, 2), (1, 3))
    assert [grid.positions for grid in part.grids] == [(1, 5), (4,)]
    for one, all_of in zip(part.grids, whole.grids, strict=True):
        expected = all_of.answer_logit[np.ix_((0, 2), one.positions, (1, 3))]
        np.testing.assert_allclose(one.answer_logit, expected, atol=TOLERANCE)


def test_progress_counts_every_cell_to_the_end(llama):
    told = []
    sweeps.sweep(llama, [make_pair(5), make_pair(4)], "mlp", on_progress=lambda *one: told.append(one))
    assert told[-1] == ("mlp", 36, 36)
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})


def test_a_sweep_survives_json(llama):
    found = sweeps.sweep(llama, [make_pair(4), make_pair(5)], "attention_heads")
    again = sweeps.Sweep.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert again.to_json() == found.to_json()
    assert again.pairs == found.pairs
    np.testing.assert_array_equal(again.grids[1].success, found.grids[1].success)


def test_interventions_in_force_around_a_sweep_do_not_reach_it(llama):
    pair = make_pair(5)
    plain = sweeps.sweep(llama, [pair], "mlp").grids[0].answer_logit
    with sonde.InterventionManager(llama) as manager:
        manager.add_intervention("blocks.1.hook_resid_post", sonde.Zero())
        inside = sweeps.sweep(llama, [pair], "mlp").grids[0].answer_logit
    np.testing.assert_array_equal(inside, plain)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_sweep_that_is_broken_off_leaves_the_model_as_it_was(model, error):
    def stop(*told):
        raise error

    with pytest.raises(error):
        sweeps.sweep(model, [make_pair(5)], "residual_stream", on_progress=stop)
    engine = resuming.Engine(model)
    base = engine.base(torch.tensor([[5, 6, 7]]))
    wrong = resuming.Join(torch.tensor([0]), torch.zeros(1, 1, 1 + model.cfg.d_model))
    with pytest.raises(RuntimeError):
        engine.resume(base, 1, {2: wrong})
    with pytest.raises(RuntimeError):
        engine.through(base, 1, "blocks.1.hook_attn_out", torch.zeros(1, 3, 1 + model.cfg.d_model))
    # The `model` fixture now checks hooks, layers and logits.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": [5]}, "no layer 5: expected 0 to 4"),
        ({"positions": [6]}, "no position in pair 0 6: expected 0 to 5"),
        ({"positions": [[1], [2]]}, "positions for 2 pairs were given, and there are 1"),
        ({"heads": [0]}, "residual_stream has no heads"),
        ({"batch_rows": 0}, "batch_rows must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(llama, settings, message):
    with pytest.raises(errors.RequestError, match=message):
        sweeps.sweep(llama, [make_pair(6)], "residual_stream", settings=sweeps.Settings(**settings))


def test_a_token_that_the_model_does_not_have_is_refused(llama):
    with pytest.raises(errors.RequestError, match="token 999 in a pair is none of the model's"):
        sweeps.sweep(llama, [pairs.TracePair((1, 2), (1, 3), 999, 4)], "mlp")


@pytest.mark.parametrize(
    ("clean", "other", "message"),
    [
        ((1, 2), (1, 2, 3), "2 clean and 3 counterfactual tokens"),
        ((), (), "empty input"),
        ((1, 2), (1, 2), "the same: there is nothing to trace"),
    ],
)
def test_inputs_that_do_not_correspond_are_refused(clean, other, message):
    with pytest.raises(errors.RequestError, match=message):
        pairs.TracePair(clean, other, 1, 2)
