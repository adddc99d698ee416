"""The models that come with Sonde are what their logs say."""

import pytest

from sonde import experiments
from sonde.bench import batched, evaluating, judging, lengths, measuring, shipped, siit, starting

MODELS = shipped.list_embedded()
FIGURES = ("accuracy", "iia", "strict")


def place_of(case, seed):
    return shipped.EMBEDDED / f"case-{case}" / f"seed-{seed}"


def test_the_package_has_no_outdated_weights_beside_those_that_are_listed_and_is_small():
    if not MODELS:
        pytest.skip("no models are in the package")
    assert shipped.list_outdated() == []
    assert sum(path.stat().st_size for path in shipped.EMBEDDED.rglob("*") if path.is_file()) <= 40 * 1024**2


@pytest.mark.parametrize(("case", "seed"), MODELS)
def test_a_log_claims_what_is_asked_of_a_model(case, seed):
    measured = starting.read_log(place_of(case, seed))["measured"]
    assert min(measured[name] for name in FIGURES) >= 0.995
    assert set(measured["ways"]) == set(siit.STRICT)


@pytest.mark.parametrize(("case", "seed"), MODELS)
def test_what_is_outside_the_circuit_can_be_taken_away_whatever_way(case, seed):
    subject = shipped.embedded(case, seed=seed)
    mean, zero = (evaluating.realism(subject, ablation=name, rows=100)["realism"] for name in evaluating.ABLATIONS)
    assert zero >= 0.9 or mean < 0.9


@pytest.mark.parametrize(("case", "seed"), MODELS)
def test_nodes_that_count_as_true_change_the_answer_in_at_least_2_percent_of_exchanges_and_most_do(case, seed):
    subject = shipped.embedded(case, seed=seed)
    judged, moved = judging.of(subject), subject.log["measured"]["moved"]
    assert {node for node, place in subject.log["places"].items() if place in judged.true} == {
        node for node, share in moved.items() if share >= lengths.LEAST
    }
    assert judged.share_left_out <= judging.MOST


@pytest.mark.slow
@pytest.mark.parametrize(("case", "seed"), MODELS)
def test_measured_anew_on_other_inputs_a_model_is_as_good_as_its_log_says(case, seed):
    log, task = starting.read_log(place_of(case, seed)), shipped.task_of(case)
    shape = batched.Shape(**log["shape"])
    weights = batched.joined(shape, starting.read_model(place_of(case, seed)))
    pupils = siit.Pupils(task, shape, [log["places"]])
    with experiments.pinned(1):
        (found,) = measuring.measure(pupils, weights, rows=512, key=7)
    for name in FIGURES:
        assert getattr(found, name) >= log["measured"][name] - 0.005, name
