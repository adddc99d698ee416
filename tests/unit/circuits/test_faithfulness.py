import numpy as np
import pytest
import torch

import sonde
from sonde.circuits import faithfulness, graph, pairs, running, scores, search
from sonde.core import errors

TEXTS = [
    ("abcab", "abdab"),
    ("xyzxy", "xywxy"),
    ("12312", "12412"),
    ("qrsqr", "qrtqr"),
    ("mnomn", "mnpmn"),
    ("efgef", "efhef"),
]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(faithfulness, "DRAWS", 200)


@pytest.fixture(scope="module")
def judge():
    with sonde.load("tiny-plain") as model:
        drafts = [
            pairs.Pair(
                list(one.encode()), list(two.encode()), (one.encode()[2],), (two.encode()[2],), one, f"c{at // 2}"
            )
            for at, (one, two) in enumerate(TEXTS)
        ]
        yield faithfulness.Judge(running.Runner(model, pairs.Pairs.of(drafts), "kl"))


@pytest.fixture(scope="module")
def exact(judge):
    """What the loss of each edge by itself costs, by brute force."""
    whole = judge.runner.graph
    masks = []
    for source, destination in np.argwhere(whole.allowed):
        mask = whole.allowed.copy()
        mask[source, destination] = False
        masks.append(mask)
    with torch.no_grad():
        rises = judge.runner.metric_of(np.stack(masks)).mean(dim=-1).double().numpy()
    values = np.full(whole.allowed.shape, np.nan)
    values[whole.allowed] = rises
    return scored(whole, values, "brute")


def scored(whole, values, method):
    cost = scores.Cost(1.0, 1.0, 0.1)
    values = np.where(whole.allowed, values, np.nan)
    return scores.Scores(
        graph=whole, method=method, level="edge", values=values, metric="kl", ablation="resample", cost=cost
    )


def control(whole, seed=0):
    return scored(whole, np.random.default_rng(seed).random(whole.allowed.shape), "random")


def test_the_whole_model_is_faithful_and_no_edge_is_not(judge):
    whole = judge.runner.graph
    full, empty = judge.f(graph.Circuit.full(whole)), judge.f(graph.Circuit.empty(whole))
    assert (full.value, full.low, full.high) == pytest.approx((1.0, 1.0, 1.0))
    assert (empty.value, empty.low, empty.high) == pytest.approx((0.0, 0.0, 0.0))
    assert (full.n, full.clusters) == (6, 3)


def test_f_is_the_ratio_of_means_over_pairs(judge, exact):
    circuit = exact.circuit(n_edges=40)
    alone = judge.runner.metric_of(circuit).double().numpy().mean()
    cut = judge.runner.metric_of(graph.Circuit.empty(circuit.graph)).double().numpy().mean()
    found = judge.f(circuit)
    assert found.value == pytest.approx((alone - cut) / (0.0 - cut), abs=1e-5)
    assert found.low <= found.value <= found.high


def test_edges_that_matter_are_more_faithful_than_random_ones(judge, exact):
    best, random = judge.curve(exact), judge.curve(control(exact.graph))
    above = best.cpr_above(random)
    assert above.value == pytest.approx(best.cpr.value - random.cpr.value)
    assert above.low > 0
    assert best.cmd.value < random.cmd.value


def test_cpr_and_cmd_are_areas_by_trapezoids(judge, exact):
    curve = judge.curve(exact, shares=(0.1, 0.5, 1.0))
    f = [point.value for point in curve.f]
    assert curve.n_edges == (11, 55, 110)
    assert curve.cpr.value == pytest.approx(0.4 * (f[0] + f[1]) / 2 + 0.5 * (f[1] + f[2]) / 2)
    distance = [abs(1 - one) for one in f]
    assert curve.cmd.value == pytest.approx(
        0.4 * (distance[0] + distance[1]) / 2 + 0.5 * (distance[1] + distance[2]) / 2
    )
    assert f[-1] == 1.0


def test_the_sizes_are_mibs_and_a_perfect_ranking_of_all_sizes_would_have_a_cpr_of_0_999():
    ends = faithfulness.Ends(np.ones(4), np.zeros(4), ("a", "a", "b", "b"))
    curve = faithfulness.Curve("all", faithfulness.SIZES, tuple(range(10)), np.ones((10, 4)), ends)
    assert curve.cpr.value == pytest.approx(0.999)
    assert curve.cmd.value == pytest.approx(0.0)


def test_sizes_that_are_known_are_not_measured_again(judge, exact, monkeypatch):
    told = []
    first = judge.curve(exact, tell=lambda *words: told.append(words))
    assert told[-1] == ("faithfulness brute", 10, 10)
    monkeypatch.setattr(judge, "values", lambda _: pytest.fail("measured again"))
    again = judge.curve(exact, known=dict(zip(first.n_edges, first.values, strict=True)))
    assert np.array_equal(first.values, again.values)


def test_a_signed_ranking_leaves_harmful_edges_to_the_end(judge, exact):
    values = exact.values.copy()
    worst = exact.ranking()[0][0]
    values[exact.graph.edge(worst)] *= -1
    turned = scored(exact.graph, values, "turned")
    assert worst in turned.circuit(n_edges=1).names
    assert judge.curve(turned, shares=(0.05, 1.0), absolute=False).values[0] == pytest.approx(
        judge.values(turned.circuit(n_edges=6, absolute=False))
    )


def test_minimality_is_what_f_loses_with_each_edge(judge, exact):
    circuit = exact.circuit(n_edges=8)
    found = judge.minimality(circuit)
    assert set(found.falls) == set(circuit.names)
    name = next(iter(found.falls))
    rest = graph.Circuit.of(circuit.graph, set(circuit.names) - {name})
    assert found.falls[name] == pytest.approx(found.f - judge.f(rest).value)
    assert 0 <= found.idle() <= 1
    assert len(judge.minimality(circuit, most=3).falls) == 3


def test_an_edge_that_carries_nothing_is_idle(judge):
    whole = judge.runner.graph
    lone = graph.Circuit.of(whole, ["m0->logits"])  # nothing clean reaches the MLP
    found = judge.minimality(lone)
    assert found.f == pytest.approx(0.0, abs=1e-4)
    assert found.idle() == 1.0


def test_completeness_compares_circuit_and_model_without_the_same_parts(judge, exact):
    full = judge.completeness(graph.Circuit.full(exact.graph), parts=3)
    assert full.without == pytest.approx(0.0, abs=1e-4)
    assert full.gaps == (0.0, 0.0, 0.0)
    half = judge.completeness(exact.circuit(n_edges=30), parts=4, seed=1)
    assert len(half.gaps) == 4
    assert half == judge.completeness(exact.circuit(n_edges=30), parts=4, seed=1)
    none = judge.completeness(graph.Circuit.empty(exact.graph), parts=1)
    assert none.without == pytest.approx(1.0, abs=1e-4)
    assert none.gaps[0] == pytest.approx(1.0, abs=1e-4)


def test_pairs_of_one_cluster_have_a_value_but_no_interval():
    ends = faithfulness.Ends(np.array([2.0, 4.0]), np.zeros(2), ("a", "a"))
    found = ends.estimate(np.array([1.0, 2.0]))
    assert found.value == 0.5
    assert np.isnan(found.low)
    curve = faithfulness.Curve("m", (0.5, 1.0), (1, 2), np.array([[1.0, 2.0], [2.0, 4.0]]), ends)
    assert curve.to_json()["cpr"]["low"] is None
    assert "no intervals" in faithfulness.chart([curve]).caption


def test_curves_are_drawn_with_bands_and_edges(judge, exact):
    chart = faithfulness.chart([judge.curve(exact), judge.curve(control(exact.graph))])
    assert [series.name for series in chart.series] == ["brute", "random"]
    assert "6 pairs; bands: 95 % intervals over 3 clusters" in chart.caption
    assert chart.series[0].notes[-1] == "110 edges"


def test_what_cannot_be_judged_is_refused(judge, exact):
    with pytest.raises(errors.AnalysisError, match="nothing to be faithful to"):
        faithfulness.Ends(np.ones(3), np.ones(3), ("a", "b", "c"))
    with pytest.raises(errors.RequestError, match="another graph"):
        judge.f(graph.Circuit.full(graph.Graph(3, 4, 4)))
    with pytest.raises(errors.RequestError, match="0 to 1"):
        judge.curve(exact, shares=(0.1, 2.0))
    other = faithfulness.Ends(judge.ends.whole + 1, judge.ends.empty, judge.ends.clusters)
    curve = judge.curve(exact)
    moved = faithfulness.Curve("other", curve.shares, curve.n_edges, curve.values, other)
    with pytest.raises(errors.AnalysisError, match="different pairs"):
        curve.cpr_above(moved)


def test_the_halves_share_clusters_but_no_pair_and_the_seed_fixes_them():
    drawn = [pairs.Pair([at, 1], [at, 2], label=str(at), cluster=f"c{at % 4}") for at in range(24)]
    given = pairs.Pairs.of(drawn)
    one, two = search.halves(given, seed=3)
    assert not set(one.labels) & set(two.labels)
    assert set(one.labels) | set(two.labels) == set(given.labels)
    assert sorted(one.clusters) == sorted(two.clusters)
    assert search.halves(given, seed=3)[0].labels == one.labels
    assert search.halves(given, seed=4)[0].labels != one.labels
    with pytest.raises(errors.RequestError, match="one pair cannot"):
        search.halves(given.select([0]))
