"""The models that come with the package follow variables, the value moves by a stop in between, controls do not."""

import numpy as np
import pytest

import sonde
from sonde.analysis import subspaces
from sonde.studies.binding import patching, shipped, spaces, study, training, verdict

TRAINED = [name for name in shipped.names() if shipped.recipe(name).every]
FROM_NOTHING = [name for name in TRAINED if not shipped.recipe(name).start]
TOLD = [name for name in TRAINED if shipped.recipe(name).told]
PAIRS = 40


def test_trained_models_come_with_the_package():
    assert (FROM_NOTHING, TOLD) == (["seed-0", "seed-1"], ["seed-0-told", "seed-1-told"])


@pytest.fixture(scope="module", params=TRAINED)
def trained(request):
    with sonde.load(shipped.folder(request.param)) as model:
        yield model, shipped.recipe(request.param).grammar


def pairs_of(model, grammar, hops, seed=0, count=PAIRS):
    rng = np.random.default_rng([11, seed, hops])
    programs = spaces.programs_of(grammar, hops, patching.TRIES * count, rng, held_out=True)
    return patching.root_pairs(model, programs, count, rng)


def has_moved(name, hops):
    """Whether the value is at the last right-hand side, in some layer, and no longer at the root."""
    with sonde.load(shipped.folder(name)) as model:
        table = patching.staircase(model, pairs_of(model, shipped.recipe(name).grammar, hops, count=100))
    rates = dict(zip(table["roles"], np.array(table["success"]["value"]), strict=True))
    return bool(((rates[f"rhs_{hops}"] >= verdict.ENOUGH) & (rates["rhs_1"] <= verdict.LITTLE)).any())


def test_a_trained_model_answers_where_no_heuristic_reaches(trained):
    model, grammar = trained
    found = study.accuracy(model, grammar)
    assert found["rates"]["root after line 2"]["low"] > 0.9
    assert max(found["heuristics"]["balanced"].values()) < 0.3


def test_the_value_starts_at_the_root_and_ends_at_the_colon(trained):
    model, grammar = trained
    table = patching.staircase(model, pairs_of(model, grammar, 2))
    rates = dict(zip(table["roles"], np.array(table["success"]["value"]), strict=True))
    assert rates["rhs_1"][0] == rates["final"][-1] == 1.0
    assert rates["rhs_1"][-1] == rates["final"][0] == 0.0
    assert rates["rhs_2"][0] == rates["rhs_2"][-1] == 0.0
    assert rates["rhs_2"].max() >= 0.15
    assert [one["value"] for one in table["middle"]] == pytest.approx(rates["rhs_2"].tolist(), abs=1e-4)


def test_with_three_hops_it_stops_in_between_where_the_root_is_no_longer_needed():
    with sonde.load(shipped.folder("seed-0")) as model:
        table = patching.staircase(model, pairs_of(model, shipped.recipe("seed-0").grammar, 3))
    root = np.array(table["success"]["value"])[table["roles"].index("rhs_1")]
    between = np.array([one["value"] for one in table["middle"]])
    assert ((between >= verdict.ENOUGH) & (root <= verdict.LITTLE)).any()


@pytest.mark.parametrize("name", TRAINED)
def test_with_two_hops_answers_are_read_from_the_queried_line_where_lines_were_told_their_values_and_only_there(name):
    assert has_moved(name, 2) == (name in TOLD)


def test_another_chains_root_is_not_followed(trained):
    model, grammar = trained
    rng = np.random.default_rng(12)
    programs = spaces.programs_of(grammar, 2, patching.TRIES * PAIRS, rng, held_out=True)
    found = patching.control(model, patching.control_pairs(model, programs, PAIRS, rng))
    assert found["largest"]["value"] <= 0.05


def test_the_number_lies_in_few_directions_of_the_final_token_and_not_in_random_ones(trained):
    model, grammar = trained
    learn, test = pairs_of(model, grammar, 2, seed=1), pairs_of(model, grammar, 2, seed=2)
    last = model.cfg.n_layers
    learned = subspaces.rotated(
        model, learn.pairs, subspaces.Place(last, learn.places("final")), 10, learning=subspaces.Learning(steps=60)
    )
    found = subspaces.compare(model, test.pairs, subspaces.Place(last, test.places("final")), learned.basis)
    assert found.whole.value == 1.0
    assert found.inside.value >= 0.8
    assert found.random.value <= 0.4


@pytest.mark.parametrize("name", FROM_NOTHING)
def test_the_log_shows_chance_then_the_heuristic_then_the_systematic_answer(name):
    log = shipped.log(name)
    assert log[0]["balanced"] < 0.2
    assert any(row["root"]["1"] > 0.75 and row["root"]["later"] < 0.3 for row in log)
    assert log[-1]["root"]["later"] > 0.9


@pytest.mark.parametrize("name", FROM_NOTHING)
def test_the_weights_of_an_earlier_phase_answer_as_logged(name):
    early = shipped.steps(name)[0]
    row = next(row for row in shipped.log(name) if row["step"] == early)
    found = training.measured(shipped.at_step(name, early), training.tests(shipped.recipe(name).grammar))
    assert found["balanced"] == pytest.approx(row["balanced"], abs=0.02)  # they are kept in half precision


@pytest.mark.parametrize("name", TOLD)
def test_a_model_that_began_with_anothers_weights_begins_where_that_one_was(name):
    other, _, step = shipped.recipe(name).start.partition("@")
    row = next(row for row in shipped.log(other) if row["step"] == int(step))
    assert shipped.log(name)[0]["balanced"] == pytest.approx(row["balanced"], abs=0.02)


def test_all_weights_together_stay_small():
    assert sum(path.stat().st_size for path in shipped.FOLDER.rglob("*.safetensors")) <= 8_000_000
