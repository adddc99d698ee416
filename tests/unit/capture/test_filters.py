"""What is kept: Sites, positions, type, place."""

import pytest
import torch

import sonde
from sonde.core import errors

RESID = "blocks.3.hook_resid_post"
PATTERN = "blocks.2.attn.hook_pattern"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (RESID, [RESID]),
        ("blocks.*.hook_resid_post", [f"blocks.{layer}.hook_resid_post" for layer in range(6)]),
        ([RESID, "blocks.1.attn.hook_?"], ["blocks.1.attn.hook_q", "blocks.1.attn.hook_k", "blocks.1.attn.hook_v"]),
        (lambda name: "embed" in name and "un" not in name, ["hook_embed", "hook_pos_embed"]),
    ],
)
def test_sites_are_chosen_by_name_wildcard_list_or_predicate(model, wanted, expected):
    capture = sonde.ActivationCapture(model, wanted)
    assert set(expected) <= set(capture.sites)
    assert len(capture.sites) in (len(expected), len(expected) + 2)
    with capture:
        capture.start_step()
        model.generate("abc", max_new_tokens=2)
        capture.end_step()
    assert capture.get_trajectory().site_names == sorted(capture.sites)


def test_without_a_filter_all_but_the_costly_sites_are_chosen(model):
    capture = sonde.ActivationCapture(model)
    left_out = set(model.site_names) - set(capture.sites)
    assert left_out == {name for name in model.site_names if name.endswith(("hook_result", "hook_attn_scores"))}


def test_a_filter_that_chooses_nothing_is_an_error_when_the_capture_is_made(model):
    with pytest.raises(errors.SiteError, match="did you mean"):
        sonde.ActivationCapture(model, "blocks.3.hook_resid_pots")
    with pytest.raises(errors.SiteError, match="it has layers 0 to 5"):
        sonde.ActivationCapture(model, "blocks.9.hook_resid_post")
    with pytest.raises(errors.SiteError, match="chose none"):
        sonde.ActivationCapture(model, lambda name: False)
    with pytest.raises(errors.CaptureError, match="known: all, prompt, last_prompt, generated, last"):
        sonde.ActivationCapture(model, RESID, positions="first")


def _expected(word, prompt, length):
    return {
        "all": list(range(length)),
        "prompt": list(range(prompt)),
        "last_prompt": [prompt - 1],
        "generated": list(range(prompt, length)),
        "last": [length - 1],
    }.get(word) or sorted(p if p >= 0 else prompt + p for p in word)


@pytest.mark.parametrize(
    "word", ["all", "prompt", "last_prompt", "generated", "last", (0, 5), (3, -1), (-4, -2), (2, 7, -3)], ids=str
)
async def test_each_step_keeps_exactly_the_positions_of_its_own_that_were_asked_for(model, kit, word):
    sites = [RESID, PATTERN, "blocks.2.attn.hook_attn_scores"]
    with sonde.ActivationCapture(model, sites, positions=word) as capture:
        responses = await kit.episode(model, 4, capture=capture, temperature=1.0)
    trajectory = capture.get_trajectory()
    for step, response in enumerate(responses):
        context = response.prompt_token_ids + response.token_ids[:-1]
        expected = _expected(word, len(response.prompt_token_ids), len(context))
        assert trajectory.positions(step).tolist() == expected
        assert trajectory.tokens(step).tolist() == [context[position] for position in expected]
        _, cache = model.run_with_cache(torch.tensor(context), sites)
        assert kit.close(trajectory.get_activation(step, RESID), cache[RESID][:, expected])
        for name in sites[1:]:
            value = trajectory.get_activation(step, name)
            assert kit.close(value, cache[name][:, :, expected, : max(expected) + 1]), name


async def test_a_position_filter_does_not_change_the_tokens(model, kit):
    plain = await kit.episode(model, 3, temperature=1.0)
    for word in ("last_prompt", (-3,)):
        model.pool.entries.clear()
        with sonde.ActivationCapture(model, RESID, positions=word) as capture:
            watched = await kit.episode(model, 3, capture=capture, temperature=1.0)
        assert [one.token_ids for one in watched] == [one.token_ids for one in plain]


async def test_the_last_prompt_token_of_every_step_stacks(model, kit):
    with sonde.ActivationCapture(model, RESID, positions="last_prompt") as capture:
        await kit.episode(model, 4, capture=capture)
    trajectory = capture.get_trajectory()
    assert torch.cat(trajectory.get_activation_across_trajectory(RESID)).shape == (4, 1, 32)
    assert trajectory.records.count == 4


async def test_an_episode_played_twice_in_one_capture_gives_the_same_twice(model, kit):
    with sonde.ActivationCapture(model, RESID, positions=[-2]) as capture:
        await kit.episode(model, 3, capture=capture)
        await kit.episode(model, 3, capture=capture)
    values = capture.get_trajectory().get_activation_across_trajectory(RESID)
    for first, second in zip(values[:3], values[3:], strict=True):
        assert kit.close(first, second)
        assert first.shape == (1, 1, 32)


async def test_values_are_kept_in_the_type_and_on_the_device_asked_for(model, kit):
    with (
        sonde.ActivationCapture(model, RESID, dtype="float16") as half,
        sonde.ActivationCapture(model, RESID) as own,
    ):
        client = sonde.HookedTransformerLLMClient(model, max_new_tokens=4)
        for capture in (half, own):
            capture.start_step()
        await client(sonde.LLMRequest(messages=[{"role": "user", "content": "hi"}]))
        for capture in (half, own):
            capture.end_step()
    value, exact = (one.get_trajectory().get_activation(0, RESID) for one in (half, own))
    assert (value.dtype, exact.dtype) == (torch.float16, torch.float32)
    assert torch.equal(value, exact.half())
    assert value.device.type == "cpu"
    with sonde.ActivationCapture(model, RESID, device="meta") as elsewhere:
        elsewhere.start_step()
        model.generate("abc", max_new_tokens=1)
        elsewhere.end_step()
    assert elsewhere.get_trajectory().get_activation(0, RESID).device.type == "meta"


@pytest.mark.parametrize(
    ("wrong", "message"), [({"dtype": "int7"}, "floating point"), ({"device": "qpu"}, "cannot be")]
)
def test_a_type_or_device_that_is_none_is_refused_before_anything_runs(model, wrong, message):
    with pytest.raises(sonde.SondeError, match=message):
        sonde.ActivationCapture(model, RESID, **wrong)
