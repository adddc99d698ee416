import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from sonde.circuits import graph, rank, scores
from sonde.core import errors

SMALL = graph.Graph(2, 4, 4)
GROUPED = graph.Graph(3, 4, 2)


def scored(values, whole=SMALL, level="edge", method="mine"):
    cost = scores.Cost(1.0, 1.0, 0.1)
    return scores.Scores(
        graph=whole, method=method, level=level, values=values, metric="kl", ablation="resample", cost=cost
    )


def drawn(whole=SMALL, seed=0, rounded=False):
    values = np.random.default_rng(seed).standard_normal(whole.allowed.shape)
    return np.where(whole.allowed, values.round() if rounded else values, np.nan)


def chosen(whole=SMALL, seed=1, share=0.1):
    return graph.Circuit(whole, (np.random.default_rng(seed).random(whole.allowed.shape) < share) & whole.allowed)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("whole", [SMALL, GROUPED])
@pytest.mark.parametrize("view", ["split", "merged"])
def test_the_exact_auroc_of_edges_is_scikit_learns_also_with_ties(whole, rounded, view):
    values, truth = drawn(whole, rounded=rounded), chosen(whole)
    found = rank.of_scores(scored(values, whole), truth, view=view)
    size, flags = np.abs(values), truth.edges
    if view == "merged":
        size, flags = whole.merge(size), whole.merge(flags)
    there = ~np.isnan(size)
    assert found.auroc == pytest.approx(sklearn_metrics.roc_auc_score(flags[there], size[there]))
    assert found.n_true + found.n_false == (whole.merged() if view == "merged" else whole).n_edges
    assert f"edge level, {view} view" in str(found)


def test_a_tie_counts_half_exactly_and_nothing_pessimistically():
    flat = np.where(SMALL.allowed, 1.0, np.nan)
    found = rank.of_scores(scored(flat), chosen())
    assert found.auroc == pytest.approx(0.5)
    assert found.pessimistic == 0.0


def test_without_ties_both_areas_are_the_same():
    found = rank.of_scores(scored(drawn()), chosen())
    assert found.pessimistic == pytest.approx(found.auroc)


def test_scores_that_put_the_true_edges_first_have_an_auroc_of_one_whatever_their_sign():
    truth = chosen()
    found = rank.of_scores(scored(np.where(SMALL.allowed, np.where(truth.edges, -2.0, 0.5), np.nan)), truth)
    assert found.auroc == found.pessimistic == 1.0


def test_nodes_are_judged_by_the_edges_that_leave_them_and_the_input_is_left_out():
    truth = graph.Circuit.of(SMALL, ["input->a0.h1<q>", "input->a1.h3<v>", "a0.h1->a1.h3<k>", "a1.h3->logits"])
    values = np.zeros(len(SMALL.sources))
    values[0] = np.nan
    for name in ("a0.h1", "a1.h3", "m0"):
        values[SMALL.sources.index(name)] = 1.0
    values[SMALL.sources.index("m0")] = 2.0
    found = rank.of_scores(scored(values, level="node"), truth, level="node")
    assert (found.n_true, found.n_false) == (2, 8)
    assert found.auroc == pytest.approx(7 / 8)
    assert "node level" in str(found)


def test_edges_of_a_method_that_scores_nodes_count_as_their_weaker_end():
    values = np.zeros(len(SMALL.sources))
    values[SMALL.sources.index("a0.h1")] = values[SMALL.sources.index("a1.h3")] = values[0] = 1.0
    truth = graph.Circuit.of(SMALL, ["a0.h1->a1.h3<k>"])
    assert rank.of_scores(scored(values, level="node"), truth).auroc > 0.9


def test_a_set_of_circuits_gives_the_staircase_over_those_that_no_other_beats():
    truth = graph.Circuit.of(SMALL, SMALL.edges[:10])
    good = graph.Circuit.of(SMALL, SMALL.edges[:5])
    large = graph.Circuit.of(SMALL, SMALL.edges[:60])
    bad = graph.Circuit.of(SMALL, SMALL.edges[100:])
    found = rank.of_circuits([bad, large, good], truth, method="acdc")
    assert found.auroc is None
    assert found.pessimistic == pytest.approx(0.5 * 0.5 + 0.5 * 1.0)
    assert rank.of_circuits([bad], truth).pessimistic == 0.0
    assert rank.of_circuits([chosen()], chosen(), level="node", view="merged").pessimistic == 1.0


def test_a_figure_shows_one_level_and_view_and_says_which():
    truth = chosen()
    both = [rank.of_scores(scored(drawn(seed=seed), method=f"m{seed}"), truth) for seed in (0, 1)]
    drawn_chart = rank.chart(both)
    assert "edge level, split view" in drawn_chart.caption
    assert [series.name.split()[0] for series in drawn_chart.series] == ["m0", "m1"]
    for one, series in zip(both, drawn_chart.series, strict=True):
        assert series.values[-1] == 1.0
        assert abs(np.trapezoid(series.values, drawn_chart.x) - one.auroc) < 0.02
    with pytest.raises(errors.AnalysisError, match="one level and one view"):
        rank.chart([both[0], rank.of_scores(scored(drawn()), truth, view="merged")])


def test_the_result_is_json():
    told = rank.of_scores(scored(drawn()), chosen()).to_json()
    assert told["view"] == "split"
    assert told["false_rate"][0] == 0.0
    assert told["true_rate"][-1] == 1.0


def test_what_cannot_be_judged_is_refused():
    found = scored(drawn())
    with pytest.raises(errors.AnalysisError, match="both true and false"):
        rank.of_scores(found, graph.Circuit.empty(SMALL))
    with pytest.raises(errors.RequestError, match="different graphs"):
        rank.of_scores(found, chosen(GROUPED))
    with pytest.raises(errors.RequestError, match="at least one"):
        rank.of_circuits([], chosen())
