"""Requests that pause after some tokens go on as if they had not stopped."""

import pytest
import torch

import sonde
from sonde.models import generation, requests

PROMPTS = ["The quick brown fox", "Is it alive?", "A"]
SITE = "blocks.1.hook_resid_post"


@pytest.fixture(params=["tiny-gpt2", "tiny-llama", "tiny-gemma", "tiny-neox"])
def model(request):
    with sonde.load(request.param) as loaded:
        yield loaded


def asked(model, specs=(), **sampling):
    settings = {"max_new_tokens": 11, "min_new_tokens": 11, "temperature": 1.0, **sampling}
    return [
        model.request(tuple(model.tokenizer.encode(text)), requests.Sampling(**{"seed": index, **settings}), specs)
        for index, text in enumerate(PROMPTS)
    ]


def run_to_the_end(model, batch, limit):
    """Runs in slices; the first request joins late, as one that comes back with its next step does."""
    done: dict[int, requests.Generation] = {}
    waiting = dict(enumerate(batch))
    late = {0: waiting.pop(0)}
    rounds = 0
    while waiting or late:
        numbers = sorted(waiting)
        outcomes = [answer.result() for answer in model.submit_for([waiting[n] for n in numbers], limit)]
        waiting = {}
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, requests.Paused):
                waiting[number] = outcome
            else:
                done[number] = outcome
        waiting |= late
        late = {}
        rounds += 1
    return [done[number] for number in range(len(batch))], rounds


@pytest.mark.parametrize("limit", [1, 2, 4, 11])
def test_slices_give_the_tokens_of_an_unbroken_run(model, limit):
    batch = asked(model)
    whole = model.wait(model.submit(batch), batch)
    model.pool.entries.clear()
    sliced, rounds = run_to_the_end(model, asked(model), limit)
    assert rounds >= 11 // limit
    for one, other in zip(sliced, whole, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.finish_reason == other.finish_reason
        assert one.encoded_tokens == other.encoded_tokens


@pytest.mark.parametrize("positions", ["all", "last_prompt", "generated"])
def test_slices_record_what_an_unbroken_run_records(model, positions):
    recorded = []
    for limit in (None, 3):
        model.pool.entries.clear()
        with sonde.automatic_activation_capture(model, SITE, positions=positions) as capture:
            batch = asked(model)
            if limit is None:
                model.wait(model.submit(batch), batch)
            else:
                run_to_the_end(model, batch, limit)
        found = capture.get_trajectory()
        steps = {found.prompt_length(step): step for step in range(len(found))}
        assert len(steps) == len(PROMPTS)
        recorded.append(
            [(found.tokens(s), found.generated(s), found.get_activation(s, SITE)) for _, s in sorted(steps.items())]
        )
    for one, other in zip(*recorded, strict=True):
        assert torch.equal(one[0], other[0])
        assert one[1] == other[1]
        assert torch.allclose(one[2], other[2], atol=1e-4)


@pytest.mark.parametrize(
    "spec",
    [
        sonde.Zero(site="blocks.0.hook_mlp_out"),
        sonde.Zero(site="blocks.0.hook_mlp_out", phase="decode"),
        sonde.Zero(site="blocks.0.hook_mlp_out", positions=(-1,)),
        sonde.Noise(site="blocks.1.hook_resid_pre", std=0.5, seed=1),
        sonde.Mean(site="blocks.1.hook_resid_pre"),
        sonde.LayerOrder(order=(0, 2, 1)),
    ],
    ids=lambda spec: spec.describe(),
)
def test_slices_keep_interventions_in_force(spec):
    with sonde.load("tiny-llama") as model:
        if isinstance(spec, sonde.LayerOrder):
            spec = sonde.LayerOrder(order=(0, 2, 1, *range(3, model.cfg.n_layers)))
        batch = asked(model, (spec,))
        whole = model.wait(model.submit(batch), batch)
        model.pool.entries.clear()
        sliced, _ = run_to_the_end(model, asked(model, (spec,)), 3)
        assert [one.tokens for one in sliced] == [one.tokens for one in whole]


def test_a_paused_request_can_be_cancelled():
    with sonde.load("tiny-llama") as model:
        batch = asked(model)
        paused = [answer.result() for answer in model.submit_for(batch, 2)]
        assert all(isinstance(one, requests.Paused) for one in paused)
        batch[1].cancelled.set()
        outcomes = [answer.result() for answer in model.submit_for(paused, None)]
        assert [one.finish_reason for one in outcomes] == ["length", "cancelled", "length"]
        assert len(outcomes[1].tokens) == 3


def test_a_paused_request_can_be_taken_up_twice():
    with sonde.load("tiny-llama") as model:
        (first, *_) = asked(model)
        (paused,) = (answer.result() for answer in model.submit_for([first], 4))
        ends = [model.submit_for([paused], None)[0].result() for _ in range(2)]
        assert ends[0].tokens == ends[1].tokens
        assert len(ends[0].tokens) == 11


def test_paused_rows_are_no_padding_beside_a_new_prompt(monkeypatch):
    shapes = []
    forward = generation.Batch._forward
    monkeypatch.setattr(
        generation.Batch,
        "_forward",
        lambda self, wires, cache, rows, cells: (
            shapes.append(tuple(cells[0].shape)) or forward(self, wires, cache, rows, cells)
        ),
    )
    with sonde.load("tiny-llama") as model:
        late, *others = asked(model)
        paused = [answer.result() for answer in model.submit_for(others, 2)]
        shapes.clear()
        [answer.result() for answer in model.submit_for([late, *paused], 2)]
        assert shapes == [(1, len(late.tokens)), (3, 1), (3, 1)]
