"""The Twenty Questions study finds what was planted, and claims nothing where nothing was."""

import itertools

import numpy as np
import pytest

from sonde import experiments
from sonde.agents import environment
from sonde.agents.twenty_questions import rules
from sonde.studies.twenty_questions import rows as study_rows
from sonde.studies.twenty_questions import settings, steering, study
from sonde.testing import planted

LAYER, STEPS = 3, 4
SMALL = {
    "layers": (1, LAYER), "episodes": 24, "steps": STEPS, "steer_episodes": 12, "strengths": (1.0,), "random": 1,
    "least": 3, "permutations": 399, "wave": 32,
    "probes": {"folds": 4, "inner_folds": 3, "least": 3, "deals": 99, "shuffles": 0},
}  # fmt: skip


def analysed(model, games, folder, **changes):
    """The run, its settings, what was found, and the claims that hold; no page, which would take most of the time."""
    chosen = settings.settings_of(model, environment="planted", **{**SMALL, **changes})
    found = experiments.run(Unpaged(model, games), chosen, run=f"study-{chosen.seed}", runs_dir=folder)
    return found.run, chosen, found.results, {one["name"] for one in found.results["claims"] if one["holds"]}


class Unpaged(study.TwentyQuestions):
    """The study without its page."""

    def report(self, results, run):
        return None


def worlds(seed=0, **world):
    """Different tasks to learn from and to judge by."""
    return settings.Games(
        *(lambda one=one: planted.PlantedEnvironment(steps=STEPS, seed=2 * seed + one, **world) for one in (0, 1))
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with planted.model(LAYER) as model:
        return analysed(model, worlds(), tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_the_probe_chooses_the_planted_layer_and_beats_what_is_known_anyway(found):
    _, _, stages, held = found
    assert stages["probe"]["layer"] == LAYER
    assert "knows before speaking" in held
    by_layer = {
        one["layer"]: one
        for one in stages["probe"]["sweep"]["cells"]
        if one["pooling"] == "last_prompt" and one["step"] is None
    }
    assert by_layer[LAYER]["adjusted"] <= 0.05
    assert by_layer[1]["adjusted"] > 0.05, "the exclusive or is not linear before the layer that computes it"


@pytest.mark.slow
def test_the_direction_that_is_fitted_is_the_planted_one(found):
    kept, chosen, _, _ = found
    kinds, _ = steering.fitted(study_rows.Rows.load(kept.folder), LAYER, chosen)
    vector = np.asarray(kinds[steering.STATIC].vector, dtype=float)
    assert vector @ planted.direction() / np.linalg.norm(vector) > 0.95


@pytest.mark.slow
def test_steering_along_it_moves_the_rate_both_ways_and_no_control_does(found):
    _, _, stages, held = found
    assert "steering works" in held
    versus = {name: one["invalid_rate"] for name, one in stages["steer"]["versus"].items()}
    for kind in (steering.STATIC, steering.PER_STEP):
        assert versus[f"{kind} +1"]["effect"]["high"] < -0.1
        assert versus[f"{kind} -1"]["effect"]["low"] > 0.1
        assert max(versus[f"{kind} {sign}1"]["adjusted"] for sign in "+-") <= 0.05
    controls = [one["name"] for one in stages["steer"]["conditions"] if one["control"]]
    assert len(controls) == 6
    for name in controls:
        assert versus[name]["adjusted"] > 0.05, name
        assert abs(versus[name]["effect"]["value"]) < 0.5 * abs(versus["static +1"]["effect"]["value"]), name


@pytest.mark.slow
def test_what_was_not_planted_is_not_claimed(found):
    """The word that was said tells everything after it was said; the direction is the same at all steps."""
    assert found[3] == {"knows before speaking", "steering works"}


def test_in_a_null_model_nothing_is_claimed_and_steering_changes_nothing(tmp_path):
    with planted.model(LAYER, null=True) as model:
        _, _, stages, held = analysed(model, worlds(), tmp_path, layers=(LAYER,), episodes=16, steer_episodes=4)
    assert held == set()
    effects = [one["invalid_rate"]["effect"]["value"] for one in stages["steer"]["versus"].values()]
    assert effects == [0.0] * 10, "the same random numbers, and nothing that could change what is said"


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "seed"), [(2, 1), (4, 2), (5, 3)])
def test_the_planted_layer_is_found_among_all_layers(layer, seed, tmp_path):
    with planted.model(layer, seed=seed) as model:
        _, _, stages, held = analysed(model, worlds(seed), tmp_path, layers=range(6), seed=seed)
    assert stages["probe"]["layer"] == layer
    assert {"knows before speaking", "steering works"} <= held


class Coins(planted.PlantedEnvironment):
    """Verdicts that are coins, each game's its own: nothing in the model has to do with them.

    The odds change with the step and the task, so that something can be predicted, from what is known anyway; and games
    of one task under two conditions differ, by chance.
    """

    def __init__(self, number, seed):
        super().__init__(steps=STEPS, seed=seed)
        self.coin = np.random.default_rng([seed, number])

    async def _act(self, action):
        outcome = await super()._act(action)
        odds = 0.3 + 0.1 * (len(self._said) - 1) + 0.15 * (int(self.task.id.removeprefix("planted-")) % 3 - 1)
        verdict = rules.Verdict(bool(self.coin.random() < odds), "coin", "coin", False, "a coin", None)
        return environment.Outcome(self._observation(verdict.as_dict()), outcome.reward, done=outcome.done)


def coins(seed):
    def tossing(world):
        numbers = itertools.count()
        return lambda: Coins(next(numbers), world)

    return settings.Games(tossing(2 * seed), tossing(2 * seed + 1))


def study_of_nothing(seed, folder):
    with planted.model(LAYER, null=True, seed=seed) as model:
        return analysed(model, coins(seed), folder, seed=seed)[3]


@pytest.mark.slow
@pytest.mark.timeout(10800)
def test_of_200_studies_of_nothing_at_most_16_claim_anything(tmp_path):
    """The same studies as above, which find what is planted. The chance of any claim is 5 % for each; more than 16 of
    200 then has a chance of 2 %. Takes most of an hour."""
    claimed = {seed: held for seed in range(200) if (held := study_of_nothing(seed, tmp_path / str(seed)))}
    assert len(claimed) <= 16, claimed
