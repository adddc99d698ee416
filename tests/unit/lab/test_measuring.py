"""Measurements of tasks and texts: against plain forward passes, with baselines, controls and intervals."""

import json
import math

import numpy as np
import pytest

from sonde.core import errors
from sonde.lab import corruptions, measuring, measuring_texts, rows, tasks

TASK = tasks.Task(
    "sums",
    "Adds.",
    (),
    "1 + 1 = 2\n",
    tuple(tasks.Example(f"1 + 1 = 2\n{a} + {b} =", (f" {a + b}", " some")) for a in (2, 13) for b in (1, 2, 30)),
)
TEXTS = {"one": "A first text.", "two": "Another text, which is longer.", "three": "And a third."}


def _by_hand(model, specs, example):
    """Log-probability of every answer token in one plain forward pass."""
    prompt = model.tokenizer.encode(example.prompt)
    answer = model.tokenizer.encode(example.answers[0], add_special_tokens=False)
    logprobs = model.run_with_hooks([*prompt, *answer], list(specs))[0].double().log_softmax(dim=-1)
    return sum(float(logprobs[len(prompt) - 1 + at, token]) for at, token in enumerate(answer)), len(answer)


@pytest.mark.parametrize("spec", ["none", "skip:1", "repeat:2", "noise:blocks.1.hook_mlp_out@0.5", "parallel:1-2"])
def test_the_likelihood_of_an_answer_counts_every_token_of_it(llama, spec):
    corruption = corruptions.parse(spec, 4)
    scores = measuring.score_task(llama, corruption, TASK)
    for at, example in enumerate(TASK.examples):
        total, length = _by_hand(llama, corruption.bound(llama), example)
        assert scores.logprobs[at] == pytest.approx(total, abs=1e-3)
        assert scores.lengths[at] == length > 1
        assert scores.losses[at] == pytest.approx(-total / length, abs=1e-3)


def test_a_position_from_the_end_is_counted_from_the_end_of_the_prompt(llama):
    """Not from the end of prompt and answer, which are one text only in a plain forward pass."""
    corruption = corruptions.parse("zero:blocks.1.hook_resid_post@at=-1", 4)
    example = TASK.examples[0]
    last = len(llama.tokenizer.encode(example.prompt)) - 1
    there = corruptions.parse(f"zero:blocks.1.hook_resid_post@at={last}", 4)
    scores = measuring.score_task(llama, corruption, TASK, examples=[0])
    assert scores.logprobs[0] == pytest.approx(_by_hand(llama, there.bound(llama), example)[0], abs=1e-3)


def test_a_measured_task_has_baseline_change_n_and_interval(llama):
    found = measuring.measure_task(llama, corruptions.parse("skip:1", 4), TASK)
    assert [(row.measure, row.role) for row in found.measures] == [
        (measure, role)
        for measure in (measuring.ACCURACY, measuring.LOGPROB, measuring.LOSS)
        for role in ("baseline", "corrupted")
    ]
    baseline, corrupted = found.measures[2:4]
    assert (baseline.delta, corrupted.value.n, corrupted.value.clusters) == (None, 6, 6)
    assert corrupted.delta.value == pytest.approx(corrupted.value.value - baseline.value.value)
    assert corrupted.delta.low < corrupted.delta.value < corrupted.delta.high
    assert [row.index for row in found.rows] == list(range(6))
    assert found.rows[0].answer_logprob != found.rows[0].baseline_logprob
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["corruption"] == "skip:1"


def test_nothing_done_changes_nothing(llama):
    found = measuring.measure_task(llama, corruptions.parse("none", 4), TASK)
    assert all(row.delta is None or row.delta.value == 0 for row in found.measures)
    assert all(row.completion == row.baseline_completion for row in found.rows)


def test_a_measurement_does_not_depend_on_what_was_measured_before(llama):
    corruption = corruptions.parse("skip:2", 4)
    first = measuring.score_task(llama, corruption, TASK)
    kept = llama.pool.entries
    measuring.score_task(llama, corruptions.parse("none", 4), TASK, examples=[3, 1])
    again = measuring.score_task(llama, corruption, TASK)
    assert np.array_equal(first.logprobs, again.logprobs)
    assert first.completions == again.completions
    assert llama.pool.entries is kept


def test_a_baseline_can_be_given_and_must_be_of_the_same_examples(llama):
    none, skip = corruptions.parse("none", 4), corruptions.parse("skip:1", 4)
    baseline = measuring.score_task(llama, none, TASK, examples=[0, 2])
    found = measuring.measure_task(llama, skip, TASK, examples=[0, 2], baseline=baseline)
    assert [row.index for row in found.rows] == [0, 2]
    with pytest.raises(errors.RequestError, match="score the same examples"):
        measuring.measure_task(llama, skip, TASK, examples=[0, 1], baseline=baseline)
    with pytest.raises(errors.RequestError, match="examples 0 to 5"):
        measuring.measure_task(llama, skip, TASK, examples=[6])


def test_controls_stand_beside_the_corruption(llama):
    found = measuring.measure_with_controls(llama, corruptions.parse("skip:1", 4), TASK, count=2, seed=5)
    specs = [row.spec for row in found.measures if row.measure == measuring.LOSS]
    assert specs[:2] == ["none", "skip:1"]
    assert len(set(specs)) == 4
    zero = measuring.measure_with_controls(llama, corruptions.parse("zero:blocks.1.hook_mlp_out", 4), TASK, count=1)
    assert [row.spec.split("@")[0] for row in zero.measures if row.role == "control"] == [
        "noise:blocks.1.hook_mlp_out"
    ] * 3


def test_a_task_that_the_intact_model_cannot_do_is_flagged(llama):
    found = measuring.measure_task(llama, corruptions.parse("skip:1", 4), TASK)
    assert any("cannot do 'sums'" in flag for flag in found.flags)


def test_texts_are_measured_against_plain_forward_passes(llama):
    corruption = corruptions.parse("skip:1", 4)
    found = measuring_texts.measure_texts(llama, corruption, TEXTS, controls=1)
    losses = []
    for text in TEXTS.values():
        ids = llama.to_tokens(text)
        logprobs = llama.run_with_hooks(ids, list(corruption.bound(llama)))[0].log_softmax(dim=-1)
        losses += (-logprobs[:-1].gather(-1, ids[0, 1:, None])[:, 0]).tolist()
    (row,) = [one for one in found.measures if (one.measure, one.role) == (measuring_texts.LOSS, "corrupted")]
    assert row.value.value == pytest.approx(np.mean(losses), abs=1e-4)
    assert (row.value.n, row.value.clusters) == (len(losses), 3)
    baseline = {one.measure: one.value.value for one in found.measures if one.role == "baseline"}
    assert (baseline[measuring_texts.KL], baseline[measuring_texts.AGREEMENT]) == (0, 1)
    assert {one.role for one in found.measures} == {"baseline", "corrupted", "control"}


def test_texts_are_cut_to_the_tokens_asked_for(llama):
    corruption = corruptions.parse("zero:blocks.1.hook_attn_out@at=0 + zero:blocks.1.hook_mlp_out@at=0", 4)
    found = measuring_texts.measure_texts(llama, corruption, TEXTS, tokens=5, controls=2)
    assert found.tokens == 5 * len(TEXTS)
    kl = [one for one in found.measures if one.measure == measuring_texts.KL]
    assert [one.role for one in kl] == ["baseline", "corrupted", "control", "control"]
    with pytest.raises(ValueError, match="expected at least 1000"):
        measuring_texts.measure_texts(llama, corruption, TEXTS, tokens=1000)


def test_likelihood_shifts_name_the_tokens_that_gain_and_lose_most(llama):
    corruption = corruptions.parse("skip:1", 4)
    found = measuring_texts.likelihood_shifts(llama, corruption, "Hello you", top=3)
    ids = llama.to_tokens("Hello you")
    before, after = (
        llama.run_with_hooks(ids, specs)[0].softmax(dim=-1) for specs in ([], list(corruption.bound(llama)))
    )
    delta = (after - before).mean(dim=0)
    assert [one.token for one in found.tokens] == list("ello you")
    assert found.tokens[0].corrupted == pytest.approx(float(after[0, ids[0, 1]].log()), abs=1e-4)
    assert found.tokens[0].delta == pytest.approx(float((after[0, ids[0, 1]] / before[0, ids[0, 1]]).log()), abs=1e-3)
    assert [value for _, value in found.raised] == pytest.approx(delta.topk(3).values.tolist(), abs=1e-5)
    assert [value for _, value in found.lowered] == pytest.approx((-(-delta).topk(3).values).tolist(), abs=1e-5)


def test_a_text_of_one_token_is_refused(llama):
    with pytest.raises(errors.RequestError, match="one token"):
        measuring_texts.likelihood_shifts(llama, corruptions.parse("skip:1", 4), "a")


def test_the_interval_of_a_kl_does_not_go_below_zero():
    kl = np.array([0.0, 0.0, 0.001, 0.9])
    intact, corrupted = rows.of(
        "KL from intact (nats)", np.arange(4), [("baseline", "none", np.zeros(4)), ("corrupted", "skip:1", kl)]
    )
    free = rows.mean(kl, np.arange(4))
    assert free.low < 0, "without the limit it would"
    assert (corrupted.value.low, corrupted.value.high) == (0.0, free.high)
    assert corrupted.delta.low == 0.0
    assert intact.value.low == 0.0


def test_a_change_of_a_loss_may_be_below_zero():
    before, after = np.array([1.0, 2.0, 3.0]), np.array([0.9, 1.5, 2.9])
    _, row = rows.of("loss (nats per token)", np.arange(3), [("baseline", "none", before), ("corrupted", "x", after)])
    assert row.delta.low < 0


def test_a_single_cluster_has_no_interval_and_what_is_infinite_is_left_out():
    alone = rows.mean(np.array([1.0, 3.0]), np.array([7, 7]))
    assert (alone.value, alone.n, alone.clusters) == (2.0, 2, 1)
    assert math.isnan(alone.low)
    part = rows.mean(np.array([1.0, np.inf, 3.0]), np.arange(3))
    assert (part.value, part.n) == (2.0, 2)
    row = rows.of("loss", np.array([0, 0]), [("baseline", "none", np.array([np.nan, np.nan]))])[0]
    assert row.to_json()["value"] == {"value": None, "low": None, "high": None}
