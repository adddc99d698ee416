"""The leaderboard: rows that are kept, standings, a method of one's own, and what a page says."""

import dataclasses

import numpy as np
import pytest
import torch

from sonde import experiments
from sonde.bench import (
    board_page,
    board_rows,
    contrast,
    finding,
    judging,
    leaderboard,
    lengths,
    priors,
    roster,
    shipped,
    sizes,
    standings,
    training,
)
from sonde.circuits import graph as circuits_graph
from sonde.circuits import method_files, registry
from sonde.core import errors
from sonde.report import page

MINE = '''
import numpy as np
from sonde.circuits import registry, running_options

@registry.register("{name}")
def mine(model, pairs, metric, **options):
    """The first sources first."""
    search = running_options.Search("{name}", model, pairs, metric, options)
    shape = search.runner.graph.allowed.shape
    return search.scores(np.arange(shape[0], 0, -1.0)[:, None] * np.ones(shape))
'''


def settings(*methods, pairs=20, **more):
    return leaderboard.LeaderboardSettings(methods=methods, pairs=pairs, **more)


def run(entries, folder, *methods, name="it", earlier=None, **more):
    """A board in a folder of runs."""
    made = leaderboard.Leaderboard(entries, earlier=earlier)
    return experiments.run(made, settings(*methods), run=name, runs_dir=folder, **more)


def rows_of(found):
    return board_rows.rows_of(found.results)


def row(case, method, node, *, edge=0.9, seed=0, passes=1.0):
    return board_rows.Row(
        kind="embedded", case=case, seed=seed, method=method, digest="d", code="", metric="kl", level="edge",
        node_auroc=node, head_auroc=node, edge_auroc=edge, true_nodes=3, left_out=1, passes=passes, seconds=0.1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def entries():
    return roster.compiled([3, 11, 40])


def test_exact_patching_ranks_the_nodes_of_compiled_models_perfectly_and_random_does_not(entries, tmp_path):
    told = []
    found = run(entries, tmp_path, "random", "exact-node", on_progress=lambda now: told.append((now.done, now.total)))
    assert not found.results["failed"]
    by_method = {one.method: one for one in standings.of(rows_of(found)).methods}
    assert by_method["exact-node"].node.value == 1.0
    assert by_method["random"].node.value < 1.0
    assert told[-1] == (6, 6)
    assert found.run.verify() == []
    assert found.html.is_file()


def test_what_an_earlier_board_measured_is_taken_from_it_and_what_it_did_not_is_measured(
    entries, tmp_path, monkeypatch
):
    first = run(entries[:2], tmp_path, "eap", name="first")
    real, measured = leaderboard.measure, []
    monkeypatch.setattr(leaderboard, "measure", lambda *given: (measured.append(given[1]), real(*given))[1])
    more = run(entries[:2], tmp_path, "eap", "random", name="more", earlier=tmp_path)
    assert rows_of(more)[:2] == rows_of(first)
    assert measured == ["random"] * 2
    board = leaderboard.Leaderboard(entries[:2], earlier=tmp_path)
    assert board.estimate(settings("eap", "random")) == {"rows": 0.0}
    assert board.estimate(settings("eap", pairs=30))["rows"] > 0
    board.entries = (dataclasses.replace(entries[0], digest="other weights"),)
    assert list(board.known(settings("eap")).values()) == [None]
    assert list(board.known(settings("eap", codes={"eap": "another file"})).values()) == [None]
    assert list(board.known(settings("eap", rules=1)).values()) == [None]


def test_a_damaged_row_of_an_earlier_board_is_measured_again(entries, tmp_path):
    first = run(entries[:2], tmp_path, "eap", name="first")
    path = first.folder / "stages" / "rows" / "00001.json"
    path.write_bytes(path.read_bytes().replace(b'"eap"', b'"eep"'))
    known = leaderboard.Leaderboard(entries[:2], earlier=tmp_path).known(settings("eap"))
    assert [row is None for row in known.values()] == [False, True]


def test_an_interrupted_board_keeps_its_rows_and_ends_as_one_that_was_not(entries, tmp_path, monkeypatch):
    real, count = leaderboard.measure, []

    def stopped(*given):
        count.append(given)
        if len(count) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(leaderboard, "measure", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(entries, tmp_path, "random")
    assert (tmp_path / "it" / "stages" / "rows" / "00000.json").is_file()
    found = run(entries, tmp_path, "random")
    assert [one.case for one in rows_of(found)] == ["3", "11", "40"]
    assert len(count) == 4
    whole = run(entries, tmp_path, "random", name="whole")
    assert [dataclasses.replace(one, seconds=0.0) for one in rows_of(found)] == [
        dataclasses.replace(one, seconds=0.0) for one in rows_of(whole)
    ]


def test_a_run_of_other_settings_or_weights_is_refused_and_so_is_an_engine_that_is_not_there(entries, tmp_path):
    run(entries[:1], tmp_path, "random")
    with pytest.raises(errors.RequestError, match="methods was"):
        run(entries[:1], tmp_path, "eap")
    with pytest.raises(errors.RequestError, match="its weights are others"):
        run(entries[:2], tmp_path, "random")
    with pytest.raises(errors.RequestError, match="did you mean 'ray'"):
        run(entries[:1], tmp_path, "random", engine="rey")


def test_a_method_that_fails_on_a_model_is_told_and_tried_again_by_the_next_board(entries, tmp_path):
    @registry.register("fails-here", replace=True)
    def fails(model, pairs, metric, **options):
        """Fails."""
        raise errors.AnalysisError("no such luck")

    found = run(entries[:1], tmp_path, "fails-here", "random")
    assert found.results["failed"] == {"fails-here, case 3, seed 0": "no such luck"}
    assert [one.method for one in rows_of(found)] == ["random"]
    known = leaderboard.Leaderboard(entries[:1], earlier=tmp_path).known(settings("fails-here", "random"))
    assert [row is None for row in known.values()] == [True, False]
    registry._methods.pop("fails-here")


def test_a_file_adds_a_method_and_a_changed_file_is_measured_again(entries, tmp_path):
    file = tmp_path / "my_method.py"
    file.write_text(MINE.format(name="mine-first"))
    chosen = leaderboard.settings_of(["random"], [str(file)], pairs=20)
    assert set(chosen.codes) == {"mine-first"}
    assert {"mine-first", "random"} < set(chosen.methods)
    runs = tmp_path / "runs"
    found = experiments.run(leaderboard.Leaderboard(entries[:1]), chosen, run="it", runs_dir=runs)
    assert {one.method: one.code for one in rows_of(found)}["mine-first"] == method_files.digest(file)
    assert f"--method-file {file}" in found.report.command
    registry._methods.pop("mine-first")
    file.write_text(MINE.format(name="mine-first") + "\n# changed\n")
    again = leaderboard.settings_of(["random"], [str(file)], pairs=20)
    known = leaderboard.Leaderboard(entries[:1], earlier=runs).known(again)
    assert [method for (_, method), row in known.items() if row is None] == ["mine-first"]
    registry._methods.pop("mine-first")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "registers no method"),
        ("import nowhere_at_all", r"line 1: ModuleNotFoundError"),
        ("def f(:", "line 1: SyntaxError"),
        ("\n\n1 / 0", "line 3: ZeroDivisionError"),
    ],
)
def test_a_method_file_that_cannot_be_used_says_why_and_where(tmp_path, text, said):
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(errors.RequestError, match=said):
        method_files.load(file)
    with pytest.raises(errors.RequestError, match="no file"):
        method_files.load(tmp_path / "none.py")


def test_standings_are_means_with_intervals_over_cases_and_corrected_paired_tests():
    rng = np.random.default_rng(0)
    cases = [str(case) for case in range(12)]
    rows = [row(case, "good", 0.95 + 0.01 * rng.random(), seed=seed) for case in cases for seed in (0, 1)]
    rows += [row(case, "bad", 0.5 + 0.1 * rng.random(), seed=seed) for case in cases for seed in (0, 1)]
    rows += [row(case, "gone", None, passes=3.0) for case in cases]
    found = standings.of(rows)
    assert [one.method for one in found.methods] == ["good", "bad", "gone"]
    good = found.methods[0]
    assert good.node.low < good.node.value < good.node.high
    assert (good.node.clusters, good.models, found.cases, found.models) == (12, 24, 12, 24)
    assert np.isnan(found.methods[2].node.value)
    test = found.test("bad", "good", "node")
    assert test.difference.high < 0
    assert test.p < 0.01
    assert found.test("good", "gone", "node") is None
    edges = [one for one in found.tests if one.level == "edge"]
    assert len(edges) == 3
    assert all(one.p == 1.0 for one in edges)
    assert (found.true_nodes, found.left_out, found.margins, found.floors) == (72, 24, (), {})


def test_the_best_ranking_that_looks_at_nothing_is_the_floor_and_methods_have_a_margin_over_it():
    rng = np.random.default_rng(0)
    means = {"good": 0.95, "poor": 0.8, "prior-mlps-first": 0.8, "prior-early-first": 0.6, "random": 0.5}
    rows = [
        row(str(case), name, mean + 0.04 * rng.random(), edge=0.9 if name == "random" else 0.5)
        for case in range(14)
        for name, mean in means.items()
    ]
    found = standings.of(rows)
    assert found.floors == {"node": "prior-mlps-first", "head": "prior-mlps-first", "edge": "random"}
    assert {(one.first, one.second) for one in found.tests} == {("good", "poor")}
    good, poor = found.margin("good", "node"), found.margin("poor", "node")
    assert good.difference.value == pytest.approx(0.15, abs=0.02)
    assert good.p < 0.01 < poor.p
    assert found.margin("random", "node") is None
    assert found.margin("good", "edge").second == "random"
    cells = {one[1]: one for one in board_page.table(found).rows}
    assert cells["prior-mlps-first"][2] == "floor of nodes, heads"
    assert cells["prior-early-first"][2] == "looks at nothing"
    assert cells["good"][6].value == good.difference.value


def test_one_case_has_a_mean_and_no_interval():
    (one,) = standings.of([row("3", "a", 0.8)]).methods
    assert one.node.value == 0.8
    assert np.isnan(one.node.low)


def test_the_page_names_the_best_method_and_the_floor_and_what_is_missing(tmp_path):
    rng = np.random.default_rng(1)
    rows = [row(str(case), name, value + 0.02 * rng.random()) for case in range(8) for name, value in
            (("exact-node", 0.97), ("exact", 0.96), ("eap-ig", 0.95), ("random", 0.49))]  # fmt: skip
    results = {
        "settings": {"pairs": 20}, "failed": {"eap, case 3, seed 0": "why"}, "left_out": {"case 7, seed 0": 0.9},
        "dropped": {"case 9, seed 0": "it says why"}, "rows": [dataclasses.asdict(one) for one in rows],
    }  # fmt: skip
    text = page.write(board_page.report(results), tmp_path).read_text()
    assert "Best after exact patching, by nodes: eap-ig (AUROC" in text
    assert "The best that looks at nothing, by nodes: random (AUROC" in text
    assert "24 nodes of circuits are judged; 8 never matter in an exchange and are left out" in text
    assert "Dropped, because too many of their nodes cannot be judged: case 9, seed 0: it says why" in text
    assert "case 7, seed 0" in text
    assert {one.name for one in (tmp_path / "figures").iterdir()} == {
        "standings.png", "pairs-node.png", "pairs-head.png", "pairs-edge.png", "by-model.png",
    }  # fmt: skip
    assert {one.caption for one in board_page.missing(results)} == {
        "Rows that failed.", "Trained models that are not good enough.", "Models of which too many nodes cannot be judged.",
    }  # fmt: skip


def test_a_suite_gives_what_is_good_enough_and_names_the_rest(tmp_path):
    task = shipped.task_of("3")
    recipe = training.Recipe(seeds=(0,), epochs=1, samples=64, batch=64, check=1, rows=8, threshold=None)
    training.train(task, training.shape_of(task, sizes.of(3)), recipe, tmp_path / "case-3" / "try-0")
    found, short = roster.suite_of(tmp_path, least=0.0)
    assert [(one.kind, one.case, one.seed) for one in found] == [("trained", "3", 0)]
    assert not short
    assert found[0].subject().log["task"] == "case 3"
    with pytest.raises(errors.RequestError, match="the best has"):
        roster.suite_of(tmp_path, least=1.1)


def test_positions_are_shuffled_where_a_compiled_program_reads_them_and_bos_keeps_its_own():
    positional, plain = shipped.compiled("3"), shipped.compiled("11")
    pairs = finding.pairs_of(positional, n=20)
    assert torch.equal(pairs.positions.sort(dim=1).values, torch.arange(5).expand(20, 5))
    assert bool((pairs.positions[:, 0] == 0).all())
    assert not torch.equal(pairs.positions, pairs.positions.sort(dim=1).values)
    assert finding.pairs_of(plain, n=20).positions is None


def test_shuffled_positions_let_exact_patching_find_the_positional_edge_of_case_3():
    subject = shipped.compiled("3")
    found = {}
    for positions in (False, True):
        pairs = finding.pairs_of(subject, n=60, positions=positions)
        scores = registry.find(subject.model, pairs, metric="mse", method="exact")
        found[positions] = finding.auroc(scores, subject, "edge")
    assert found[True] == 1.0
    assert found[False] < 1.0


def test_answers_of_pairs_differ_where_they_can():
    for case in ("11", "124"):  # of all-equal, 124, few inputs have another answer than most
        subject = shipped.compiled(case)
        pairs = finding.pairs_of(subject, n=30)
        clean, corrupt = (finding._answers(subject.task, one) for one in (pairs.clean, pairs.corrupt))
        differ = (clean != corrupt).any(dim=1)
        assert bool(differ[0])
        assert bool(differ.all()) == (case == "11")


def test_nodes_that_never_matter_in_an_exchange_are_neither_true_nor_false():
    subject = shipped.compiled("53")
    judged = judging.of(subject)
    assert (judged.true, judged.left_out) == (("m1",), ("m0",))
    assert judged.share_left_out == 1 / (2 + len(judged.false))
    assert judging.of(shipped.compiled("3")).left_out == ()
    graph = circuits_graph.Graph.of(subject.model)
    values = np.array([np.nan, *(float(node == "m0") + 2 * (node == "m1") for node in graph.sources[1:])])
    scores = dataclasses.replace(priors.scores("prior-mlps-first", graph), values=values)
    assert finding.auroc(scores, subject, "node") == 1.0  # m0 above all others does no harm, and would as a false one


def test_models_are_dropped_by_name_until_at_most_a_fifth_of_a_boards_nodes_cannot_be_judged(monkeypatch):
    many = judging.Judged(("m1",), ("m0", "a0.h0"), ("m2",))
    few = judging.Judged(("m1",), ("m0",), ("m2",) * 7)
    assert judging.dropped({"few": few, "none": judging.Judged(("m1",), (), ("m2",))}) == {}
    assert judging.dropped({"few": few, "many": many}) == {
        "many": "50% of its nodes never matter in an exchange, m0, a0.h0"
    }
    assert judging.dropped({"few": few, "many": many, "more": judging.Judged(("m1",), (), ("m2",) * 9)}) == {}
    assert list(judging.dropped({1: many, 2: many})) == [1, 2]
    real = judging.of
    left_out = judging.Judged(("m1",), ("m0",) * 99, ())
    monkeypatch.setattr(judging, "of", lambda subject: left_out if "case-3-" in subject.name else real(subject))
    board = leaderboard.Leaderboard(roster.compiled([3, 11]))
    assert [entry.case for entry in board.entries] == ["11"]
    assert set(board.dropped) == {"case 3, seed 0"}
    assert board.dropped["case 3, seed 0"].startswith("99% of its nodes never matter in an exchange, m0")


def test_priors_rank_by_the_shape_of_the_model_alone():
    graph = circuits_graph.Graph(3, 2, 2)
    first = {name: priors.scores(name, graph).ranking()[0][0] for name in priors.NAMES}
    assert first["prior-mlps-first"] == first["prior-mlps-early"] == "m0"
    assert (first["prior-mlps-late"], first["prior-heads-first"]) == ("m2", "a0.h0")
    assert (first["prior-early-first"], first["prior-late-first"]) == ("a0.h0", "a2.h0")
    assert (first["prior-low-heads"], first["prior-high-heads"]) == ("a0.h0", "a0.h1")
    assert first["prior-middle-first"] == "a1.h0"
    with pytest.raises(errors.RequestError, match="did you mean 'prior-mlps-first'"):
        priors.scores("prior-mlp-first", graph)


def test_a_board_runs_priors_with_whatever_is_asked_for(entries, tmp_path):
    chosen = leaderboard.settings_of(["random"], pairs=20)
    assert set(chosen.methods) == {"random", *priors.NAMES}
    found = experiments.run(leaderboard.Leaderboard(entries[:2]), chosen, run="it", runs_dir=tmp_path)
    assert not found.results["failed"]
    assert {one.passes for one in rows_of(found) if one.method in priors.NAMES} == {0.0}
    assert standings.of(rows_of(found)).floors["node"] in standings.BLIND


@pytest.mark.parametrize("case", ["67", "93"])
def test_pairs_have_different_lengths_where_the_program_reads_the_length_and_every_node_matters_in_them(case):
    subject = shipped.compiled(case)
    pairs = finding.pairs_of(subject, n=40)
    assert pairs.corrupt.shape[1] < pairs.clean.shape[1]
    moved = lengths.moved(subject.task, [(pairs.clean, pairs.corrupt)])
    assert all(share >= lengths.LEAST for share in moved.values())
    if case == "67":
        scores = registry.find(subject.model, pairs, metric="kl", method="exact-node")
        assert finding.auroc(scores, subject, "node") == 1.0


def test_the_answer_difference_falls_from_the_clean_to_the_corrupt_run_and_has_a_slope():
    for case in ("3", "11"):
        subject = shipped.compiled(case)
        pairs = finding.pairs_of(subject, n=20)
        metric = contrast.metric(subject.model, pairs, regression=subject.task.regression)
        clean, corrupt = (contrast._logits(subject.model, pairs, corrupt=side) for side in (False, True))
        high, low = metric(clean, pairs, clean), metric(corrupt, pairs, clean)
        assert bool((high > low).all())
        some = pairs.select([3, 1])
        assert torch.allclose(metric(clean[[3, 1]], some, clean[[3, 1]]), high[[3, 1]])
        scores = registry.find(subject.model, pairs, metric=metric, method="eap")
        assert np.nanmax(np.abs(scores.values)) > 0.01


def test_random_is_a_ranking_of_what_is_judged_and_so_fair_on_average():
    subject = shipped.compiled("18")
    scores = registry.find(subject.model, finding.pairs_of(subject, n=4), metric="kl", method="random")
    for level in standings.LEVELS:
        drawn = [finding.auroc(leaderboard._noise(scores, level, seed), subject, level) for seed in range(200)]
        assert abs(np.mean(drawn) - 0.5) < 4 * np.std(drawn) / np.sqrt(len(drawn))
