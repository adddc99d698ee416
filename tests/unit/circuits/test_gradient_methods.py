"""Methods that score edges by gradients, against slow ways of getting the same numbers."""

import numpy as np
import pytest
import torch

import sonde
from sonde.circuits import metrics, pairs, registry, running, tasks
from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import plain as plain_model
from sonde.models import tiny

FAMILIES = ["tiny-plain", "tiny-gpt2", "tiny-llama", "tiny-qwen3", "tiny-neox", "tiny-gemma"]
GRADIENT = ["eap", "eap-ig", "eap-ig-activations", "mask-ig", "hisp"]


def induction(model, n=4, seed=0):
    return tasks.get("induction")(model, n=n, seed=seed, length=6, again=2)[0]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return sonde.load(request.param)


@pytest.fixture(scope="module")
def exact():
    """A smooth model in double precision, so that differences and integrals can be held to many digits."""
    config = plain_model.PlainConfig(vocab_size=tiny.VOCAB, hidden_size=32, hidden_act="gelu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = plain_model.PlainForCausalLM(config)
    return models_model.Model(network.double(), tiny.tokenizer(), name="smooth")


@pytest.fixture(scope="module")
def plain():
    return sonde.load("tiny-plain")


def by_autograd(runner, at=1.0):
    """Minus the derivative of the loss by every edge's mask."""
    mask = torch.full(runner.graph.allowed.shape, at, requires_grad=True)
    runner.loss_of(mask).backward()
    return np.where(runner.graph.allowed, -mask.grad.numpy(), np.nan)


@pytest.mark.parametrize("ablation", ["resample", "zero", "mean"])
def test_eap_is_the_derivative_by_the_mask_in_every_family(model, ablation):
    made = induction(model)
    scores = registry.find(model, made, method="eap", ablation=ablation)
    slow = by_autograd(running.Runner(model, made, "logit_diff", ablation=ablation))
    assert np.allclose(scores.values, slow, atol=1e-4, equal_nan=True)
    assert np.nanmax(np.abs(slow)) > 1e-3
    assert (scores.level, scores.method, scores.metric, scores.ablation) == ("edge", "eap", "logit_diff", ablation)


def test_eap_is_what_cutting_an_edge_a_little_does(exact):
    made = induction(exact)
    scores = registry.find(exact, made, metric="cross_entropy", method="eap")
    runner, little = running.Runner(exact, made, "cross_entropy"), 1e-4
    chosen = list(zip(*np.nonzero(scores.graph.allowed), strict=True))[::7]
    masks = torch.ones(2, len(chosen), *scores.graph.allowed.shape, dtype=torch.float64)
    for number, (i, j) in enumerate(chosen):
        masks[0, number, i, j], masks[1, number, i, j] = 1 - little, 1 + little
    down, up = (runner.loss_of(part).numpy() for part in masks)
    slow = (down - up) / (2 * little)
    assert np.allclose([scores.values[place] for place in chosen], slow, atol=1e-6)


def test_batches_add_up(plain):
    made = induction(plain, n=6)
    whole, parts = (registry.find(plain, made, method="eap-ig", batch_size=size) for size in (None, 4))
    assert np.allclose(whole.values, parts.values, atol=1e-5, equal_nan=True)


def test_padding_changes_nothing(plain):
    short = pairs.Pair([5, 6, 7], [5, 8, 7], answers=[6], wrongs=[8])
    long = pairs.Pair([5, 6, 7, 9, 3], [5, 8, 7, 9, 4], answers=[6], wrongs=[8])
    both = registry.find(plain, pairs.Pairs.of([short, long]), method="eap")
    each = [registry.find(plain, pairs.Pairs.of([one]), method="eap") for one in (short, long)]
    assert np.allclose(both.values, (each[0].values + each[1].values) / 2, atol=1e-5, equal_nan=True)


def test_eap_ig_with_one_step_is_eap(plain):
    made = induction(plain)
    one, eap = registry.find(plain, made, method="eap-ig", steps=1), registry.find(plain, made, method="eap")
    assert np.array_equal(one.values, eap.values, equal_nan=True)


def test_eap_ig_converges_to_the_integral(exact):
    made = induction(exact, n=2)
    runner = running.Runner(exact, made, "logit_diff")
    (batch,) = runner.batches
    change = runner.ablated(batch) - runner.contributions(batch, "clean")
    nodes, weights = np.polynomial.legendre.leggauss(16)
    integral = sum(
        float(weight) / 2 * runner.destination_gradients(batch, share=(float(node) + 1) / 2).dot(change).numpy()
        for node, weight in zip(nodes, weights, strict=True)
    )
    errors_ = []
    for steps in (4, 16, 64):
        values = np.nan_to_num(registry.find(exact, made, method="eap-ig", steps=steps).values)
        errors_.append(np.abs(values - integral).max() / np.abs(integral).max())
    assert errors_[0] > 2 * errors_[1] > 4 * errors_[2]
    assert errors_[2] < 0.05
    corrupt = runner.loss_of(np.zeros(runner.graph.allowed.shape)) - runner.loss_of()
    assert float(integral[0].sum()) == pytest.approx(float(corrupt), rel=1e-3)


def test_eap_ig_activations_converges_to_what_patching_a_group_does(exact):
    made = induction(exact, n=2)
    runner = running.Runner(exact, made, "logit_diff")
    few, many = (registry.find(exact, made, method="eap-ig-activations", steps=steps).values for steps in (8, 16))
    inputs = registry.find(exact, made, method="eap-ig", steps=16)
    assert np.allclose(many[0], inputs.values[0], atol=1e-9, equal_nan=True)
    limit = 2 * many - few  # the error of the rule is proportional to 1/steps
    for group in (slice(1, 5), slice(5, 6), slice(10, 11)):  # heads of a layer, the two MLPs
        mask = np.ones(runner.graph.allowed.shape)
        mask[group] = 0
        patched = float(runner.loss_of(mask) - runner.loss_of())
        assert np.nansum(limit[group]) == pytest.approx(patched, abs=1e-3)


@pytest.mark.parametrize("metric", ["logit_diff", "kl", "prob_diff"])
def test_mask_ig_adds_up_to_what_corruption_does(exact, metric):
    made = induction(exact)
    runner = running.Runner(exact, made, metric)
    scores = registry.find(exact, made, metric=metric, method="mask-ig", steps=8)
    there = float(runner.loss_of(np.zeros(runner.graph.allowed.shape)) - runner.loss_of())
    assert np.nansum(scores.values) == pytest.approx(there, rel=0.01, abs=1e-4)


def test_mask_ig_of_one_step_is_the_derivative_half_way(plain):
    made = induction(plain)
    slow = by_autograd(running.Runner(plain, made, "logit_diff"), at=0.5)
    assert np.allclose(registry.find(plain, made, method="mask-ig", steps=1).values, slow, atol=1e-5, equal_nan=True)


def test_hisp_is_the_mean_over_pairs_of_the_absolute_slope_of_a_node(plain):
    made = induction(plain, n=3)
    scores = registry.find(plain, made, method="hisp")
    each = [np.nansum(registry.find(plain, made.select([row]), method="eap").values, axis=1) for row in range(3)]
    assert scores.level == "node"
    assert np.allclose(scores.values, np.abs(each).mean(axis=0), atol=1e-5)
    heads = registry.find(plain, made, method="hisp", normalize=True).values[1:5]
    assert np.linalg.norm(heads) == pytest.approx(1)
    assert np.allclose(heads, scores.values[1:5] / np.linalg.norm(scores.values[1:5]), atol=1e-6)


@pytest.mark.parametrize("method", ["eap", "hisp"])
def test_a_distance_from_the_clean_run_gets_a_note(plain, method):
    made = induction(plain)
    flat = registry.find(plain, made, metric="kl", method=method)
    assert "no slope there" in flat.settings["note"]
    assert np.nanmax(np.abs(flat.values)) < 1e-5
    assert "note" not in registry.find(plain, made, metric="logit_diff", method=method).settings
    assert np.nanmax(np.abs(registry.find(plain, made, metric="kl", method="eap-ig").values)) > 1e-5


@pytest.mark.parametrize("method", [*GRADIENT, "sp", "sp-edges"])
def test_constant_metrics_and_those_without_gradient_are_refused(plain, method):
    made = induction(plain, n=2)

    def constant(logits, pairs, reference):
        return torch.zeros(len(pairs))

    def attached(logits, pairs, reference):
        return logits.sum(dim=(1, 2)) * 0

    def hits(logits, pairs, reference):
        return (logits[:, 0].argmax(dim=-1) == pairs.answers[:, 0]).float() + logits[:, 0, 0].detach()

    options = {"steps": 2} if method.startswith("sp") else {}
    for metric in (constant, attached):
        with pytest.raises(
            errors.AnalysisError, match=f"metric '{metric.__name__}' is the same on the clean and the cor"
        ):
            registry.find(plain, made, metric=metric, method=method, **options)
    with pytest.raises(errors.RequestError, match="metric 'hits' has no gradient: use a method that needs none"):
        registry.find(plain, made, metric=hits, method=method, **options)


@pytest.mark.parametrize("method", [*GRADIENT, "sp", "sp-edges"])
def test_options_that_do_not_exist_are_refused_with_a_suggestion(plain, method):
    with pytest.raises(errors.RequestError, match=r"has no option 'batchsize'; did you mean 'batch_size'\?"):
        registry.find(plain, induction(plain, n=2), method=method, batchsize=3)


@pytest.mark.parametrize("method", ["eap-ig", "eap-ig-activations", "mask-ig", "sp", "sp-edges"])
def test_no_steps_are_refused(plain, method):
    with pytest.raises(errors.RequestError, match="at least 1"):
        registry.find(plain, induction(plain, n=2), method=method, steps=0)


@pytest.mark.parametrize("method", GRADIENT)
def test_methods_tell_how_far_they_are_what_they_cost_and_leave_the_model_as_it_was(plain, method):
    made, told = induction(plain, n=4), []
    before = {name: value.clone() for name, value in plain.hf.state_dict().items()}
    asked = [weight.requires_grad for weight in plain.hf.parameters()]
    scores = registry.find(
        plain, made, method=method, batch_size=2, tell=lambda doing, done, of: told.append((doing, done, of))
    )
    assert told[-1][0] == method
    assert told[-1][1] == told[-1][2]
    assert scores.cost.backwards >= 4
    assert scores.cost.forwards >= 8
    assert scores.cost.seconds > 0
    assert all(torch.equal(value, before[name]) for name, value in plain.hf.state_dict().items())
    assert [weight.requires_grad for weight in plain.hf.parameters()] == asked
    assert all(weight.grad is None for weight in plain.hf.parameters())


def test_a_metric_of_ones_own_works_with_every_gradient_method(plain):
    made = induction(plain, n=2)

    def spread(logits, pairs, reference):
        return logits.square().mean(dim=(1, 2))

    mine = metrics.Metric("spread", "low", spread)
    for method in GRADIENT:
        assert registry.find(plain, made, metric=mine, method=method).metric == "spread"
