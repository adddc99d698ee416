"""The models that come with Sonde are what their logs say."""

import pytest

from sonde.agents import playing
from sonde.bench import batched, cases, measuring, shipped, siit, starting

MODELS = shipped.list_embedded()
FIGURES = ("accuracy", "iia", "strict")


def place_of(case, seed):
    return shipped.EMBEDDED / f"case-{case}" / f"seed-{seed}"


def test_every_core_case_and_both_ioi_models_are_there_and_small():
    assert {case for case, _ in MODELS} >= {*map(str, cases.ids("core")), *shipped.IOI}
    assert sum(path.stat().st_size for path in shipped.EMBEDDED.rglob("*") if path.is_file()) <= 40 * 1024**2


@pytest.mark.parametrize(("case", "seed"), MODELS)
def test_a_log_claims_what_is_asked_of_a_model(case, seed):
    measured = starting.read_log(place_of(case, seed))["measured"]
    assert min(measured[name] for name in FIGURES) >= 0.995


@pytest.mark.slow
@pytest.mark.parametrize(("case", "seed"), MODELS)
def test_measured_anew_on_other_inputs_a_model_is_as_good_as_its_log_says(case, seed):
    log, task = starting.read_log(place_of(case, seed)), shipped.task_of(case)
    shape = batched.Shape(**log["shape"])
    weights = batched.joined(shape, starting.read_model(place_of(case, seed)))
    pupils = siit.Pupils(task, shape, [log["places"]])
    with playing.pinned(1):
        (found,) = measuring.measure(pupils, weights, rows=512, key=7)
    for name in FIGURES:
        assert getattr(found, name) >= log["measured"][name] - 0.005, name
