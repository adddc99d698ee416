"""What probes promise on small data: folds by episode, honest baselines, reasons instead of nan, one seed one result."""

import dataclasses
import json

import numpy as np
import pytest

from sonde.analysis import baselines, examples, held_out, nested, permutation, probes
from sonde.core import errors

SETTINGS = probes.Settings(folds=3, inner_folds=2, least=3, shuffles=2, deals=49)
WIDTH = 5


def make(seed=0, *, episodes=15, length=5, texts=None):
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(episodes), length)
    steps = np.tile(np.arange(length), episodes)
    labels = rng.random(len(owners)) < 0.45
    return probes.Examples(labels, owners, steps, texts=texts, before=texts)


def features_of(rows, strength=0.0, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(rows), WIDTH)) + strength * rows.labels[:, None]


def test_no_episode_is_in_two_folds_and_each_fold_has_both_classes():
    rows = make()
    folds = held_out.assign_folds(rows, 3, seed=0)
    assert set(folds) == {0, 1, 2}
    assert all(len(set(folds[rows.episodes == one])) == 1 for one in range(15))
    assert all(0 < rows.labels[folds == one].mean() < 1 for one in range(3))


def test_scores_of_a_row_come_from_a_fit_that_never_saw_its_episode():
    rows = make()
    folds = held_out.assign_folds(rows, 3, seed=0)
    seen = []

    def spy(train, test):
        seen.append(set(rows.episodes[train]) & set(rows.episodes[test]))
        return np.zeros(len(test))

    held_out.across(spy, np.arange(len(rows)), folds)
    assert seen == [set()] * 3


def test_features_are_standardised_inside_the_folds():
    rows = make()
    features = features_of(rows, 1.0)
    one = probes.cross_validate(features, rows, SETTINGS)
    other = probes.cross_validate(features * np.array([1, 10, 1e3, 1e-3, 5]) + 7, rows, SETTINGS)
    assert other.scored.auroc.value == pytest.approx(one.scored.auroc.value, abs=1e-6)
    train, test = np.arange(50), np.arange(50, 75)
    score = held_out.linear(features, rows.labels, 0.01)
    before = score(train, test[:5])
    features[test[5:]] += 1000  # other test rows must not matter
    np.testing.assert_array_equal(score(train, test[:5]), before)


def test_a_cell_by_itself_reports_what_it_rests_on():
    rows = make()
    found = probes.cross_validate(features_of(rows, 2.0), rows, SETTINGS)
    assert (found.n, found.positives) == (75, int(rows.labels.sum()))
    assert found.scored.auroc.clusters == 15
    assert found.scored.auroc.low > 0.7
    assert found.p == found.adjusted == 1 / 50
    assert found.selectivity == found.scored.auroc.value - found.control


def test_the_least_squares_probe_ranks_nearly_as_the_logistic_one():
    rows = make(episodes=40)
    folds = held_out.assign_folds(rows, 3, seed=0)
    for width in (4, 300):  # fewer and more features than training rows
        features = np.random.default_rng(2).normal(size=(len(rows), width)) + 0.3 * rows.labels[:, None]
        both = [
            held_out.across(make_scorer(features, rows.labels, 0.01), np.arange(len(rows)), folds)
            for make_scorer in (held_out.linear, held_out.quick)
        ]
        for fold in range(3):
            assert np.corrcoef(*(one[folds == fold] for one in both))[0, 1] > 0.99


def test_the_first_deal_is_the_truth_and_others_move_whole_episodes():
    rows = make()
    dealt = permutation.deals(rows, 30, seed=0)
    np.testing.assert_array_equal(dealt[:, 0], rows.labels)
    sequences = {tuple(rows.labels[rows.episodes == one]) for one in range(15)}
    for deal in range(31):
        assert {tuple(dealt[rows.episodes == one, deal]) for one in range(15)} == sequences
    assert len({dealt[:, deal].tobytes() for deal in range(31)}) == 31


def test_deals_follow_steps_whatever_the_order_of_rows_and_lengths():
    owners, steps = np.array([1, 0, 0, 1, 1]), np.array([2, 1, 0, 0, 1])
    rows = probes.Examples(np.array([True, False, True, False, True]), owners, steps)
    dealt = permutation.deals(rows, 20, seed=0)
    by_step = [tuple(dealt[[3, 4, 0, 2, 1], deal]) for deal in range(21)]
    swapped = (True, False, True, False, True)  # episode 1 gets that of 0, which starts again; 0 gets that of 1
    assert set(by_step) == {(False, True, True, True, False), swapped}


def test_permutation_auroc_of_the_truth_is_that_of_the_least_squares_probe():
    rows = make()
    features, folds = features_of(rows, 0.5), held_out.assign_folds(rows, 3, seed=0)
    scores = held_out.across(held_out.quick(features, rows.labels, 0.01), np.arange(75), folds)
    expected = held_out.judge(scores, rows.labels, (rows.episodes, folds)).auroc.value
    assert permutation.aurocs(features, rows.labels[:, None], folds, 0.01)[0] == pytest.approx(expected)


def test_corrected_p_values_are_never_below_their_own():
    found = np.random.default_rng(0).normal(size=(6, 200))
    own, corrected = permutation.p_values(found)
    assert (corrected >= own).all()
    assert corrected.max() > own.max() or own.max() == 1


def test_previous_labels_go_by_step_within_the_episode_whatever_the_order_of_rows():
    rows = probes.Examples(np.array([False, True, True, False]), np.array([1, 0, 0, 1]), np.array([3, 1, 0, 0]))
    exists, last, mean = rows.previous()
    assert exists.tolist() == [True, True, False, False]
    assert last.tolist() == [False, True, False, False]
    assert mean.tolist() == [0.0, 1.0, 0.5, 0.5]


def test_each_baseline_finds_what_only_it_can_know():
    rng = np.random.default_rng(3)
    owners, steps = np.repeat(np.arange(30), 6), np.tile(np.arange(6), 30)
    by_step = probes.Examples(steps >= 3, owners, steps)
    flips = (steps + rng.integers(2, size=30)[owners]) % 2 == 0
    coin = rng.random(180) < 0.5
    words = tuple("is it alive ?" if one else "the moon ." for one in coin)
    cases = (("step index", by_step), ("previous label", probes.Examples(flips, owners, steps)))
    for name, rows in (*cases, ("bag of words", probes.Examples(coin, owners, steps, before=words))):
        folds = held_out.assign_folds(rows, 3, seed=0)
        aurocs = {
            other: held_out.judged(one, rows, (np.arange(180), folds), SETTINGS).auroc.value
            for other, one in baselines.scorers(rows, "before", WIDTH, SETTINGS).items()
        }
        assert aurocs[name] > 0.8, name
        assert aurocs["majority"] == 0.5
        assert all(value < aurocs[name] - 0.05 for other, value in aurocs.items() if other not in (name, "history"))
        assert aurocs["history"] > aurocs[name] - 0.05 or name == "bag of words"


def test_the_bag_of_words_takes_the_text_of_its_moment_and_is_absent_without_one():
    rows = make(texts=("yes",) * 75)
    assert "bag of words" in baselines.scorers(rows, "after", 2, SETTINGS)
    assert "bag of words" not in baselines.scorers(dataclasses.replace(rows, texts=None), "after", 2, SETTINGS)
    blank = make(texts=("",) * 75)
    scorer = baselines.scorers(blank, "before", 2, SETTINGS)["bag of words"]
    assert not scorer(np.arange(50), np.arange(50, 75)).any()


def test_a_cell_with_too_few_rows_of_a_class_is_skipped_with_the_reason():
    rows = make()
    rows.labels[rows.steps == 4] = False
    cells = {probes.Cell(0, "last_prompt", step): features_of(rows) for step in (None, 1, 4)}
    found = probes.sweep(cells, rows, SETTINGS)
    assert set(found.cells) == {probes.Cell(0, "last_prompt"), probes.Cell(0, "last_prompt", 1)}
    assert found.skipped[probes.Cell(0, "last_prompt", 4)].startswith("0 rows of a class in a training fold")


def test_cells_are_corrected_within_their_moment_only():
    rows = make()
    signal, noise = features_of(rows, 2.0), features_of(rows, seed=9)
    before = {probes.Cell(layer, "last_prompt"): noise for layer in range(3)}
    alone = probes.sweep(before, rows, SETTINGS)
    both = probes.sweep(before | {probes.Cell(0, "last_generated"): signal}, rows, SETTINGS)
    assert {cell: both.cells[cell] for cell in before} == dict(alone.cells)
    assert set(both.baselines) == {("before", None), ("after", None)}


def test_the_same_seed_gives_the_same_bytes_and_progress_reaches_the_end():
    rows = make(texts=("is it big ?", "no", "moon") * 25)
    cells = {probes.Cell(layer, "last_prompt"): features_of(rows, layer, seed=layer) for layer in range(2)}
    seen = []
    once, again = (
        json.dumps([probes.sweep(cells, rows, SETTINGS, progress=lambda *at: seen.append(at)).to_json(),
                    probes.nested(cells, rows, SETTINGS).to_json()])
        for _ in range(2)
    )  # fmt: skip
    assert once == again
    assert seen[-1] == (2, 2)


def test_ties_go_to_the_earliest_layer_and_a_lucky_small_cell_does_not_win():
    def one(value, error):
        return nested.jackknife.Jackknife(value, np.array([value - error, value + error]), 9, 9, True)

    cells = [probes.Cell(layer, "last_prompt", step) for layer, step in ((1, None), (2, None), (3, 7), (0, None))]
    values = dict(zip(cells, (one(0.78, 0.03), one(0.8, 0.03), one(0.95, 0.4), one(0.5, 0.03)), strict=True))
    assert nested._earliest(values) == cells[0]


def test_a_step_that_only_held_out_episodes_reach_is_not_chosen_and_does_no_harm():
    rows = make()
    steps = rows.steps.copy()
    steps[4] = 40  # one episode goes on longer
    rows = dataclasses.replace(rows, steps=steps)
    cells = {probes.Cell(0, "last_prompt", step): features_of(rows, 1.0) for step in (None, 40)}
    assert set(probes.nested(cells, rows, SETTINGS).choices) == {probes.Cell(0, "last_prompt")}


def test_a_nested_analysis_says_why_it_claims_nothing():
    rows = make()
    found = probes.nested({probes.Cell(0, "mean_prompt"): features_of(rows)}, rows, SETTINGS)
    assert not found.claim
    assert "not above chance" in found.why
    assert found.choices == (probes.Cell(0, "mean_prompt"),) * 3
    assert found.selectivity == found.scored.auroc.value - found.control


def bad(change):
    rows, cell = make(), probes.Cell(0, "last_prompt")
    features = features_of(rows)
    given = {"rows": rows, "cells": {cell: features}, "settings": SETTINGS}
    change(given, features)
    return given


def one_class(given, features):
    given["rows"] = dataclasses.replace(given["rows"], labels=np.ones(75, dtype=bool))


def few_episodes(given, features):
    given["settings"] = dataclasses.replace(SETTINGS, folds=16)


def unreached(given, features):
    given["cells"] = {probes.Cell(0, "last_prompt", 9): features}


def short(given, features):
    given["cells"] = {probes.Cell(0, "last_prompt"): features[:70]}


def broken(given, features):
    features[4, 2] = np.nan


def unknown(given, features):
    given["cells"] = {probes.Cell(0, "last_promt"): features}


def nothing(given, features):
    given["cells"] = {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_class, "all 75 rows are invalid.*collect more"),
        (few_episodes, "15 episodes cannot fill 16 folds.*set folds=15"),
        (unreached, "no episode reached step 9; rows exist for steps 0 to 4"),
        (short, "have 70 rows, the examples 75"),
        (broken, "nan or infinite in 1 of 75 rows, first in row 4"),
        (unknown, "did you mean 'last_prompt'"),
        (nothing, "no cells to probe"),
    ],
)
@pytest.mark.parametrize("function", [probes.sweep, probes.nested])
def test_data_that_cannot_be_probed_is_refused_and_the_message_says_what_to_do(function, change, message):
    given = bad(change)
    with pytest.raises(errors.AnalysisError, match=message):
        function(given["cells"], given["rows"], given["settings"])


def test_columns_of_different_length_and_repeated_steps_are_refused():
    labels, numbers = np.array([True, False]), np.array([0, 1])
    with pytest.raises(errors.AnalysisError, match="texts has 1 rows, labels has 2"):
        examples.Examples(labels, numbers, numbers, texts=("a",))
    with pytest.raises(errors.AnalysisError, match="episode 0 has step 1 more than once"):
        examples.Examples(labels, numbers * 0, numbers * 0 + 1)


def test_a_choice_between_before_and_after_speaking_is_refused():
    rows = make()
    cells = {probes.Cell(0, pooling): features_of(rows) for pooling in ("last_prompt", "last_generated")}
    with pytest.raises(errors.AnalysisError, match="answers neither question"):
        probes.nested(cells, rows, SETTINGS)


def test_a_choice_without_any_usable_cell_is_refused():
    rows = make()
    with pytest.raises(errors.AnalysisError, match=r"no cell has enough rows.*lower `least`"):
        probes.nested(
            {probes.Cell(0, "last_prompt", 1): features_of(rows)}, rows, dataclasses.replace(SETTINGS, least=30)
        )
