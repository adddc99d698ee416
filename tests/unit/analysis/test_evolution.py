"""How directions change over steps: figures, words, and bad input."""

import json

import numpy as np
import pytest

from sonde.analysis import directions, evolution, step_noise
from sonde.core import errors

FEW = evolution.Options(permutations=199, splits=20, seed=3)


def rows(count=24, length=4, width=6, strength=4.0, seed=0):
    """Episodes with one strong direction at every step."""
    rng = np.random.default_rng(seed)
    episodes, steps = np.repeat(np.arange(count), length), np.tile(np.arange(length), count)
    labels = rng.random(count * length) < 0.5
    features = rng.standard_normal((count * length, width))
    features[:, 0] += strength * labels
    return features.astype(np.float32), labels, steps, episodes


@pytest.fixture(scope="module")
def found():
    return evolution.evolution(*rows(), FEW)


def test_vectors_norms_and_cosines_are_those_of_the_steps_own_directions(found):
    features, labels, steps, _ = rows()
    own = directions.per_step(features, labels, steps, site="blocks.0.hook_resid_post")
    for index, direction in enumerate(own.directions.values()):
        np.testing.assert_allclose(found.vectors[index], direction.vector, atol=1e-5)
        assert found.norm[index] == pytest.approx(direction.norm, rel=1e-5)
        assert (found.positive[index], found.negative[index]) == (direction.positive, direction.negative)
    first, last = found.vectors[0], found.vectors[3]
    assert found.cosine[0, 3] == pytest.approx(first @ last / np.linalg.norm(first) / np.linalg.norm(last))
    np.testing.assert_allclose(np.diagonal(found.cosine), 1.0)
    assert found.common_norm == pytest.approx(np.linalg.norm(found.vectors.mean(axis=0)))


def test_the_ceiling_is_the_mean_cosine_between_halves_of_the_episodes():
    features, labels, steps, episodes = rows(strength=1.0)
    found = evolution.evolution(features, labels, steps, episodes, FEW)
    rng = np.random.default_rng(9)
    cosines = []
    for _ in range(150):
        half = directions.split_episodes(episodes, 0.5, rng)
        one, other = (
            directions.per_step(features[part], labels[part], steps[part], site="hook_embed", least=1).directions[2]
            for part in (half, ~half)
        )
        cosines.append(one.vector @ other.vector / one.norm / other.norm)
    assert found.ceiling[2] == pytest.approx(np.mean(cosines), abs=0.1)
    assert np.mean(cosines) < 0.9


def test_a_strong_constant_direction_stands_at_every_step_and_does_not_change(found):
    assert found.stands.all()
    assert found.signal
    assert found.changes == ()
    assert np.nanmean(found.corrected) == pytest.approx(1.0, abs=0.03)
    assert (found.norm > found.norm_null).all()
    words = " ".join(found.sentences())
    assert "at 4 of 4 steps after correction" in words
    assert words.count("within noise") == 4


def test_without_a_signal_nothing_is_said_about_change():
    nothing = evolution.evolution(*rows(strength=0.0), FEW)
    assert not nothing.signal
    assert nothing.changes == ()
    assert np.isnan(nothing.corrected).all()
    assert nothing.sentences()[-1] == "No direction stands, so nothing is said about how directions change."


def test_the_path_shows_the_vectors_and_its_axes_what_they_explain(found):
    centred = found.vectors - found.vectors.mean(axis=0)
    whole = (centred**2).sum()
    assert found.path.shape == (4, 2)
    np.testing.assert_allclose((found.path**2).sum(axis=0) / whole, found.explained)
    assert found.explained[0] >= found.explained[1] > 0
    assert found.explained.sum() <= found.explained_null <= 1


def test_p_values_are_never_zero_and_count_the_data_themselves(found):
    assert (found.norm_p >= 1 / 200).all()
    # Holm over four steps and the common direction: the smallest of equal p-values is multiplied by five.
    assert found.norm_p.min() == pytest.approx(5 / 200)
    assert found.common_p == pytest.approx(5 / 200)


def test_the_same_seed_gives_the_same_bytes_and_rows_may_come_in_any_order():
    features, labels, steps, episodes = rows(strength=1.0)
    written = [
        json.dumps(evolution.evolution(features, labels, steps, episodes, FEW).to_json(), allow_nan=False)
        for _ in range(2)
    ]
    assert written[0] == written[1]
    order = np.random.default_rng(0).permutation(len(labels))
    mixed = evolution.evolution(features[order], labels[order], steps[order], episodes[order], FEW)
    np.testing.assert_allclose(mixed.norm_p, json.loads(written[0])["norm_p"])
    np.testing.assert_allclose(mixed.half_cosine, json.loads(written[0])["half_cosine"])


def test_json_has_every_figure_and_none_for_what_cannot_be_had():
    found = evolution.evolution(*rows(strength=0.0), FEW)
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["corrected"] == [[None] * 4] * 4
    assert told["options"]["permutations"] == 199
    assert set(evolution.DERIVED) | {"steps", "half_cosine", "change_p", "sentences"} <= set(told)
    assert told["stands"] == [False] * 4


def test_steps_with_too_few_rows_are_left_out_and_named():
    features, labels, steps, episodes = rows()
    labels = labels | (steps == 1)
    found = evolution.evolution(features, labels, steps, episodes, FEW)
    assert found.steps == (0, 2, 3)
    assert list(found.left_out) == [1]
    assert "1 steps are left out: too few rows on a side, or all rows alike." in found.sentences()


@pytest.mark.parametrize(("length", "tested"), [(1, set()), (2, {"spread", "norms"}), (3, set(step_noise.CHANGES))])
def test_with_few_steps_only_what_can_be_tested_is(length, tested):
    found = evolution.evolution(*rows(length=length), FEW)
    assert {name for name, p in found.change_p.items() if np.isfinite(p)} == tested
    assert np.isfinite(found.path).all() == (length == 3)
    assert sum(sentence.startswith("Change") for sentence in found.sentences()) == len(tested)


def test_features_that_do_not_vary_give_no_direction():
    _, labels, steps, episodes = rows()
    with pytest.raises(errors.AnalysisError, match="rows are all alike"):
        evolution.evolution(np.ones((len(labels), 3)), labels, steps, episodes, FEW)


def test_a_step_at_which_nothing_varies_is_no_change_but_left_out():
    """The first prompt of a game is the same for all: a direction of length 0 there would look like a change of norms."""
    features, labels, steps, episodes = rows()
    features[steps == steps.min()] = 1.0
    found = evolution.evolution(features, labels, steps, episodes, FEW)
    assert steps.min() not in found.steps
    assert list(found.left_out) == [steps.min()]


def test_what_all_rows_have_in_common_makes_no_difference(found):
    features, labels, steps, episodes = rows()
    moved = evolution.evolution(features + np.float32(1000.0), labels, steps, episodes, FEW)
    np.testing.assert_allclose(moved.vectors, found.vectors, atol=1e-3)
    np.testing.assert_allclose(moved.norm_p, found.norm_p)


def test_no_step_with_both_sides_is_an_error_that_says_what_there_was():
    features, labels, steps, episodes = rows()
    with pytest.raises(errors.AnalysisError, match=r"no step has a direction.*24 rows labelled True and 0 False"):
        evolution.evolution(features, np.ones_like(labels), steps, episodes, FEW)


def test_permutations_too_few_to_show_anything_are_an_error_that_says_how_many_it_takes():
    with pytest.raises(errors.AnalysisError, match=r"98 permutations cannot show anything at 4 steps.*at least 99"):
        evolution.evolution(*rows(), evolution.Options(permutations=98))
    assert evolution.evolution(*rows(), evolution.Options(permutations=99, splits=4)).stands.all()


def test_a_step_whose_halves_lack_a_side_has_no_ceiling_but_the_others_do():
    features, labels, steps, episodes = rows(count=12)
    labels = np.where(steps == 0, episodes == 0, labels)
    found = evolution.evolution(
        features, labels, steps, episodes, evolution.Options(least=1, permutations=199, splits=20)
    )
    assert np.isnan(found.ceiling[0])
    assert np.isfinite(found.ceiling[1:]).all()
