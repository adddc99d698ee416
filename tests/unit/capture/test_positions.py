"""Positions belong to a step: where turns were dropped, the same token may stand elsewhere than it stood before."""

import json
import random

import pytest
import torch
import transformers

import sonde
from sonde import store
from sonde.capture import records as capture_records
from sonde.core import errors
from sonde.models import tiny

RESID = "blocks.1.hook_resid_post"
PATTERN = "blocks.1.attn.hook_pattern"
CONTEXT = 192


@pytest.fixture(scope="module")
def small():
    """A model whose context is full after a few turns."""
    sizes = {**tiny._GQA, "max_position_embeddings": CONTEXT, "num_hidden_layers": 2}
    torch.manual_seed(3)
    network = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes))
    with sonde.as_model(network, tokenizer=tiny.tokenizer()) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def nothing_cached(small):
    small.pool.entries.clear()


class Talk:
    """A conversation that outgrows the context, drawn by a seed. Turns begin alike, or are alike."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.system = [{"role": "system", "content": "Be brief."}] * draw.randrange(2)
        self.turns = [draw.choice(["Again?", "Again? And why?", f"Turn {n}: and then?"]) for n in range(6)]
        self.policy = draw.choice(["drop_oldest_turns", "keep_first_and_last"])
        self.options = {"max_new_tokens": draw.choice([4, 9]), "context_policy": self.policy}

    async def play(self, model, *, capture=None, first=0, hooks=(), fresh=False):
        """Plays it, recording from a step on, and with nothing cached from step to step if `fresh`."""
        client = sonde.HookedTransformerLLMClient(model, fwd_hooks=hooks, **self.options)
        messages, responses = list(self.system), []
        for number, turn in enumerate(self.turns):
            messages = [*messages, {"role": "user", "content": turn}]
            if fresh:
                model.pool.entries.clear()
            watched = capture is not None and number >= first
            if watched:
                capture.start_step()
            responses.append(await client(sonde.LLMRequest(messages=messages)))
            if watched:
                capture.end_step()
            messages = [*messages, {"role": "assistant", "content": responses[-1].text}]
        return responses

    def positions(self, model, response):
        """By hand: what stays at the beginning keeps its place, all else is moved by what was dropped."""
        kept = self.system + ([{"role": "user", "content": self.turns[0]}] * (self.policy == "keep_first_and_last"))
        head = len(model.tokenizer.apply_chat_template(kept, tokenize=True, return_dict=False)) if kept else 0
        length = len(response.prompt_token_ids) + len(response.token_ids) - 1
        moved = response.dropped_tokens
        return [slot if not moved or slot < head else slot + moved for slot in range(length)]


@pytest.mark.parametrize("seed", range(12))
async def test_the_same_request_has_the_same_positions_and_activations_whatever_was_recorded_before(small, seed, kit):
    talk = Talk(seed)
    with sonde.ActivationCapture(small, [RESID, PATTERN]) as whole:
        responses = await talk.play(small, capture=whole)
    small.pool.entries.clear()
    last = len(responses) - 1
    with sonde.ActivationCapture(small, [RESID, PATTERN]) as late:
        again = await talk.play(small, capture=late, first=last)
    assert [one.token_ids for one in again] == [one.token_ids for one in responses]
    assert responses[last].dropped_tokens > 0
    both = whole.get_trajectory(), late.get_trajectory()
    for step, response in enumerate(responses):
        assert both[0].positions(step).tolist() == talk.positions(small, response)
    assert torch.equal(both[0].positions(last), both[1].positions(0))
    assert torch.equal(both[0].tokens(last), both[1].tokens(0))
    for site in (RESID, PATTERN):
        assert kit.close(both[0].get_activation(last, site), both[1].get_activation(0, site))


@pytest.mark.parametrize("seed", range(8))
async def test_numbers_choose_by_the_positions_of_the_step(small, seed, kit):
    talk = Talk(seed)
    numbers = (*random.Random(seed).sample(range(260), 40), -1, -5)
    with (
        sonde.ActivationCapture(small, RESID) as whole,
        sonde.ActivationCapture(small, RESID, positions=numbers) as chosen,
    ):
        for capture in (whole, chosen):
            small.pool.entries.clear()
            responses = await talk.play(small, capture=capture)
    for step, response in enumerate(responses):
        where = whole.get_trajectory().positions(step).tolist()
        end = where[len(response.prompt_token_ids) - 1] + 1
        wanted = {number if number >= 0 else end + number for number in numbers}
        slots = [slot for slot, position in enumerate(where) if position in wanted]
        found = chosen.get_trajectory()
        assert found.positions(step).tolist() == [where[slot] for slot in slots]
        assert kit.close(
            found.get_activation(step, RESID), whole.get_trajectory().get_activation(step, RESID)[:, slots]
        )


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_done_by_position_is_done_anew_where_a_token_has_moved(small, seed, kit):
    """Noise at a position and a knocked-out key: a beginning that is the same by its tokens alone cannot be reused."""
    talk = Talk(seed)
    hooks = [
        sonde.Noise(site="blocks.0.hook_resid_post", std=1.0, seed=seed),
        sonde.Knockout(site="blocks.1.attn.hook_attn_scores", keys=(0, 1, 40, 90, 130)),
    ]
    values = []
    for fresh in (False, True):
        small.pool.entries.clear()
        with sonde.ActivationCapture(small, RESID) as capture:
            await talk.play(small, capture=capture, hooks=hooks, fresh=fresh)
        values.append(capture.get_trajectory().get_activation_across_trajectory(RESID))
    for kept, anew in zip(*values, strict=True):
        assert kit.close(kept, anew)


async def test_positions_are_saved_with_the_step_and_come_back(small, tmp_path):
    talk = Talk(1)
    with sonde.ActivationCapture(small, RESID, folder=tmp_path / "there") as capture:
        await talk.play(small, capture=capture)
    trajectory = capture.get_trajectory()
    trajectory.save(tmp_path / "saved")
    for folder in (tmp_path / "there", tmp_path / "saved"):
        loaded = sonde.TrajectoryActivations.load(folder)
        for step in range(len(trajectory)):
            assert torch.equal(loaded.positions(step), trajectory.positions(step))
        last = json.loads((folder / "steps.jsonl").read_text().splitlines()[-1])
        ranges = last["step"]["calls"][0]["positions"]
        assert [number for start, stop in ranges for number in range(start, stop)] == loaded.positions(-1).tolist()


async def test_an_episode_of_the_first_format_is_read_with_the_positions_of_its_records(small, tmp_path):
    with sonde.ActivationCapture(small, RESID) as capture:
        await Talk(0).play(small, capture=capture)
    now, records = capture.get_trajectory(), capture.get_trajectory().records
    columns = {name: records.whole(name) for name in ("records.token", "records.keys", RESID)}
    columns["records.position"] = torch.arange(1000, 1000 + records.count)
    arrays = {name: capture_records.to_array(value) for name, value in columns.items()}
    with store.EpisodeWriter.create(tmp_path / "old", metadata={"format": "trajectory-1"}) as writer:
        for index, step in enumerate(now.steps):
            line = step.to_json()
            for call in line["calls"]:
                del call["positions"]
            writer.append_step(line, arrays if index == 0 else {})
        writer.close()
    old = sonde.TrajectoryActivations.load(tmp_path / "old")
    for step in range(len(now)):
        assert (old.positions(step) - 1000).tolist() == now.steps[step].calls[0].records.tolist()
        assert torch.equal(old.get_activation(step, RESID), now.get_activation(step, RESID))
    again = sonde.TrajectoryActivations.load(old.save(tmp_path / "again"))
    assert torch.equal(again.positions(3), old.positions(3))


def test_a_bare_forward_pass_at_positions_of_its_own_keeps_its_prompt(small):
    where = torch.arange(5, 14)[None]
    with sonde.automatic_activation_capture(small, RESID, positions="last_prompt") as capture, torch.no_grad():
        small.hf(input_ids=torch.arange(9)[None], position_ids=where)
    trajectory = capture.get_trajectory()
    assert trajectory.prompt_length(0) == 9
    assert trajectory.positions(0).tolist() == [13]


async def test_tokens_alone_are_recorded_whole_whoever_encoded_them(small):
    """Nothing need be encoded again to know them: all steps, only the last, and after someone else's."""
    talk = Talk(2)
    found = []
    for first in (0, 5):
        with sonde.ActivationCapture(small, []) as capture:
            responses = await talk.play(small, capture=capture, first=first)
        found.append(capture.get_trajectory())
    whole, late = found
    assert whole.positions(5).tolist() == late.positions(0).tolist() == talk.positions(small, responses[5])
    context = responses[5].prompt_token_ids + responses[5].token_ids[:-1]
    assert tuple(whole.tokens(5).tolist()) == tuple(late.tokens(0).tolist()) == context
    assert responses[5].usage.encoded_tokens < len(context)


async def test_an_intervention_reaches_places_beyond_the_context_once_turns_were_dropped(small):
    talk = Talk(2)
    zero = sonde.Zero(site=RESID, positions=range(CONTEXT, CONTEXT + 20))
    with sonde.ActivationCapture(small, RESID) as capture:
        await talk.play(small, capture=capture, hooks=[zero])
    trajectory = capture.get_trajectory()
    last = trajectory.positions(-1)
    assert CONTEXT + 20 in last.tolist()
    nothing = (trajectory.get_activation(-1, RESID)[0] == 0).all(dim=-1)
    assert last[nothing].tolist() == list(range(CONTEXT, CONTEXT + 20))
    with pytest.raises(errors.InterventionError, match="beyond the context"):
        small.generate("hello", max_new_tokens=1, interventions=[zero])
