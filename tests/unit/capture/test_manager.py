"""Interventions in force over episodes."""

import contextlib
import json

import numpy as np
import pytest
import torch

import sonde
from sonde.core import errors, interventions

RESID = "blocks.3.hook_resid_post"


class Log:
    """A plain hook that notes at which step it ran at each forward pass of a prompt."""

    def __init__(self):
        self.steps = []

    def __call__(self, value, hook):
        if value.shape[1] > 1:
            self.steps.append(hook.step)
        return value


def requests_of(model, count, **options):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=3, **options)
    messages = []

    async def ask(text):
        messages.append({"role": "user", "content": text})
        response = await client(sonde.LLMRequest(messages=list(messages)))
        messages.append({"role": "assistant", "content": response.text})
        return response

    return ask


def zeroing(model, steps, **options):
    manager = sonde.InterventionManager(model, **options)
    return manager.add_intervention(RESID, sonde.create_zero_ablation_hook(), apply_at_steps=steps)


async def zeroed(model, manager, capture_steps, increment=None):
    """Plays a conversation; says in which requests the residual stream was zero."""
    found = []
    ask = requests_of(model, capture_steps)
    for number in range(capture_steps):
        with sonde.automatic_activation_capture(model, RESID, positions="last_prompt") as capture:
            await ask(f"turn {number}")
        found.append(bool((capture.get_trajectory().get_activation(0, RESID) == 0).all()))
        if increment is not None:
            increment(number)
    return [number for number, zero in enumerate(found) if zero]


async def test_steps_are_counted_per_episode_whether_or_not_increment_step_is_called(model):
    for called in (False, True):
        manager = zeroing(model, [1, 3])
        increment = (lambda number, counter=manager: counter.increment_step()) if called else None
        with manager:
            for _ in range(2):  # the second episode starts at 0 again
                assert await zeroed(model, manager, 5, increment) == [1, 3]
        with manager:
            assert await zeroed(model, manager, 3, increment) == [1]
            assert manager.current_step == (3 if called else 2)


async def test_an_agent_with_two_requests_a_step_counts_by_increment_step_alone(model):
    manager = zeroing(model, [0, 2], count_requests=False)
    with manager:
        for _ in range(2):
            increment = lambda number: manager.increment_step() if number % 2 else None  # noqa: E731
            assert await zeroed(model, manager, 6, increment) == [0, 1, 4, 5]


async def test_after_the_first_increment_the_requests_of_a_step_share_its_number(model):
    manager = zeroing(model, [1])
    with manager:
        increment = lambda number: manager.increment_step() if number in (0, 2, 4) else None  # noqa: E731
        assert await zeroed(model, manager, 5, increment) == [1, 2]


async def test_two_conversations_of_one_agent_step_together(model):
    manager = zeroing(model, [1])
    planner, actor = requests_of(model, 3), requests_of(model, 3)
    with manager:
        for number in range(3):
            with sonde.automatic_activation_capture(model, RESID, positions="last_prompt") as capture:
                await planner(f"plan {number}")
                await actor(f"act {number}")
                manager.increment_step()
            for value in capture.get_trajectory().get_activation_across_trajectory(RESID):
                assert bool((value == 0).all()) == (number == 1)


async def test_a_plain_function_learns_step_and_positions_and_refuses_to_be_stored(model):
    log = Log()
    manager = sonde.InterventionManager(model)
    manager.add_intervention("blocks.*.hook_mlp_out", log, "watch", apply_at_steps=[0, 2])
    ask = requests_of(model, 3)
    with manager:
        for number in range(3):
            await ask(f"turn {number}")
    assert set(log.steps) == {0, 2}
    with pytest.raises(errors.OpaqueError, match="cannot be stored"):
        manager.to_json()
    assert "Opaque" in manager.summary()


def test_the_summary_has_a_line_for_each(model):
    manager = sonde.InterventionManager(model)
    assert manager.summary() == "no interventions"
    manager.add_intervention(RESID, sonde.create_zero_ablation_hook(positions=[1]), "blind", apply_at_steps=[5])
    manager.add_intervention("blocks.0.attn.hook_z", sonde.Scale(factor=2.0, heads=(1,)))
    assert manager.summary().splitlines() == [
        "0. blind: Zero at blocks.3.hook_resid_post (positions=(1,), steps=(5,))",
        "1. Scale at blocks.0.attn.hook_z (heads=(1,), factor=2.0)",
    ]
    manager.clear()
    assert manager.summary() == "no interventions"


def test_a_manager_goes_through_json_and_back(model):
    manager = sonde.InterventionManager(model)
    manager.add_intervention(RESID, sonde.Patch(values=np.ones((4, 32), dtype="f4")), "patch", apply_at_steps=[2])
    manager.add_intervention("blocks.*.hook_mlp_out", sonde.Steer(direction=np.arange(32.0), strength=3.0))
    manager.add_intervention(
        "blocks.1.attn.hook_attn_scores", sonde.create_attention_knockout_hook([3], [0, 1], heads=[2])
    )
    manager.add_intervention(hook_fn=sonde.LayerOrder(order=(0, 2, 1, 3)))
    data = json.loads(json.dumps(manager.to_json()))
    again = sonde.InterventionManager(model).add_json(data)
    assert [one.spec.digest for one in again.added] == [one.spec.digest for one in manager.added]
    assert [one.description for one in again.added] == [one.description for one in manager.added]
    read = [interventions.from_json(entry["intervention"]) for entry in data]
    assert [spec.digest for spec in read] == [one.spec.digest for one in manager.added]


@pytest.mark.parametrize("data", ["x", {"a": 1}, [{"kind": "Zero"}], [None]], ids=str)
def test_what_no_manager_wrote_is_refused_and_nothing_is_added(model, data):
    manager = sonde.InterventionManager(model)
    good = {"description": "", "intervention": interventions.Zero(site="blocks.0.hook_resid_post").to_json()}
    with pytest.raises(sonde.SondeError, match="as to_json writes"):
        manager.add_json(data)
    with pytest.raises(sonde.SondeError, match="unknown intervention kind"):
        manager.add_json([good, {"intervention": {"kind": "Explode"}}])
    assert not manager.added


def test_what_does_not_fit_is_refused_when_it_is_added(model):
    manager = sonde.InterventionManager(model)
    with pytest.raises(errors.SiteError, match="layers 0 to 5"):
        manager.add_intervention("blocks.9.hook_resid_post", sonde.create_zero_ablation_hook())
    with pytest.raises(errors.InterventionError, match="no head axis"):
        manager.add_intervention(RESID, sonde.create_zero_ablation_hook(heads=[0]))
    with pytest.raises(errors.InterventionError, match="heads 0 to 3"):
        manager.add_intervention("blocks.0.attn.hook_z", sonde.create_zero_ablation_hook(heads=[4]))
    with pytest.raises(errors.InterventionError, match="expected an intervention or a function, got int"):
        manager.add_intervention(RESID, 3)
    with pytest.raises(errors.InterventionError, match="names no site"):
        manager.add_intervention(hook_fn=sonde.create_zero_ablation_hook())
    with pytest.raises(errors.InterventionError, match="expected shape"):
        manager.add_intervention(RESID, sonde.create_path_patching_hook(torch.zeros(1, 4, 31)))
    assert manager.added == []


def test_it_acts_on_bare_forward_passes_and_bare_generate(model):
    tokens = torch.randint(0, 256, (2, 6))
    steer = sonde.Steer(site=RESID, direction=np.linspace(-3, 3, 32), positions=(2, 7))
    with torch.no_grad():
        clean = model.hf(tokens).logits
    with sonde.InterventionManager(model).add_intervention(hook_fn=steer), torch.no_grad():
        changed = model.hf(tokens).logits
        out = model.hf.generate(
            tokens, attention_mask=torch.ones_like(tokens), min_new_tokens=4, max_new_tokens=4, do_sample=False
        )
    assert torch.equal(changed[:, :2], clean[:, :2])
    assert not torch.equal(changed[:, 2], clean[:, 2])
    for width in range(6, 10):
        held = steer if width > 7 else sonde.Steer(site=RESID, direction=steer.direction, positions=(2,))
        logits = model.run_with_hooks(out[:, :width], [held])
        assert torch.equal(logits[:, -1].argmax(-1), out[:, width])


def test_bare_forward_passes_count_steps_by_increment_step(model):
    tokens = torch.randint(0, 256, (1, 6))
    manager = zeroing(model, [1])
    with torch.no_grad():
        clean = model.hf(tokens).logits
        with manager:
            changed = []
            for _ in range(3):
                changed.append(not torch.equal(model.hf(tokens).logits, clean))
                manager.increment_step()
    assert changed == [False, True, False]


def test_managers_nest_and_the_same_one_twice_acts_once(model):
    tokens = torch.randint(0, 256, (1, 6))
    add = lambda strength: sonde.Steer(site=RESID, direction=np.ones(32), strength=strength)  # noqa: E731
    one, two = (sonde.InterventionManager(model).add_intervention(hook_fn=add(s)) for s in (1.0, 2.0))

    def stream():
        return model.run_with_cache(tokens, RESID)[1][RESID]

    clean = stream()
    with one:
        with two:
            assert torch.allclose(stream(), clean + 3)
        with one:
            assert torch.allclose(stream(), clean + 1)
        assert torch.allclose(stream(), clean + 1)
    assert torch.equal(stream(), clean)


async def test_the_model_is_as_before_afterwards_whatever_happened(model, kit):
    before = kit.logits_of(model)
    clean = await kit.episode(model, 2)
    manager = sonde.InterventionManager(model)
    manager.add_intervention("blocks.*.attn.hook_pattern", sonde.create_attention_knockout_hook(range(3, 9), [0, 1]))
    manager.add_intervention(hook_fn=sonde.LayerOrder(order=(0, 2, 1, 3, 3)))

    async def fail():
        with manager:
            changed = await kit.episode(model, 2)
            assert [one.logprobs for one in changed] != [one.logprobs for one in clean]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    kit.assert_untouched(model, before)
    again = await kit.episode(model, 2)
    assert [one.token_ids for one in again] == [one.token_ids for one in clean]


async def test_what_persists_keeps_its_place_among_interventions_that_do_not_commute(model, kit):
    """The same list given to a client and to a manager: at step 1 the patch comes before what step 0 left behind."""
    held = [
        sonde.Patch(site=RESID, values=np.ones(32), steps=(1,)),
        sonde.Scale(site=RESID, factor=-3.0, steps=(0,), after="persist"),
        sonde.Steer(site=RESID, direction=np.arange(32.0), steps=(0,), after="persist"),
        sonde.Steer(site=RESID, direction=np.arange(32.0), steps=(1,), after="persist"),
    ]
    manager = sonde.InterventionManager(model)
    for spec in held:
        manager.add_intervention(hook_fn=spec, apply_at_steps=spec.steps)
    found = []
    for block, hooks in ((contextlib.nullcontext(), held), (manager, [])):
        model.pool.entries.clear()
        with block, sonde.automatic_activation_capture(model, RESID) as capture:
            ask = requests_of(model, 3, fwd_hooks=hooks)
            found.append(([await ask(f"turn {number}") for number in range(3)], capture.get_trajectory()))
    (own, told), (managed, seen) = found
    for step in range(3):
        assert own[step].token_ids == managed[step].token_ids
        assert kit.close(told.get_activation(step, RESID), seen.get_activation(step, RESID))
    kept = len(own[0].prompt_token_ids) - 1
    once = -3.0 * torch.ones(32) + torch.arange(32.0)
    assert torch.equal(told.get_activation(1, RESID)[0, :kept], (once + torch.arange(32.0)).expand(kept, 32))
