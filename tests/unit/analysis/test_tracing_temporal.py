"""The influence of a step is what a full forward pass with its inside replaced gives."""

import json

import numpy as np
import pytest
import torch

import sonde
from sonde.analysis.tracing import episode, stretches, temporal
from sonde.core import errors

TOKENS = tuple((31 * i * i + 7 * i) % 250 for i in range(20))
STEPS = ((0, 4, 7), (7, 9, 12), (12, 14, 14), (14, 17, 20))


def by_hand(model, held, step, later):
    """KL and drop from full forward passes."""
    clean, patched = (torch.log_softmax(model.run_with_hooks(list(TOKENS), hooks)[0], -1) for hooks in ([], held))
    _, generated, end = later
    at = slice(generated - 1, end - 1)
    said = torch.tensor(TOKENS[generated:end])[:, None]
    kl = (clean[at].exp() * (clean[at] - patched[at])).sum(-1).mean()
    return float(kl), float((clean[at] - patched[at]).gather(1, said).mean())


def patches(model, replacement, step, layers):
    names = [f"blocks.{layer}.hook_resid_pre" for layer in layers]
    source = replacement if isinstance(replacement, tuple) else TOKENS
    _, cache = model.run_with_cache(list(source), names)
    for name in names:
        values = cache[name][0]
        if replacement == "mean":
            values = values.mean(dim=0).expand_as(values)
        elif replacement == "zero":
            values = torch.zeros_like(values)
        yield sonde.Patch(site=name, values=values, positions=tuple(range(step[0], step[2])))


OTHER = tuple(token + 1 for token in TOKENS)


@pytest.mark.parametrize(
    ("name", "replacement", "layer"),
    [("tiny-gpt2", "mean", 2), ("tiny-gemma", "zero", (1, 3)), ("tiny-llama", OTHER, (0, 2))],
)
def test_the_map_equals_full_forward_passes(name, replacement, layer, kit):
    with sonde.load(name) as model:
        before = kit.logits_of(model)
        found = temporal.influence(model, TOKENS, STEPS, layer=layer, replacement=replacement)
        kit.assert_untouched(model, before)
        for i, step in enumerate(STEPS):
            held = list(patches(model, replacement, step, (layer,) if isinstance(layer, int) else layer))
            for j, later in enumerate(STEPS):
                if j <= i or later[1] == later[2]:
                    assert np.isnan(found.values[i, j])
                    assert np.isnan(found.drop[i, j])
                else:
                    expected = by_hand(model, held, step, later)
                    assert (found.values[i, j], found.drop[i, j]) == pytest.approx(expected, abs=1e-4)
                    assert found.values[i, j] > 1e-3
        assert json.loads(json.dumps(found.to_json(), allow_nan=False))["values"][1][0] is None


def test_values_of_ones_own_replace_like_a_mean(llama):
    _, cache = llama.run_with_cache(list(TOKENS), "blocks.1.hook_resid_pre")
    mean = cache["blocks.1.hook_resid_pre"][0].mean(dim=0)
    by_name = temporal.influence(llama, TOKENS, STEPS, layer=1)
    for values in (mean, mean.expand(len(TOKENS), -1)):
        found = temporal.influence(llama, TOKENS, STEPS, layer=1, replacement=values)
        assert found.replacement == "values"
        np.testing.assert_allclose(found.values, by_name.values, atol=1e-5)


async def test_a_trajectory_brings_its_own_steps(model, kit):
    with sonde.ActivationCapture(model, hook_filter=["blocks.1.hook_resid_post"]) as capture:
        await kit.episode(model, 3, capture=capture, max_new=4)
    trajectory = capture.get_trajectory()
    told = []
    found = temporal.influence_of_trajectory(model, trajectory, layer=2, on_progress=lambda *one: told.append(one))
    assert found.values.shape == (3, 3)
    assert [step.generated for step in found.steps] == [trajectory.prompt_length(step) for step in range(3)]
    assert np.isfinite(found.values[np.triu_indices(3, 1)]).all()
    assert (found.values[np.triu_indices(3, 1)] > 0).all()
    assert told[-1] == ("influence", 3, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 9}, r"layers \(9,\) do not exist: expected some of 0 to 3"),
        ({"steps": ((0, 5, 8), (6, 9, 10))}, "step 1 at .* is out of order"),
        ({"replacement": (1, 2, 3)}, "the other episode has 3 tokens and this one 20"),
        ({"replacement": torch.zeros(5)}, r"values of shape \(5,\) do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(llama, changes, message):
    asked = {"steps": STEPS, "layer": 1, **changes}
    with pytest.raises(errors.RequestError, match=message):
        temporal.influence(llama, TOKENS, asked.pop("steps"), **asked)


@pytest.mark.parametrize("layer", [2, (1, 3)])
def test_the_control_is_what_full_forward_passes_with_other_stretches_give(llama, layer):
    found = temporal.influence(llama, TOKENS, STEPS, layer=layer, controls=2)
    plain = temporal.influence(llama, TOKENS, STEPS, layer=layer)
    np.testing.assert_array_equal(found.values, plain.values)
    assert plain.control is None
    step, later = (
        1,
        STEPS[3],
    )  # of 5 tokens, from 7 to 11: two stretches fit before it (from 1, from 2), one behind it (12)
    layers = (layer,) if isinstance(layer, int) else layer
    by_start = {
        at: by_hand(llama, list(patches(llama, "mean", (at, at, at + 5), layers)), None, later)[0] for at in (1, 2, 12)
    }
    assert found.control.n[step, 3] == 2
    ways = [np.mean([by_start[a], by_start[b]]) for a, b in ((1, 2), (1, 12), (2, 12))]
    assert min(abs(way - found.control.mean[step, 3]) for way in ways) < 1e-4
    assert found.control.low[step, 3] <= found.control.mean[step, 3] <= found.control.high[step, 3]


def test_a_step_beside_which_nothing_as_long_was_said_has_no_control(llama):
    found = temporal.influence(llama, TOKENS, STEPS, layer=1, controls=3)
    assert (found.control.n[0] == 0).all()
    assert np.isnan(found.control.mean[0]).all()
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["control"]["mean"][0] == [None] * 4
    assert told["control"]["n"][1][3] == 3


def test_putting_the_own_values_back_changes_nothing(llama):
    assert temporal.influence(llama, TOKENS, STEPS, layer=(1, 2)).sham < 1e-5
    assert temporal.influence(llama, TOKENS[:7], STEPS[:1], layer=1).sham is None


def test_stretches_fit_beside_the_step_before_the_reply_and_not_on_the_first_token():
    rng = np.random.default_rng(0)
    assert stretches.beside(7, 12, before=17, count=9, rng=rng) == [1, 2, 12]
    assert stretches.beside(0, 7, before=13, count=9, rng=rng) == []
    assert stretches.beside(0, 4, before=9, count=9, rng=rng) == [4, 5]
    assert len(stretches.beside(50, 60, before=90, count=4, rng=rng)) == 4


def test_the_page_of_an_episode_says_what_the_controls_say(llama):
    found = temporal.influence(llama, TOKENS, STEPS, layer=1, controls=3)
    told = " ".join(episode.sentences(found))
    assert "own values back" in told
    assert ("has no control" in told) or ("elsewhere" in told)
    table = episode.table(found)
    assert table.columns[-3:] == ("KL elsewhere", "stretches", "of them below")
    by_cell = {row[:2]: row[4:] for row in table.rows}
    assert by_cell[0, 1] == (None, 0, None)
    assert by_cell[1, 3][1] == 3
    assert episode.table(temporal.influence(llama, TOKENS, STEPS, layer=1)).columns[-1] == "drop"
