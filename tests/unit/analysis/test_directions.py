"""Directions and the controls they have to beat."""

import json

import numpy as np
import pytest

import sonde
from sonde.analysis import directions
from sonde.core import errors

SITE = "blocks.1.hook_resid_post"


def planted(rows=60, width=8, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 3 > 0
    truth = np.zeros(width)
    truth[2] = 2.0
    features = (rng.standard_normal((rows, width)) + np.where(labels[:, None], truth, 0.0)).astype(np.float32)
    return features, labels, truth


def game(lengths, seed=0):
    """Labels with runs: each episode has a switch somewhere."""
    rng = np.random.default_rng(seed)
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    steps = np.concatenate([np.arange(length) for length in lengths])
    switch = rng.integers(0, max(lengths), len(lengths))
    return steps >= switch[episodes], episodes, steps


# --- the direction ---


def test_a_direction_is_the_mean_of_true_rows_less_that_of_false_ones():
    features, labels, _ = planted()
    found = directions.contrastive(features, labels, site=SITE)
    np.testing.assert_allclose(found.vector, features[labels].mean(0) - features[~labels].mean(0), rtol=1e-5)
    assert (found.positive, found.negative, found.steps) == (40, 20, None)
    assert found.norm == pytest.approx(float(np.linalg.norm(found.vector)))
    assert found.vector @ directions.contrastive(features, ~labels, site=SITE).vector < 0


def test_a_direction_keeps_a_copy_nobody_can_change():
    vector = np.ones(4)
    found = directions.Direction(SITE, vector)
    vector[:] = 7.0
    assert found.vector.tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="read-only"):
        found.vector[0] = 3.0


def test_a_side_with_too_few_rows_gives_no_direction_and_says_how_many_there_were():
    features, labels, _ = planted()
    with pytest.raises(errors.AnalysisError, match="40 rows labelled True and 20 False, expected at least 21"):
        directions.contrastive(features, labels, site=SITE, least=21)
    with pytest.raises(errors.AnalysisError, match=r"60 rows labelled True and 0 False.*collect more"):
        directions.contrastive(features, np.ones(60, dtype=bool), site=SITE, least=0)


def test_a_direction_at_no_site_or_with_no_numbers_is_refused():
    with pytest.raises(errors.SiteError):
        directions.Direction("blocks.1.resid_post", np.ones(3))
    with pytest.raises(errors.InterventionError, match="not finite"):
        directions.Direction(SITE, np.array([1.0, np.nan]))


def test_each_step_has_its_own_direction_and_those_without_one_say_why():
    features, labels, _ = planted(90)
    steps = np.arange(90) // 30
    labels = labels | (steps == 1)
    found = directions.per_step(features, labels, steps, site=SITE)
    assert list(found.directions) == [0, 2]
    assert found.left_out == {1: "30 rows labelled True and 0 False, expected at least 5 of each"}
    alone = directions.contrastive(features[60:], labels[60:], site=SITE)
    np.testing.assert_array_equal(found.directions[2].vector, alone.vector)
    assert [spec.steps for spec in found.steer(2.0)] == [(0,), (2,)]


def test_a_step_that_everybody_meets_in_the_same_state_has_no_direction():
    """The first prompt of a game is the same whatever the secret, and so is the model's state before it speaks."""
    features, labels, _ = planted(60)
    steps = np.arange(60) // 30
    features[steps == 0] = features[0] * (1 + 1e-7 * np.arange(30)[:, None])
    found = directions.per_step(features, labels, steps, site=SITE)
    assert list(found.directions) == [1]
    assert found.left_out == {0: "its 30 rows are all alike"}


# --- as an intervention, and on disk ---


def test_steering_adds_strength_times_the_vector_where_and_when_it_is_meant_to():
    found = directions.Direction(SITE, np.arange(3.0), steps=(4,))
    spec = found.steer(-2.0, positions=[-1], phase="prefill")
    assert isinstance(spec, sonde.Steer)
    assert (spec.site, spec.strength, spec.steps, spec.positions, spec.phase) == (SITE, -2.0, (4,), (-1,), "prefill")
    np.testing.assert_array_equal(spec.direction, found.vector)
    assert found.steer(steps=None).steps is None
    assert found.steer(steps=[1, 2]).steps == (1, 2)


def test_steering_changes_the_last_prompt_token_by_just_that_much(llama):
    found = directions.Direction(SITE, np.linspace(-1, 1, llama.cfg.d_model))
    plain = llama.run_with_cache("hello there", SITE)[1][SITE]
    steered = llama.run_with_cache("hello there", SITE, interventions=[found.steer(3.0, positions=[-1])])[1][SITE]
    change = (steered - plain)[0].numpy()
    np.testing.assert_allclose(change[-1], 3.0 * found.vector, atol=1e-5)
    assert not change[:-1].any()


def test_a_direction_comes_back_from_json_bit_by_bit():
    features, labels, _ = planted()
    for steps in (None, (3, 4)):
        found = directions.contrastive(features, labels, site=SITE, steps=steps)
        again = directions.Direction.from_json(json.loads(json.dumps(found.to_json())))
        assert again.vector.tobytes() == found.vector.tobytes()
        assert (again.site, again.positive, again.negative, again.steps) == (SITE, 40, 20, steps)


# --- controls ---


def test_controls_have_the_norm_the_site_and_the_steps_of_what_they_control():
    features, labels, _ = planted()
    found = directions.contrastive(features, labels, site=SITE, steps=(1,))
    rng = np.random.default_rng(0)
    controls = [
        *directions.random_directions(found, 3, rng),
        directions.orthogonal_direction(found, rng),
        directions.orthogonal_direction(found, rng, within=features),
    ]
    for control in controls:
        assert control.norm == pytest.approx(found.norm, rel=1e-5)
        assert (control.site, control.steps, control.positive) == (SITE, (1,), 0)
    assert len({control.vector.tobytes() for control in controls}) == 5


def test_controls_do_not_point_where_the_direction_points():
    features, labels, _ = planted(600, width=200)
    found = directions.contrastive(features, labels, site=SITE)
    rng = np.random.default_rng(0)
    drawn = [one.vector @ found.vector / found.norm**2 for one in directions.random_directions(found, 50, rng)]
    assert abs(np.mean(drawn)) < 0.05
    assert max(map(abs, drawn)) < 0.5
    mixed = [
        directions.shuffled_direction(features, labels, np.arange(600), rng, like=found).vector @ found.vector
        for _ in range(50)
    ]
    assert abs(np.mean(mixed) / found.norm**2) < 0.15
    for within in (None, features):
        straight = directions.orthogonal_direction(found, rng, within=within)
        assert abs(straight.vector @ found.vector) / found.norm**2 < 1e-6


def test_an_orthogonal_direction_within_features_lies_where_they_vary():
    rng = np.random.default_rng(1)
    features = rng.standard_normal((50, 10)) * np.array([5.0] * 3 + [0.0] * 7) + 100.0
    found = directions.Direction(SITE, np.eye(10)[0])
    inside = directions.orthogonal_direction(found, rng, within=features).vector
    assert np.linalg.norm(inside[1:3]) == pytest.approx(1.0, abs=1e-5)
    anywhere = directions.orthogonal_direction(found, rng).vector
    assert np.linalg.norm(anywhere[3:]) > 0.3


def test_features_that_vary_along_the_direction_only_have_nothing_orthogonal():
    features = np.outer(np.arange(5.0), np.eye(4)[1])
    with pytest.raises(errors.AnalysisError, match="nothing orthogonal"):
        directions.orthogonal_direction(
            directions.Direction(SITE, np.eye(4)[1]), np.random.default_rng(0), within=features
        )


def test_the_shuffled_direction_is_as_long_as_chance_makes_it():
    features, labels, _ = planted()
    found = directions.contrastive(features, labels, site=SITE, steps=(1,))
    control = directions.shuffled_direction(features, labels, np.arange(60), np.random.default_rng(0), like=found)
    assert (control.site, control.steps, control.positive) == (SITE, (1,), 0)
    assert 0 < control.norm < found.norm


def test_labels_that_are_the_same_in_every_episode_cannot_be_shuffled():
    features, labels, _ = planted()  # the labels repeat every three rows
    found = directions.contrastive(features, labels, site=SITE)
    with pytest.raises(errors.AnalysisError, match="20 episodes have the same labels"):
        directions.shuffled_direction(features, labels, np.arange(60) // 3, np.random.default_rng(0), like=found)


def test_the_same_seed_gives_the_same_controls():
    features, labels, _ = planted()
    found = directions.contrastive(features, labels, site=SITE)

    def drawn(seed):
        rng = np.random.default_rng(seed)
        shuffled = directions.shuffled_direction(features, labels, np.arange(60) // 4, rng, like=found)
        return [one.vector.tobytes() for one in (*directions.random_directions(found, 2, rng), shuffled)]

    assert drawn(1) == drawn(1)
    assert set(drawn(1)).isdisjoint(drawn(2))


# --- labels that change hands ---


def test_episodes_of_one_length_swap_whole_sequences_of_labels():
    labels, episodes, steps = game([6] * 8)
    order = np.random.default_rng(3).permutation(48)
    mixed = directions.permuted_labels(labels[order], episodes[order], steps[order], n=20, rng=np.random.default_rng(0))
    given = sorted(map(tuple, labels.reshape(8, 6)))
    back = np.empty_like(mixed)
    back[:, order] = mixed
    assert all(sorted(map(tuple, one.reshape(8, 6))) == given for one in back)
    assert len({one.tobytes() for one in back}) > 15


def test_every_step_keeps_its_number_of_true_labels_when_episodes_end_early():
    labels, episodes, steps = game([6, 2, 6, 4, 6, 1, 5])
    mixed = directions.permuted_labels(labels, episodes, steps, n=50, rng=np.random.default_rng(0))
    for step in range(6):
        assert set(mixed[:, steps == step].sum(axis=1)) == {labels[steps == step].sum()}


def test_runs_stay_runs_where_episodes_end_early():
    labels, episodes, steps = game([8] * 24 + [3] * 6, seed=4)
    mixed = directions.permuted_labels(labels, episodes, steps, n=200, rng=np.random.default_rng(0))
    inside = episodes[1:] == episodes[:-1]

    def switches(rows):
        return ((rows[..., 1:] != rows[..., :-1]) & inside).sum(axis=-1)

    row_by_row = np.random.default_rng(0).permuted(np.tile(labels, (200, 1)), axis=1)
    assert switches(mixed).mean() < switches(labels) + 3
    assert switches(row_by_row).mean() > 3 * switches(mixed).mean()


def test_every_episode_gets_its_labels_from_any_other_equally_often():
    labels, episodes, steps = np.array([True, False, False, False, False, False]), np.arange(6), np.zeros(6, dtype=int)
    mixed = directions.permuted_labels(labels, episodes, steps, n=6000, rng=np.random.default_rng(0))
    assert np.abs(mixed.mean(axis=0) - 1 / 6).max() < 0.02


def test_without_steps_the_order_of_rows_in_an_episode_counts():
    labels, episodes, steps = game([5] * 6)
    one, other = (
        directions.permuted_labels(labels, episodes, given, n=3, rng=np.random.default_rng(0))
        for given in (None, steps)
    )
    np.testing.assert_array_equal(one, other)


def test_two_rows_of_one_step_of_an_episode_are_refused():
    labels, episodes, steps = game([3, 3])
    steps = np.where(steps == 2, 1, steps)
    with pytest.raises(errors.AnalysisError, match="step 1 of episode 0 has several rows"):
        directions.permuted_labels(labels, episodes, steps, n=1, rng=np.random.default_rng(0))


# --- training episodes ---


def test_a_split_takes_whole_episodes_and_leaves_some_on_each_side():
    episodes = np.array(["c", "a", "b", "a", "c", "d", "e", "b"])
    for share, expected in ((0.6, 3), (0.01, 1), (0.99, 4)):
        training = directions.split_episodes(episodes, share, np.random.default_rng(0))
        assert set(episodes[training]).isdisjoint(episodes[~training])
        assert len(set(episodes[training])) == expected


@pytest.mark.parametrize(("episodes", "share"), [([1, 1, 1], 0.5), ([1, 2], 0.0), ([1, 2], 1.0)])
def test_a_split_that_leaves_a_side_empty_is_refused(episodes, share):
    with pytest.raises(errors.AnalysisError, match="cannot be split"):
        directions.split_episodes(np.array(episodes), share, np.random.default_rng(0))
