"""Recording over an episode, in steps."""

import asyncio
import gc
import weakref

import pytest
import torch

import sonde
from sonde.core import errors
from sonde.models import riders

RESID = "blocks.3.hook_resid_post"


async def test_each_step_holds_its_whole_context_as_a_fresh_run_would_give_it(model, kit):
    sites = [*kit.SITES, "unembed.hook_out"]
    with sonde.ActivationCapture(model, sites) as capture:
        responses = await kit.episode(model, 6, capture=capture, temperature=1.0)
    trajectory = capture.get_trajectory()
    assert len(trajectory) == 6
    for step, response in enumerate(responses):
        context = response.prompt_token_ids + response.token_ids[:-1]
        assert tuple(trajectory.tokens(step).tolist()) == context
        assert trajectory.positions(step).tolist() == list(range(len(context)))
        assert trajectory.prompt_length(step) == len(response.prompt_token_ids)
        assert trajectory.generated(step) == response.token_ids
        _, cache = model.run_with_cache(torch.tensor(context), sites)
        for name, value in cache.items():
            assert kit.close(trajectory.get_activation(step, name), value), (step, name)
    assert {"blocks.2.attn.hook_pattern", "blocks.2.attn.hook_attn_scores", "blocks.2.attn.hook_result"} <= set(cache)


async def test_a_token_is_stored_once(model, kit):
    with sonde.ActivationCapture(model, RESID) as capture:
        responses = await kit.episode(model, 6, capture=capture)
    encoded = sum(response.usage.encoded_tokens for response in responses)
    last = responses[-1]
    assert capture.get_trajectory().records.count == encoded
    assert encoded == len(last.prompt_token_ids) + len(last.token_ids) - 1


async def test_a_step_may_hold_several_requests(model, kit):
    with sonde.ActivationCapture(model, RESID) as capture:
        capture.start_step()
        first = model.generate("abc", max_new_tokens=2)
        second = model.generate("defgh", max_new_tokens=2)
        capture.end_step()
    trajectory = capture.get_trajectory()
    assert trajectory.get_activation(0, RESID).shape == (1, 6, 32)
    assert trajectory.get_activation(0, RESID, call=0).shape == (1, 4, 32)
    assert trajectory.generated(0, call=0) == first.tokens
    assert trajectory.generated(0) == second.tokens
    with pytest.raises(errors.CaptureError, match="no call 7 in step 0: it has 2"):
        trajectory.get_activation(0, RESID, call=7)


async def test_metadata_belongs_to_the_open_step_or_else_to_the_last(model):
    class Odd:
        def __repr__(self):
            return "<odd>"

    with sonde.ActivationCapture(model, RESID) as capture:
        with pytest.raises(errors.CaptureError, match="start_step"):
            capture.record_step_metadata({"too": "early"})
        for step in range(2):
            capture.start_step()
            capture.record_step_metadata({"during": step})
            model.generate("abc", max_new_tokens=1)
            capture.end_step()
            capture.record_step_metadata({"after": step, "odd": Odd()})
    notes = capture.get_trajectory().step_metadata
    assert [(one["during"], one["after"]) for one in notes] == [(0, 0), (1, 1)]
    assert isinstance(notes[0]["odd"], Odd)


async def test_a_noted_response_is_itself_until_it_is_saved_and_then_its_fields(model, tmp_path):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=3)
    asked = sonde.LLMRequest(messages=[{"role": "user", "content": "one"}])
    with sonde.ActivationCapture(model, RESID, folder=tmp_path / "there") as capture:
        capture.start_step()
        response = await client(asked)
        capture.record_step_metadata({"action": "ls", 0: "x", "response": response})
        capture.end_step()
        capture.record_step_metadata({"request": asked, 1: "late"})
    trajectory = capture.get_trajectory()
    assert trajectory.step_metadata[0]["response"] is response
    assert trajectory.step_metadata[0]["request"] is asked
    trajectory.save(tmp_path / "saved")
    for folder in ("there", "saved"):
        (note,) = sonde.TrajectoryActivations.load(tmp_path / folder).step_metadata
        assert (note["action"], note["0"], note["1"]) == ("ls", "x", "late")
        assert note["response"]["data"] == [{"content": response.text}]
        assert note["response"]["token_ids"] == list(response.token_ids)
        assert note["response"]["usage"]["prompt_tokens"] == response.usage.prompt_tokens
        assert note["request"]["messages"] == [{"role": "user", "content": "one"}]


def test_names_of_notes_are_strings_at_once_so_that_a_later_note_replaces_an_earlier_one(model, tmp_path):
    with sonde.ActivationCapture(model, RESID, folder=tmp_path / "episode") as capture:
        capture.start_step()
        capture.record_step_metadata({0: "a"})
        model.generate("abc", max_new_tokens=1)
        capture.end_step()
        capture.record_step_metadata({"0": "b"})
    assert capture.get_trajectory().step_metadata == [{"0": "b"}]
    assert sonde.TrajectoryActivations.load(tmp_path / "episode").step_metadata == [{"0": "b"}]


async def test_step_activations_reads_like_a_list_of_caches(model, kit):
    with sonde.ActivationCapture(model, [RESID, "hook_embed"]) as capture:
        await kit.episode(model, 2, capture=capture)
        assert len(capture.step_activations) == 2
    assert set(capture.step_activations[1]) == {RESID, "hook_embed"}
    assert torch.equal(capture.step_activations[1][RESID], capture.get_trajectory().get_activation(1, RESID))


async def test_after_clear_the_whole_context_is_recorded_anew(model, kit):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=4)
    with sonde.ActivationCapture(model, RESID) as capture:
        capture.start_step()
        first = await client(sonde.LLMRequest(messages=[{"role": "user", "content": "one"}]))
        capture.end_step()
        old = capture.get_trajectory()
        capture.clear()
        assert capture.step_activations == []
        capture.start_step()
        messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": first.text}]
        second = await client(sonde.LLMRequest(messages=[*messages, {"role": "user", "content": "two"}]))
        capture.end_step()
    new = capture.get_trajectory()
    assert len(old) == len(new) == 1
    context = second.prompt_token_ids + second.token_ids[:-1]
    _, cache = model.run_with_cache(torch.tensor(context), RESID)
    assert kit.close(new.get_activation(0, RESID), cache[RESID])
    assert old.get_activation(0, RESID).shape[1] == len(first.prompt_token_ids) + 3


def test_use_out_of_order_is_an_error_that_says_what_to_do(model):
    with sonde.ActivationCapture(model, RESID) as capture:
        with pytest.raises(errors.CaptureError, match=r"call start_step\(\) before"):
            capture.end_step()
        capture.start_step()
        with pytest.raises(errors.CaptureError, match=r"step 0 is still open: call end_step\(\) first"):
            capture.start_step()
        with pytest.raises(errors.CaptureError, match=r"end_step\(\) before clear"):
            capture.clear()
        capture.abandon_step()
        model.generate("abc", max_new_tokens=1)
        with pytest.raises(errors.CaptureError, match=r"1 requests were made outside of steps.*automatic"):
            capture.get_trajectory()
        capture.start_step()
        capture.end_step()
    trajectory = capture.get_trajectory()
    with pytest.raises(errors.CaptureError, match="nothing was recorded in step 0"):
        trajectory.get_activation(0, RESID)
    with pytest.raises(errors.CaptureError, match="no step 5: the trajectory has steps 0 to 0"):
        trajectory.get_activation(5, RESID)


async def test_a_site_that_was_not_recorded_is_named_with_its_neighbour(model, kit):
    with sonde.ActivationCapture(model, RESID) as capture:
        await kit.episode(model, 1, capture=capture)
    with pytest.raises(errors.CaptureError, match=r"did you mean 'blocks\.3\.hook_resid_post'"):
        capture.get_trajectory().get_activation(0, "blocks.2.hook_resid_post")


async def test_recording_changes_no_token_and_no_logprob(model, kit):
    plain = await kit.episode(model, 3, temperature=1.0)
    model.pool.entries.clear()
    with sonde.ActivationCapture(model, lambda name: True) as capture:
        watched = await kit.episode(model, 3, capture=capture, temperature=1.0)
    assert [one.token_ids for one in plain] == [one.token_ids for one in watched]
    assert [one.logprobs for one in plain] == [one.logprobs for one in watched]


async def test_recorded_tensors_are_copies(model, kit):
    with sonde.ActivationCapture(model, RESID) as capture:
        await kit.episode(model, 1, capture=capture)
    trajectory = capture.get_trajectory()
    kept = trajectory.get_activation(0, RESID)
    before = kept.clone()
    kept.zero_()
    model.run_with_hooks("abc", [(RESID, lambda value, hook: value.zero_())])
    assert torch.equal(trajectory.get_activation(0, RESID), before)


async def test_nested_captures_both_record_and_the_inner_one_leaves_the_outer_alone(model, kit):
    with sonde.ActivationCapture(model, RESID) as outer:
        client = sonde.HookedTransformerLLMClient(model, max_new_tokens=3)
        outer.start_step()
        with sonde.ActivationCapture(model, "hook_embed") as inner:
            inner.start_step()
            response = await client(sonde.LLMRequest(messages=[{"role": "user", "content": "hi"}]))
            inner.end_step()
        outer.end_step()
        outer.start_step()
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": response.text}]
        again = await client(sonde.LLMRequest(messages=[*messages, {"role": "user", "content": "more"}]))
        outer.end_step()
    assert len(inner.get_trajectory()) == 1
    assert inner.get_trajectory().site_names == ["hook_embed"]
    assert outer.get_trajectory().site_names == [RESID]
    length = len(again.prompt_token_ids) + len(again.token_ids) - 1
    assert outer.get_trajectory().get_activation(1, RESID).shape[1] == length


async def test_a_capture_entered_twice_records_once_and_until_the_outer_block_ends(model, kit):
    capture = sonde.ActivationCapture(model, RESID)
    with capture:
        with capture:
            await kit.episode(model, 1, capture=capture)
        await kit.episode(model, 1, capture=capture)
    assert [len(step.calls) for step in capture.get_trajectory().steps] == [1, 1]


async def test_tasks_with_captures_and_managers_of_their_own_do_not_mix(model, kit):
    async def alone(number, *, ablate):
        manager = sonde.InterventionManager(model)
        if ablate:
            manager.add_intervention("blocks.1.hook_mlp_out", sonde.create_zero_ablation_hook())
        with manager, sonde.ActivationCapture(model, [RESID, "blocks.1.hook_mlp_out"]) as capture:
            client = sonde.HookedTransformerLLMClient(model, max_new_tokens=5)
            responses = await kit.episode(model, 3, capture=capture, client=client, temperature=1.0, seed=number)
        return capture.get_trajectory(), responses

    together = await asyncio.gather(*(alone(n, ablate=n % 2 == 0) for n in range(4)))
    for number, (trajectory, responses) in enumerate(together):
        model.pool.entries.clear()
        expected, tokens = await alone(number, ablate=number % 2 == 0)
        assert [one.token_ids for one in responses] == [one.token_ids for one in tokens]
        assert len(trajectory) == 3
        for step in range(3):
            value = trajectory.get_activation(step, "blocks.1.hook_mlp_out")
            assert bool((value == 0).all()) == (number % 2 == 0)
            assert kit.close(trajectory.get_activation(step, RESID), expected.get_activation(step, RESID))


async def test_a_task_that_outlives_the_block_is_free_of_it(model, kit):
    go = asyncio.Event()

    async def late():
        await go.wait()
        return await kit.episode(model, 2)

    clean = await kit.episode(model, 2)
    with sonde.automatic_activation_capture(model, RESID) as capture, sonde.InterventionManager(model) as manager:
        manager.add_intervention(RESID, sonde.create_zero_ablation_hook())
        task = asyncio.create_task(late())
        await asyncio.sleep(0)
    go.set()
    assert [one.token_ids for one in await task] == [one.token_ids for one in clean]
    assert len(capture.get_trajectory()) == 0


async def test_an_exception_in_the_block_leaves_no_hook_and_no_rider_and_keeps_finished_steps(model, kit):
    before = kit.logits_of(model)
    capture = sonde.ActivationCapture(model)

    async def fail():
        with capture:
            await kit.episode(model, 1, capture=capture)
            capture.start_step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    kit.assert_untouched(model, before)
    assert len(capture.get_trajectory()) == 1


def test_an_exception_inside_the_forward_pass_leaves_nothing_either(model, kit):
    def fail(value, hook):
        raise ZeroDivisionError

    before = kit.logits_of(model)
    for run in (lambda: model.generate("abc", max_new_tokens=2), lambda: model.hf(torch.tensor([[1, 2]]))):
        manager = sonde.InterventionManager(model).add_intervention(RESID, fail)
        with pytest.raises(ZeroDivisionError), sonde.automatic_activation_capture(model), manager:
            run()
        kit.assert_untouched(model, before)


async def test_a_cancelled_request_that_ends_late_does_not_land_in_the_next_step(model, kit):
    client = sonde.HookedTransformerLLMClient(model)
    with sonde.ActivationCapture(model, RESID) as capture:
        capture.start_step()
        task = asyncio.create_task(
            client(sonde.LLMRequest(messages=[{"role": "user", "content": "one"}], max_output_tokens=400))
        )
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        capture.abandon_step()
        responses = await kit.episode(model, 2, capture=capture)
    trajectory = capture.get_trajectory()
    assert [len(step.calls) for step in trajectory.steps] == [1, 1]
    assert [trajectory.generated(step) for step in range(2)] == [one.token_ids for one in responses]


async def test_a_forgotten_capture_is_freed_with_all_it_recorded(model, kit):
    with sonde.ActivationCapture(model, RESID) as capture:
        await kit.episode(model, 1, capture=capture)
    await kit.episode(model, 1)
    gone = weakref.ref(capture)
    del capture
    gc.collect()
    assert gone() is None
    assert riders.of(model) == ()
