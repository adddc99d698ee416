"""One number per pair, from the logits."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from sonde.circuits import metrics, pairs
from sonde.core import errors

VOCAB = 7


@pytest.fixture
def made():
    return pairs.Pairs.of(
        [pairs.Pair([1, 2, 3], [1, 4, 3], answers=[4, 2], wrongs=[5]), pairs.Pair([1, 2], [3, 2], [0], [5, 6])]
    )


@pytest.fixture
def logits():
    return torch.randn(2, 1, VOCAB), torch.randn(2, 1, VOCAB)


def test_kl_is_the_divergence_from_the_clean_run(made, logits):
    now, reference = logits
    expected = F.kl_div(now.log_softmax(-1), reference.softmax(-1), reduction="none").sum(-1)[:, 0]
    assert torch.allclose(metrics.get("kl")(now, made, reference), expected, atol=1e-6)
    assert metrics.get("kl")(now, made, now).abs().max() < 1e-6


def test_logit_diff_is_mean_answer_minus_mean_wrong(made, logits):
    now, reference = logits
    expected = torch.stack(
        [(now[0, 0, 4] + now[0, 0, 2]) / 2 - now[0, 0, 5], now[1, 0, 0] - (now[1, 0, 5] + now[1, 0, 6]) / 2]
    )
    assert torch.allclose(metrics.get("logit_diff")(now, made, reference), expected)


def test_prob_diff_and_cross_entropy_take_the_answers_together(made, logits):
    now, reference = logits
    chance = now.softmax(-1)[:, 0]
    expected = torch.stack([chance[0, [4, 2]].sum() - chance[0, 5], chance[1, 0] - chance[1, [5, 6]].sum()])
    assert torch.allclose(metrics.get("prob_diff")(now, made, reference), expected, atol=1e-6)
    expected = -torch.stack([chance[0, [4, 2]].sum(), chance[1, 0]]).log()
    assert torch.allclose(metrics.get("cross_entropy")(now, made, reference), expected, atol=1e-6)


def test_mse_and_mae_are_means_over_the_vocabulary(made, logits):
    now, reference = logits
    assert torch.allclose(metrics.get("mse")(now, made, reference), ((now - reference) ** 2).mean(-1)[:, 0])
    assert torch.allclose(metrics.get("mae")(now, made, reference), (now - reference).abs().mean(-1)[:, 0])


def test_several_places_are_averaged_and_repeats_do_not_count(made):
    read = torch.tensor([[True, True, False], [False, True, False]])
    told = dataclasses.replace(made, read=read)
    now, reference = torch.randn(2, 2, VOCAB), torch.randn(2, 2, VOCAB)
    each = ((now - reference) ** 2).mean(-1)
    expected = torch.stack([each[0].mean(), each[1, 0]])
    assert torch.allclose(metrics.get("mse")(now, told, reference), expected)


def test_the_loss_is_low_where_the_behaviour_is(made, logits):
    now, reference = logits
    high, low = metrics.get("logit_diff"), metrics.get("cross_entropy")
    assert float(high.loss(now, made, reference)) == pytest.approx(-float(high(now, made, reference).mean()))
    assert float(low.loss(now, made, reference)) == pytest.approx(float(low(now, made, reference).mean()))


@pytest.mark.parametrize("name", list(metrics.METRICS))
def test_every_metric_can_be_differentiated(made, logits, name):
    now = logits[0].clone().requires_grad_()
    metrics.get(name).loss(now, made, logits[1]).backward()
    assert now.grad.isfinite().all()
    assert now.grad.abs().sum() > 0


def test_a_function_of_ones_own_is_a_metric(made, logits):
    def third(logits, pairs, reference):
        return logits[:, 0, 3]

    mine = metrics.get(third)
    assert (mine.name, mine.better) == ("third", "high")
    assert torch.equal(mine(logits[0], made, logits[1]), logits[0][:, 0, 3])
    assert metrics.get(mine) is mine
    with pytest.raises(errors.RequestError, match=r"'whole' gave shape \(2, 1, 7\), expected one value for each of 2"):
        metrics.Metric("whole", "low", lambda logits, pairs, reference: logits)(logits[0], made, logits[1])


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(errors.RequestError, match=r"no metric 'logit_dif'; did you mean 'logit_diff'\?"):
        metrics.get("logit_dif")


def test_answers_that_are_missing_are_asked_for(logits):
    bare = pairs.Pairs.of([pairs.Pair([1], [2], answers=[3], label="one"), pairs.Pair([1], [3], label="two")])
    with pytest.raises(errors.RequestError, match="'cross_entropy' needs answers, and pair 'two' has none"):
        metrics.get("cross_entropy")(logits[0], bare, logits[1])
    with pytest.raises(errors.RequestError, match="needs wrongs, and pair 'one'"):
        metrics.get("logit_diff")(logits[0][:1], bare.select([0]), logits[1][:1])


def test_a_metric_that_does_not_move_is_refused():
    metric = metrics.get("logit_diff")
    same = torch.tensor([1.0, 2.0])
    metrics.check_moves(metric, same, torch.tensor([1.0, 2.1]))
    with pytest.raises(
        errors.AnalysisError, match="'logit_diff' is the same on the clean and the corrupt run of all 2"
    ):
        metrics.check_moves(metric, same, same.clone())
    with pytest.raises(errors.AnalysisError, match="is nan on the corrupt run of pair 1"):
        metrics.check_moves(metric, same, torch.tensor([1.0, float("nan")]))


def test_the_divergence_of_the_clean_run_from_itself_is_never_below_zero(made):
    for scale in (1.0, 30.0):
        logits = scale * torch.randn(len(made), 1, 50)
        assert float(metrics.get("kl")(logits, made, logits).min()) >= 0
