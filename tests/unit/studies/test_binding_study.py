"""The binding study: pairs mean what they say, verdicts follow the numbers, pages show them."""

import shutil

import numpy as np
import pytest
from typer import testing

import sonde
from sonde import experiments, store
from sonde._cli import main
from sonde.core import errors
from sonde.programs import interpreter
from sonde.report import page
from sonde.studies.binding import language, network, pages, patching, shipped, study, training, verdict

GRAMMAR = language.Grammar()


def table(roles, values, **more):
    """A table as `patching` makes it."""
    cells = np.array(values, dtype=float)
    ends = {name: cells.tolist() for name in ("value", "low", "high")}
    counts = {"n": 50, "tried": 60, "repeated": 5, "crowded": 0}
    return {"roles": roles, "layers": list(range(cells.shape[1])), **counts, "success": ends, **more}


def found(middle=0.9, root=0.0, control=0.02):
    """Results of one model, as `study.trace` makes them."""
    estimate = {"value": 0.9, "low": 0.8, "high": 0.95, "n": 50, "clusters": 50, "level": 0.95}
    part = dict.fromkeys(("inside", "random", "whole", "outside"), estimate)
    place = {"role": "rhs_2", "layer": 3, "components": 10, "n": 50, "accuracy": estimate, "majority": 0.1}
    row = {"natural": 0.6, "root": {"1": 0.9, "2": 0.3, "later": 0.1}}
    heads = table(["rhs_2", "query", "final"], np.full((3, 2, 4), 0.05), heads=[0, 1, 2, 3])
    result = {
        "recipe": {
            "shape": {"layers": 2, "heads": 4, "width": 8},
            "grammar": {"lines": 8, "letters": 10, "max_hops": 3},
            "steps": 10, "batch": 4, "easy": 0.25, "every": True,
        },
        "parameters": 1234,
        "log": [{"step": 0, **row}, {"step": 25, **row}, {"step": 50, **row}],
        "accuracy": {
            "rates": {"balanced": estimate, "root after line 2": estimate},
            "heuristics": {"balanced": {"line-1 heuristic": 0.2}},
        },
        "hops": {"2": table(["rhs_1", "rhs_2", "query", "final"], [[1, root], [0, middle], [0, 0], [0, 0]])},
        "heads": {"2": heads},
        "control": {
            **table(["distractor", "query", "final"], np.zeros((3, 2))),
            "largest": {"layer": 1, "position": 3, "value": control, "low": 0.0, "high": 0.1},
            "any_cell": {"value": 0.1, "low": 0.0, "high": 0.2},
        },
        "spaces": [{"what": "number", "variance": 0.5, "pca": part, "rotation": part, **place}],
    }  # fmt: skip
    return {**result, "verdict": verdict.of(result)}


@pytest.mark.parametrize(("middle", "root", "met"), [(0.9, 0.1, True), (0.5, 0.0, False), (0.9, 0.3, False)])
def test_a_stop_is_claimed_only_if_the_value_is_there_and_no_longer_at_the_root(middle, root, met):
    stop = found(middle, root)["verdict"]["stops"]["2"]
    assert (stop["role"], stop["layer"], stop["met"]) == ("rhs_2", 1, met)


def test_a_stop_at_one_token_is_told_apart_from_one_at_any_of_several():
    roles = ["rhs_1", "rhs_2", "rhs_3", "query", "final"]
    middle = [{"value": 0.0}, {"value": 0.8}]
    some = found()
    some["hops"] = {"3": table(roles, [[1, 0.1], [0, 0.45], [0, 0.4], [0, 0.9], [0, 0]], middle=middle)}
    some["verdict"] = verdict.of(some)
    stop = some["verdict"]["stops"]["3"]
    assert (stop["role"], stop["success"], stop["met"]) == ("rhs_2", 0.45, False)
    assert (stop["together"]["success"], stop["together"]["met"]) == (0.8, True)
    told = " ".join(pages.sentences("x", some))
    assert "no clear stop" in told
    assert "at least one right-hand side between does in 80%" in told


def test_a_layer_that_meets_the_bar_goes_before_one_with_a_larger_distance():
    some = found()
    some["hops"] = {"2": table(["rhs_1", "rhs_2", "query", "final"], [[0.25, 0.15], [0.95, 0.7], [0, 0], [0, 0]])}
    stop = verdict.of(some)["stops"]["2"]
    assert (stop["layer"], stop["met"]) == (1, True)


def test_the_page_says_what_a_model_was_told():
    some = found()
    some["recipe"] |= {"told": 4, "start": "seed-0@1500"}
    text = pages.report({"settings": {}, "models": {"x": some}}).sections[0].text
    assert "after 4 layers each right-hand side is asked for its line's value" in text
    assert "began with the weights of seed-0@1500" in text
    assert "is taught here" in text


@pytest.mark.parametrize(("control", "met"), [(0.05, True), (0.06, False)])
def test_the_control_is_met_up_to_five_percent(control, met):
    assert found(control=control)["verdict"]["control_met"] is met


def test_the_page_tells_what_was_found_and_what_was_not(tmp_path):
    results = {"settings": {"pairs": 50}, "models": {"good": found(), "bad": found(middle=0.3)}}
    report = pages.report(results)
    told = " ".join(report.summary)
    assert "good, 2 hops: into layer 1, patching rhs_2" in told
    assert "no clear stop" in told
    text = page.write(report, tmp_path).read_text(encoding="utf-8")
    assert "root after line 2" in text
    assert (tmp_path / "figures" / "phases-good.png").exists()


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """A network that was trained for one step, as a folder."""
    folder = tmp_path_factory.mktemp("untrained")
    recipe = training.BindingTrainingSettings(steps=1, shape=network.Shape(layers=2, heads=2, width=16, mlp=16))
    return experiments.run(study.BindingTraining(), recipe, run="untrained", runs_dir=folder).folder


def test_a_model_that_gets_nothing_right_is_not_traced(untrained, tmp_path):
    chosen = study.BindingSettings(models=(str(untrained),), pairs=10)
    with pytest.raises(errors.AnalysisError, match="train it for longer"):
        experiments.run(study.Binding(chosen.models), chosen, run="x", runs_dir=tmp_path)


@pytest.fixture
def quick(monkeypatch):
    """Tracing that finds something made up at once, and says so."""
    traced = []
    monkeypatch.setattr(study, "trace", lambda name, model, settings, *, tell: traced.append(name) or found())
    return traced


def test_a_study_that_was_stopped_between_models_goes_on_with_the_next(quick, tmp_path):
    chosen = study.BindingSettings(models=("seed-0", "seed-1"), pairs=10)

    def run(folder, **options):
        return experiments.run(study.Binding(chosen.models), chosen, run="it", runs_dir=folder, **options)

    def stop(now):
        raise KeyboardInterrupt

    whole = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", on_progress=stop)
    resumed = run(tmp_path / "stopped")
    assert quick == ["seed-0", "seed-1", "seed-0", "seed-1"]
    assert list(resumed.results["models"]) == ["seed-0", "seed-1"]
    for name in ("stages/trace.json", "stages/trace/00000.json", "figures/phases-seed-1.png"):
        assert (whole.folder / name).read_bytes() == (resumed.folder / name).read_bytes()
    assert {**whole.results, "timing": 0} == {**resumed.results, "timing": 0}
    assert resumed.run.verify() == []
    assert store.Run.open(resumed.folder).manifest["summary"]["seed-1"] == found()["verdict"]


def test_other_settings_and_retrained_weights_are_refused(quick, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(shipped.folder("seed-0"), folder)
    chosen = study.BindingSettings(models=(str(folder),), pairs=10)

    def run(settings):
        experiments.run(study.Binding(settings.models), settings, run="it", runs_dir=tmp_path / "runs")

    run(chosen)
    with pytest.raises(errors.RequestError, match="pairs was 10, now 20"):
        run(study.BindingSettings(models=(str(folder),), pairs=20))
    shutil.copyfile(shipped.folder("seed-1") / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(errors.RequestError, match="its weights are others"):
        run(chosen)


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        (("seed-0", "else/seed-0"), ("seed-0", "else/seed-0"), "models of different names"),
        (("seed-0",), ("seed-1",), "the settings have"),
        (("seed-99",), ("seed-99",), "no binding model 'seed-99'"),
    ],
)
def test_models_that_are_not_there_or_not_told_apart_are_refused(models, settings, message, tmp_path):
    chosen = study.BindingSettings(models=settings, pairs=10)
    with pytest.raises(errors.RequestError, match=message):
        experiments.run(study.Binding(models), chosen, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_every_model():
    chosen = study.BindingSettings(models=("seed-0", "seed-1"), pairs=10)
    assert (
        study.Binding(chosen.models).command(chosen) == "sonde study binding --model seed-0 --model seed-1 --pairs 10"
    )


def test_a_model_in_bfloat16_answers_nearly_as_well():
    programs = language.balanced(GRAMMAR, 210, np.random.default_rng(0))
    with sonde.load(shipped.folder("seed-0"), dtype="bfloat16") as model:
        assert (training.answers(model.hf, programs) == programs.answers).mean() > 0.8


def test_pairs_differ_where_they_should_and_have_true_answers(untrained, monkeypatch):
    programs = language.draw(GRAMMAR, 60, np.random.default_rng(0))
    with sonde.load(shipped.folder(str(untrained))) as model:
        monkeypatch.setattr(training, "answers", lambda _, some: some.answers)  # every program counts
        made = {
            make: make(model, programs, 20, np.random.default_rng(1))
            for make in (patching.root_pairs, patching.control_pairs, patching.query_pairs)
        }
    words = GRAMMAR.vocabulary
    for make, traced in made.items():
        assert len(traced.pairs) == 20
        for pair, roles in zip(traced.pairs, traced.roles, strict=True):
            differs = np.flatnonzero(np.not_equal(pair.clean, pair.counterfactual)).tolist()
            name = {patching.root_pairs: "rhs_1", patching.control_pairs: "distractor"}.get(make, "query")
            assert differs == list(roles[name])
            answers = [interpreter.answer(_source(side, words)) for side in (pair.clean, pair.counterfactual)]
            assert answers[0] == pair.answer
            if make is patching.control_pairs:
                assert answers[1] == pair.answer
                assert pair.counterfactual_answer == pair.counterfactual[roles["distractor"][0]] != pair.answer
            else:
                assert answers[1] == pair.counterfactual_answer != pair.answer


def test_another_answer_is_no_other_lines_and_pairs_whose_answer_is_are_counted(untrained, monkeypatch):
    programs = language.draw(GRAMMAR, 400, np.random.default_rng(5))
    with sonde.load(shipped.folder(str(untrained))) as model:
        monkeypatch.setattr(training, "answers", lambda _, some: some.answers)
        for make in (patching.root_pairs, patching.control_pairs):
            traced = make(model, programs, 100, np.random.default_rng(6))
            assert all(pair.counterfactual_answer not in pair.clean for pair in traced.pairs)
            again = sum(pair.clean.count(pair.answer) > 1 for pair in traced.pairs)
            assert (traced.repeated, traced.crowded) == (again, 0)
            assert 10 <= again <= 60
        traced = patching.query_pairs(model, programs, 100, np.random.default_rng(7))
        assert all(pair.clean.count(pair.counterfactual_answer) == 1 for pair in traced.pairs)


def test_programs_with_all_ten_digits_are_left_out_and_counted(untrained, monkeypatch):
    wide = language.Grammar(lines=16, letters=16)
    some = language.draw(wide, 30, np.random.default_rng(8), easy=0.5)
    full = language.present(some).all(axis=1)
    assert 0 < full.sum() < 15
    with pytest.raises(errors.RequestError, match="all ten digits"):
        language.twins(some, np.random.default_rng(9))
    with sonde.load(shipped.folder(str(untrained))) as model:
        monkeypatch.setattr(training, "answers", lambda _, some: some.answers)
        traced = patching.root_pairs(model, some, 30, np.random.default_rng(9))
    assert (len(traced.pairs), traced.crowded) == (30 - full.sum(), full.sum())


def _source(tokens, words):
    text = "".join(words[token] for token in tokens)
    lines = [f"{text[at]} = {text[at + 1]}" for at in range(0, 2 * GRAMMAR.lines, 2)]
    return "\n".join([*lines, f"#{text[-2]}: "])


def test_a_model_that_is_not_there_is_named():
    with pytest.raises(errors.RequestError, match="no binding model 'seed-99'"):
        shipped.folder("seed-99")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nonsense"], "choose all"), (["report"], "say which run"), (["-m", "no"], "no binding")],
)
def test_the_command_refuses_what_makes_no_sense(arguments, message):
    done = testing.CliRunner().invoke(main.app, ["study", "binding", *arguments])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
