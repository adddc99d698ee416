"""Which layers stand out: the rule by itself, and the sweep as an experiment."""

import numpy as np
import pytest

from sonde.lab import desk, exporting, loop, outliers, results, summaries
from sonde.lab.planners import openai, search
from sonde.report import page


def layers(seed, count=16):
    """Layers whose harm follows their size, up to some scatter."""
    rng = np.random.default_rng(seed)
    norms = rng.uniform(-2.5, 0.0, count)
    turns = np.exp(2 * norms + rng.normal(0, 0.1, count)) / 2
    return np.exp(1.2 * norms + rng.normal(0, 0.3, count)).tolist(), norms.tolist(), turns.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_a_layer_that_does_more_harm_than_its_size_explains_stands_out_and_no_other(seed):
    harms, norms, turns = layers(seed)
    at = int(np.argsort(norms)[8])  # of middling size
    harms[at] = 5.0
    assert [one.at for one in outliers.judge(harms, norms, turns) if one.odd] == [at]


def test_a_large_layer_that_does_the_most_harm_is_explained_by_its_size():
    found = [one for seed in range(40) for one in outliers.judge(*layers(seed)) if one.odd]
    assert len(found) <= 4, "at a level of 10 % over all layers of a model"


def test_two_odd_layers_do_not_hide_each_other():
    harms, norms, turns = layers(3)
    first, second = (int(one) for one in np.argsort(norms)[[7, 9]])
    harms[first] = harms[second] = 6.0
    assert {one.at for one in outliers.judge(harms, norms, turns) if one.odd} == {first, second}


def test_what_is_small_does_not_stand_out_however_sure_it_is():
    harms, norms, turns = layers(0)
    harms = [one / 100 for one in harms]
    harms[5] = 0.4
    assert not any(one.odd for one in outliers.judge(harms, norms, turns))


def test_too_few_layers_are_not_judged():
    harms, norms, turns = layers(0, outliers.LEAST - 1)
    assert outliers.judge(harms, norms, turns) == []


def test_a_sweep_skips_every_layer_and_costs_one_experiment(begun):
    at = begun()
    reply = at.call("sweep", {"over": "layers"})
    assert reply.outcome == "ok"
    assert at.inquiry.spent().experiments == 1
    (entry,) = at.inquiry.entries("sweep")
    assert [row["corruption"] for row in entry["rows"]] == [f"skip:{layer}" for layer in range(8)]
    assert [row["kept"] for row in entry["rows"]] == [1, 1, 0, 1, 1, 0, 1, 1]
    assert {row["n"] for row in entry["rows"]} == {8}
    assert {one["corruption"] for one in reply.result["worst"][:2]} == {"skip:2", "skip:5"}
    run = at.inquiry.book.get(entry["rows"][2]["run"])
    assert (run["corruption"], run["split"], run["kept"]) == ("skip:2", "explore", 0.0)
    assert len(at.inquiry.book.examples(run.id)) == 8


def test_what_a_sweep_measured_is_not_measured_again(begun):
    at = begun(2)
    at.call("run_experiment", {"corruption": "skip:2"})
    at.call("sweep", {"layers": [1, 2]})
    assert len([one for one in at.inquiry.entries("run") if one["corruption"] == "skip:2"]) == 1
    again = at.call("sweep", {"layers": [1, 2]})
    assert again.result["measured_before"]
    assert at.call("run_experiment", {"corruption": "skip:1"}).result["measured_before"]
    assert at.inquiry.spent().experiments == 2
    assert at.call("sweep", {"over": "mlps"}).outcome == "refused"


@pytest.mark.parametrize(("over", "specs"), [("mlps", ["mean:m2", "mean:m3"]), ("attention", ["mean:a2", "mean:a3"]),
    ("heads", [f"mean:a{layer}.h{head}" for layer in (2, 3) for head in range(4)])])  # fmt: skip
def test_heads_and_mlps_are_swept_too(begun, over, specs):
    at = begun()
    assert at.call("sweep", {"over": over, "way": "mean", "layers": [2, 3]}).outcome == "ok"
    assert [row["corruption"] for row in at.inquiry.entries("sweep")[0]["rows"]] == specs


def test_controls_that_are_alike_are_the_layers_nearest_in_size(begun):
    at = begun()
    guess = at.call("propose_hypothesis", {"statement": "x"}).result["hypothesis"]
    asked = {"hypothesis": guess, "corruption": "skip:2", "relation": "below", "value": 0.5, "controls": "alike"}
    prediction = at.call("register_prediction", asked).result["prediction"]
    at.call("run_experiment", {"prediction": prediction})
    first = at.call("run_experiment", {"prediction": prediction, "control": True})
    assert first.result["corruption"] == "skip:5", "the only other layer that is not quiet"
    wrong = at.call("register_prediction", asked | {"corruption": "skip:2,5"})
    assert (wrong.outcome, "only a single layer" in wrong.result["error"]) == ("invalid", True)


def test_a_replay_repeats_sweeps_too(begun):
    at = begun()
    at.call("sweep", {"layers": [1, 2]})
    _, rows = loop.replay(at.bench, at.inquiry)
    assert [(row.tool, row.same, row.difference is not None) for row in rows] == [("sweep", True, True)]


def test_the_search_sweeps_first(begun):
    at = begun(30)
    loop.conduct(at, search.SearchPlanner())
    assert at.inquiry.entries("call")[0]["tool"] == "sweep"
    assert at.inquiry.entries("finding")[0]["claim"].startswith("Skipping layer")


def test_the_results_page_shows_what_size_explains(begun, tmp_path):
    at = begun(6)
    loop.conduct(at, search.SearchPlanner())
    text = page.write(results.report(at.inquiry), tmp_path).read_text(encoding="utf-8")
    assert "what its norm and block influence explain" in text
    (entry,) = at.inquiry.entries("sweep")
    assert (tmp_path / "figures" / f"sweep-{entry.id}.png").stat().st_size > 1000
    assert f"- {entry.id}: sweep" in exporting.markdown(at.inquiry)


def test_a_sweep_waits_for_a_yes_like_any_experiment(begun):
    at = begun(approve=True)
    asked = at.call("sweep", {"layers": [2]})
    assert asked.outcome == "pending"
    assert at.inquiry.spent().experiments == 0
    desk.answer(at.inquiry.book, asked.result["request"], yes=True)
    assert at.call("sweep", {"layers": [2]}).outcome == "ok"


def test_a_sweep_is_summed_up_in_a_line_and_its_runs_are_not_listed_one_by_one(begun):
    at = begun()
    at.call("sweep", {})
    text = summaries.of(at.inquiry, most=7000)
    (line,) = [one for one in text.splitlines() if "sweep" in one and "skip:2" in one]
    assert line.startswith("- s")
    assert "(explore)" not in text


def test_what_a_language_model_is_shown_of_a_sweep_begins_with_what_matters(begun):
    at = begun()
    text = at.call("sweep", {}).text()[: openai.REPLY]
    assert text.index('"odd"') < text.index('"worst"') < text.index('"skip:2"')


@pytest.mark.parametrize("layers", [[99], [-1]])
def test_a_sweep_over_layers_that_are_not_there_costs_nothing(begun, layers):
    at = begun()
    assert at.call("sweep", {"layers": layers}).outcome == "invalid"
    assert at.call("probe", {"yes": list("abcdef"), "no": list("ghijkl"), "layers": layers}).outcome == "invalid"
    assert at.call("patch_pairs", {"component": "mlp", "layers": layers}).outcome == "invalid"
    assert at.inquiry.spent().experiments == 0
