"""A step whose consequences were planted is found, and no other; where nothing was planted, nothing is claimed."""

import numpy as np
import pytest

from sonde import experiments
from sonde.studies.critical_steps import results, settings, study
from sonde.testing import planted

LAYER = 3
READS = planted.READS


def run(model, folder, *, seed=0, world=None, **options):
    asked = {"episodes": 10, "layers": (READS, LAYER, 5), "rollouts": 4, "heads": 1, "seed": seed, **options}
    world = {"steps": 4, "seed": seed, **(world or {})}
    source = lambda: planted.PlantedEnvironment(**world)  # noqa: E731
    chosen = settings.settings_of(source, model.cfg, **asked)
    name = f"study-{seed}"
    return experiments.run(study.CriticalSteps(model, source), chosen, run=name, runs_dir=folder).results


def claimed(found):
    return results.critical(found["cells"])


def impact(found):
    return results.numbers(found["matrix"], "value")


@pytest.fixture(scope="module")
def model():
    with planted.model(LAYER, gap=4.0) as made:
        yield made


@pytest.fixture(scope="module")
def found(model, tmp_path_factory):
    return run(model, tmp_path_factory.mktemp("runs"), world={"critical_step": 1, "valid_share": 0.9}, ablation="zero")


def test_the_study_names_the_planted_step_and_no_other(found):
    assert found["critical_steps"] == [1]
    assert {cell.layer for cell in claimed(found)} <= {READS, LAYER}


def test_the_effect_is_harm_at_later_steps_of_the_planted_one_only(found):
    for one in found["cells"]:
        if one["critical"]:
            assert one["later"]["effect"]["high"] < 0
            assert one["reward"]["effect"]["high"] < 0
        elif one["step"] != 1 or one["layer"] == 5:
            assert one["later"]["effect"]["value"] == 0, "the same random numbers, and nothing that could change them"


def test_the_screening_shows_the_layers_that_make_a_step_at_every_step_and_the_sham_does_nothing(found):
    value = impact(found)
    assert value[:2].min() > 1000 * value[2].max()
    assert found["matrix"]["sham"] < 1e-6


def test_the_heads_that_read_the_features_stand_out(found):
    by_head = {one["head"]: one["impact"]["value"] for one in found["heads"]}
    if found["heads"][0]["layer"] == READS:
        assert min(by_head[0], by_head[1]) > 1000 * max(by_head[2], by_head[3])
    else:
        assert max(by_head.values()) < 1e-4


def test_without_a_planted_step_nothing_is_claimed_although_layers_still_make_every_step(model, tmp_path):
    found = run(model, tmp_path, episodes=10, layers=(LAYER, 5), rollouts=2, world={"steps": 3}, heads=0)
    assert claimed(found) == []
    assert impact(found)[0].min() > 1000 * impact(found)[1].max()


def test_in_a_null_model_nothing_is_claimed_and_nothing_stands_out(tmp_path):
    with planted.model(LAYER, null=True) as null:
        found = run(
            null, tmp_path, episodes=10, layers=(LAYER, 5), rollouts=2, world={"steps": 3, "critical_step": 1}, heads=0
        )
    assert claimed(found) == []
    assert impact(found).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "critical_step", "seed"), [(2, 0, 1), (4, 5, 2), (3, 3, 3)])
def test_the_planted_step_is_found_among_all_steps_and_layers(layer, critical_step, seed, tmp_path):
    world = {"steps": 9, "critical_step": critical_step}
    with planted.model(layer, seed=seed) as made:
        found = run(made, tmp_path, seed=seed, world=world, episodes=14, layers=None, rollouts=8)
    assert found["critical_steps"] == [critical_step]
    assert {cell.layer for cell in claimed(found)} <= {READS, layer}


@pytest.mark.slow
def test_of_twenty_studies_of_noise_at_most_three_claim_anything(tmp_path):
    """Same random numbers make most differences exactly zero here: calibration is the business of the test below."""
    studies = 0
    for seed in range(20):
        with planted.model(LAYER, null=True, seed=seed) as made:
            found = run(made, tmp_path, seed=seed, episodes=12, layers=(LAYER, 5), rollouts=2, heads=0)
        studies += bool(claimed(found))
    assert studies <= 3


def test_of_two_hundred_analyses_of_noisy_outcomes_at_most_sixteen_claim_anything():
    """Treated and control drawn alike, episodes of different difficulty, twelve cells on the same ten episodes."""
    analyses = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        easy = rng.beta(2, 2, size=10)
        cells = []
        for step in range(12):
            treated, control = (rng.binomial(20, easy) / 20 for _ in range(2))
            pair = (treated.tolist(), control.tolist())
            cells.append(results.cell_of(results.Cell(step, 0), 0.1, [pair, pair, pair], chosen=True))
        analyses += bool(results.critical(results.claims(cells, 0.05)["cells"]))
    assert 0 < analyses <= 16, analyses
