"""The evolution of directions: what is planted is found, what is constant is not called change, noise is not called signal.

The noise is as it is in games: rows of an episode resemble each other, neighbouring steps more so, some episodes have mostly
valid messages and some mostly invalid ones, and some end early.
"""

import numpy as np
import pytest

from sonde.analysis import evolution

EPISODES, STEPS, WIDTH = 40, 10, 24
OPTIONS = {"permutations": 239, "splits": 12, "least": 4}


def games(seed, *, strength=0.0, turn=0.0, growth=1.0):
    """Rows with a direction that turns by `turn` in all, and grows by a factor, from the first step to the last."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(EPISODES) < 0.8, STEPS, rng.integers(STEPS // 2, STEPS + 1, EPISODES))
    episodes, steps = np.repeat(np.arange(EPISODES), lengths), np.concatenate([np.arange(n) for n in lengths])
    labels = rng.random(len(steps)) < rng.beta(2, 2, EPISODES)[episodes]
    features = rng.standard_normal((EPISODES, WIDTH))[episodes] + 0.5 * rng.standard_normal((len(steps), WIDTH))
    drift = np.zeros((EPISODES, WIDTH))
    for step in range(STEPS):
        drift = 0.7 * drift + 0.5 * rng.standard_normal(drift.shape)
        features[steps == step] += drift[episodes[steps == step]]
    axes = np.linalg.qr(rng.standard_normal((WIDTH, 2)))[0].T
    angle = turn * steps / (STEPS - 1)
    size = strength * growth ** (steps / (STEPS - 1))
    truth = size[:, None] * (np.cos(angle)[:, None] * axes[0] + np.sin(angle)[:, None] * axes[1])
    return features + np.where(labels[:, None], truth, 0.0), labels, steps, episodes


def analysed(seed, **planted):
    return evolution.evolution(*games(seed, **planted), evolution.Options(seed=seed, **OPTIONS))


@pytest.fixture(scope="module")
def turning():
    return [analysed(seed, strength=4.0, turn=np.pi / 2) for seed in range(10)]


@pytest.fixture(scope="module")
def constant():
    return [analysed(seed, strength=4.0) for seed in range(10)]


def by_distance(matrices):
    """The mean over pairs of steps of each distance, and over analyses."""
    mean = np.nanmean(np.stack(matrices), axis=0)
    return np.array([np.diagonal(mean, offset).mean() for offset in range(STEPS)])


def test_a_planted_direction_stands_at_every_step(turning, constant):
    assert np.mean([one.stands for one in turning + constant]) > 0.95


def test_a_direction_that_turns_is_said_to(turning):
    assert sum("drift" in one.changes for one in turning) >= 9
    assert sum("spread" in one.changes for one in turning) >= 9


def test_corrected_cosines_are_those_of_the_planted_angles(turning):
    angles = np.pi / 2 * np.arange(STEPS) / (STEPS - 1)
    found = by_distance([one.corrected for one in turning])
    np.testing.assert_allclose(found, np.cos(angles), atol=0.12)
    assert np.all(np.diff(found)[1:] < 0)


def test_across_halves_a_direction_that_turns_falls_below_its_ceiling_and_a_constant_one_does_not(turning, constant):
    for found, falls in ((turning, True), (constant, False)):
        ceiling, *between = by_distance([one.half_cosine for one in found])
        assert 0.3 < ceiling < 0.8
        assert (between[-1] < ceiling / 2) == falls
        assert (max(abs(value - ceiling) for value in between) < 0.06) != falls


def test_plain_cosines_would_call_a_constant_direction_changed(constant):
    plain, corrected = (by_distance([getattr(one, name) for one in constant]) for name in ("cosine", "corrected"))
    assert plain[1:].max() < 0.9
    np.testing.assert_allclose(corrected, 1.0, atol=0.1)


def test_steps_that_share_episodes_have_cosines_above_zero_without_any_signal():
    # This is why cosines are taken across halves: halves share no episodes.
    nothing = [analysed(seed) for seed in range(20)]
    assert by_distance([one.cosine for one in nothing])[1] > 0.08
    assert abs(by_distance([one.half_cosine for one in nothing])[1]) < 0.03
    null = by_distance([one.cosine_null for one in nothing])
    np.testing.assert_allclose(null[1:4], by_distance([one.cosine for one in nothing])[1:4], atol=0.06)


def test_a_direction_that_only_grows_changes_its_norm_but_does_not_drift():
    growing = [analysed(seed, strength=2.5, growth=4.0) for seed in range(10)]
    assert sum("norms" in one.changes for one in growing) >= 9
    assert np.nanmean([one.corrected for one in growing]) == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_a_constant_direction_is_called_changed_in_8_of_100_analyses_at_most():
    assert sum(bool(analysed(seed, strength=3.0).changes) for seed in range(100)) <= 8


@pytest.mark.slow
def test_noise_is_called_a_signal_in_8_of_100_analyses_at_most():
    assert sum(analysed(seed).signal for seed in range(100)) <= 8
