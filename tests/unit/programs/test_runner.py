"""Experiments: the seed's snippets run, files have the seed's shape, what was interrupted comes out the same."""

import json

import numpy as np
import pytest

from sonde import store
from sonde.core import errors
from sonde.programs import ExperimentRunner, answering, experiments, generators, prompts, quick_experiment

ROW = {
    "experiment", "model_id", "seq_len", "seq_id", "program", "true_answer", "predicted_answer", "correct",
    "raw_output", "metadata",
}  # fmt: skip


class Scripted:
    """Says the same to everything, and counts who is open and how often it is asked."""

    def __init__(self, log, name, text):
        self.log, self.name, self.text = log, name, text

    def ask(self, prompts, sampling):
        self.log.append((self.name, len(prompts)))
        if self.log.count("stop"):
            raise KeyboardInterrupt
        return [self.text] * len(prompts)

    def close(self):
        self.log.append(f"closed {self.name}")


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SONDE_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def log():
    return []


@pytest.fixture
def runner(tmp_path, log):

    def opened(name):
        log.append(f"opened {name}")
        return Scripted(log, name, "7")

    return ExperimentRunner(tmp_path / "out", opener=opened)


def config(**more):
    settings = {"num_seqs": 5, "seq_lens": [2, 4], "batch_size": 4, **more}
    make = settings.pop("program_generator", generators.make_variable_binding_program_with_metadata)
    return quick_experiment("it", prompts.MINIMAL, make, settings.pop("models", ["one", "two"]), **settings)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_seeds_quick_experiment_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from sonde.programs import ExperimentRunner, generators, prompts, quick_experiment

    config = quick_experiment(
        name="experiment_name",
        prompt_template=prompts.RANGE_TRACKING,
        program_generator=generators.make_range_program,
        models=["tiny-gpt2"],
        num_seqs=3,
        seq_lens=[2, 3],
    )

    runner = ExperimentRunner()
    result = runner.run(config)
    runner.plot("experiment_name")

    (folder,) = (tmp_path / "results" / "debug_experiments").iterdir()
    assert folder.name.startswith("experiment_name_2")
    assert set(contents(folder)) == {
        "settings.json",
        "models.json",
        "results.json",
        "summary.json",
        "accuracy_plot.png",
    }
    rows, summary = (json.loads((folder / name).read_text()) for name in ("results.json", "summary.json"))
    assert len(rows) == 6
    assert all(set(row) == ROW for row in rows)
    assert rows == list(result.rows)
    keys = {"experiment", "total_samples", "overall_accuracy", "by_model", "by_seq_len", "heuristics"}
    assert set(summary) == keys
    assert summary == result.summary
    assert set(summary["by_model"]["tiny-gpt2"]) == {"accuracy", "low", "high", "n"}
    again = ExperimentRunner("elsewhere").run(config, run="x")
    assert store.Run.open(tmp_path / "runs" / "x").verify() == []
    assert [row["raw_output"] for row in again.rows] == [row["raw_output"] for row in rows], "the seed fixes all"


def test_the_seeds_model_caching_runs():
    from sonde.programs import ExperimentRunner

    runner = ExperimentRunner()
    runner.preload_models(["tiny-gpt2", "tiny-llama"])  # Load once
    assert runner.list_loaded_models() == ["tiny-gpt2", "tiny-llama"]
    runner.unload_model("tiny-gpt2")
    assert runner.list_loaded_models() == ["tiny-llama"]
    runner.unload_all_models()  # Clean up GPU memory
    assert runner.list_loaded_models() == []


def test_models_stay_loaded_between_experiments_and_go_with_no_cache(runner, log):
    runner.preload_models(["one"])
    runner.run(config())
    runner.run(config())
    assert [line for line in log if isinstance(line, str)] == ["opened one", "opened two"]
    runner.run(config(), no_cache=True)
    assert log[-1] == "closed two"
    assert "closed one" in log
    assert runner.list_loaded_models() == []
    with pytest.raises(errors.RequestError, match="'three' is not loaded"):
        runner.unload_model("three")


def test_prompts_go_in_batches_and_every_model_sees_the_same_programs(runner, log):
    result = runner.run(config())
    assert [line for line in log if isinstance(line, tuple)] == [
        (name, size) for name in ("one", "two") for size in (4, 4, 2)
    ]
    one, two = ([row["program"] for row in result.rows if row["model_id"] == name] for name in ("one", "two"))
    assert one == two
    assert len(set(one)) == 10


def test_one_program_more_changes_no_other():
    small, large = (experiments.items(config(num_seqs=number)) for number in (2, 3))
    assert [item for item in large if item.seq_id < 2] == small


def test_two_runs_in_one_second_have_two_folders(runner):
    assert runner.run(config()).folder != runner.run(config()).folder


def test_an_interrupted_experiment_goes_on_and_comes_out_the_same(runner, log, tmp_path):
    whole = runner.run(config(), run="whole")
    asked = len([line for line in log if isinstance(line, tuple)])
    told = []

    def stop(now):
        told.append((now.what, now.done, now.total))
        if len(told) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(config(), run="cut", on_progress=stop)
    answered = [("answers-0-one", 1, 3), ("answers-0-one", 2, 3), ("answers-0-one", 3, 3), ("answers-1-two", 1, 3)]
    assert told == answered
    log.clear()
    found = runner.run(config(), run="cut")
    assert [line for line in log if isinstance(line, tuple)] == [("two", 4), ("two", 2)]
    assert asked == 6
    assert found.rows == whole.rows
    assert contents(found.folder) == contents(whole.folder)
    one, two = (json.loads((tmp_path / "runs" / name / "results.json").read_text()) for name in ("whole", "cut"))
    assert {**one, "timing": 0} == {**two, "timing": 0}


def test_a_finished_experiment_is_read_and_not_run_again(runner, log):
    first = runner.run(config(), run="x")
    log.clear()
    other = ExperimentRunner(runner.output_dir, opener=lambda name: pytest.fail("opened a model"))
    assert other.run(config(), run="x") == first
    assert other.analyze_errors("it") == runner.analyze_errors("it")


def test_an_interrupted_experiment_goes_on_with_its_own_model_only(llama, tmp_path):
    weight = llama.hf.model.norm.weight.data

    def stop(now):
        raise KeyboardInterrupt

    def kept_open(name):
        opened = answering.ModelAnswerer(llama)
        opened.close = lambda: None
        return opened

    asked = config(models=[llama.cfg.model_name], num_seqs=1, seq_lens=[2, 3, 4, 5, 6])
    place = {"run": "it", "runs_dir": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        ExperimentRunner(tmp_path, opener=kept_open).run(asked, on_progress=stop, **place)
    weight += 1.0
    try:
        with pytest.raises(errors.RequestError, match=r"is not the model .*run it has: its weights are others"):
            ExperimentRunner(tmp_path, opener=kept_open).run(asked, **place)
    finally:
        weight -= 1.0
    again = ExperimentRunner(tmp_path, opener=kept_open).run(asked, **place)
    assert len(again.rows) == 5


def test_an_experiment_is_not_resumed_with_other_settings_or_programs(runner):
    runner.run(config(), run="x")
    with pytest.raises(errors.RequestError, match=r"other settings \(num_seqs was 5, now 6; seed was 0, now 3\)"):
        runner.run(config(num_seqs=6, seed=3), run="x")

    def changing(seq_len, rng):
        return f"x = {seq_len + changing.by}\n#x: ", seq_len + changing.by

    def stop(now):
        raise KeyboardInterrupt

    changing.by = 0
    with pytest.raises(KeyboardInterrupt):
        runner.run(config(program_generator=changing), run="y", on_progress=stop)
    changing.by = 1
    with pytest.raises(errors.RequestError, match="begun with other programs"):
        runner.run(config(program_generator=changing), run="y")


def test_plots_draw_the_heuristics_in_and_heatmaps_take_any_field(runner):
    folder = runner.run(config()).folder
    names = [text.get_text() for text in runner.plot("it").axes[0].get_legend().get_texts()]
    assert names == ["one", "two", "line-1 heuristic", "line-2 heuristic"]
    assert runner.plot("it").axes[0].collections, "bands"
    runner.plot_heatmap("it")
    figure = runner.plot_heatmap("it", rows="depth", columns="root_line")
    assert figure.axes[0].get_ylabel() == "depth"
    assert (folder / "accuracy_heatmap.png").stat().st_size > 1000
    with pytest.raises(errors.AnalysisError, match="no row has a field 'dept'; did you mean 'depth'"):
        runner.plot_heatmap("it", rows="dept")


def test_plotting_what_was_never_run_says_so(runner):
    with pytest.raises(errors.StoreError, match="no finished experiment 'that'"):
        runner.plot("that")


def test_a_later_runner_plots_the_latest_experiment_of_a_name(runner, tmp_path):
    runner.run(config(), run="20260101_000000")
    last = runner.run(config(seed=5), run="20260102_000000")
    runner.run(quick_experiment("it_too", prompts.MINIMAL, generators.make_range_program, ["one"]))
    assert ExperimentRunner(runner.output_dir).result("it") == last


def test_wrong_answers_are_sorted_by_kind(tmp_path, log):
    program, said = "a = 4\nb = 7\nc = 9\nd = c\n#d: ", iter(["x", "4", "7", "9", "5", "9"])

    def make(seq_len, rng):
        return program, 9

    def other(seq_len, rng):
        return program.replace("= c", "= 1"), 1

    class Teller(Scripted):
        def ask(self, prompts, sampling):
            return [next(said) for _ in prompts]

    runner = ExperimentRunner(tmp_path, opener=lambda name: Teller(log, name, ""))
    runner.run(config(program_generator=make, models=["m"], seq_lens=[4], num_seqs=5))
    told = runner.analyze_errors("it")["m"]
    assert (told["answers"], told["wrong"]) == (5, 4)
    kinds = {
        "no answer": 1,
        "line-1 heuristic": 1,
        "line-2 heuristic": 1,
        "another constant of the program": 0,
        "other": 1,
    }
    assert told["kinds"] == kinds
    assert told["examples"]["other"][0]["predicted_answer"] == 5
    runner.run(config(program_generator=other, models=["m"], seq_lens=[4], num_seqs=1))
    assert runner.analyze_errors("it")["m"]["kinds"]["another constant of the program"] == 1


def test_all_forms_of_generators_are_accepted_and_others_refused():
    forms = [
        lambda seq_len, rng: ("x = 12\n#x: ", 12),
        lambda seq_len, rng: ("x = 12\n#x: ", np.int64(12), {"a": 1}),
        lambda seq_len, rng: ["x = 12\n#x: ", 12, None],
    ]
    assert {experiments.items(config(program_generator=make))[0].answer for make in forms} == {12}
    for made in [("x = 1", "1"), "x = 1", ("x", 1, {}, 2), None]:
        with pytest.raises(errors.RequestError, match="must return"):
            experiments.items(config(program_generator=lambda seq_len, rng, made=made: made))


def test_the_parser_follows_the_answer_unless_one_is_given(tmp_path, log):
    def run(text, **more):
        runner = ExperimentRunner(tmp_path, opener=lambda name: Scripted(log, name, text))
        return runner.run(config(models=["m"], num_seqs=2, seq_lens=[1], **more)).rows[0]["predicted_answer"]

    assert run("1234\n#q: 5") == 1234
    assert run("it is 1234") is None
    assert run("it is 1234", answer_parser=lambda text: int(text.split()[-1])) == 1234
    assert run(" true\n#q: False", program_generator=generators.make_boolean_program) is True


def test_a_wrong_label_is_refused_as_in_a_trace(runner):
    def make(seq_len, rng):
        return "a = 4\nb = a\n#b: ", 5

    with pytest.raises(errors.RequestError, match=r"program 0 of length 2 of .*make gives 4, but its label says 5"):
        runner.run(config(program_generator=make))
    with pytest.raises(errors.RequestError, match="'c' is used before"):
        runner.run(config(program_generator=lambda seq_len, rng: ("a = c\n#a: ", 1)))
    with pytest.raises(errors.RequestError, match="gives True, but its label says 1"):
        runner.run(config(program_generator=lambda seq_len, rng: ("a = True\n#a: ", 1)))


def test_programs_of_another_language_are_taken_at_their_word():
    for text in ("def f(): return 4\n#f: ", "(print (+ 2 2))"):
        one = experiments.items(config(program_generator=lambda seq_len, rng, text=text: (text, 4)))[0]
        assert one.answer == 4


def test_the_size_of_batches_can_be_given_with_the_run(runner, log):
    runner.run(config(models=["one"], seq_lens=[2]), batch_size=2)
    assert [one for one in log if isinstance(one, tuple)] == [("one", 2), ("one", 2), ("one", 1)]
    with pytest.raises(errors.RequestError, match="batch_size must be 1 or more"):
        runner.run(config(), batch_size=0)


def test_a_run_that_is_not_saved_writes_nothing_and_gives_the_same(runner, tmp_path):
    whole = runner.run(config(), save=False)
    assert whole.folder is None
    assert list(tmp_path.iterdir()) == []
    assert runner.plot("it").axes
    assert runner.analyze_errors("it")["one"]["answers"] == 10
    assert list(tmp_path.iterdir()) == []
    saved = runner.run(config())
    assert (list(saved.rows), saved.summary) == (list(whole.rows), whole.summary)
    with pytest.raises(errors.RequestError, match="save=False keeps nothing that run="):
        runner.run(config(), save=False, run="x")


@pytest.mark.parametrize("kind", experiments.SHIPPED)
def test_the_command_line_and_python_read_answers_alike(kind):
    one = experiments.SHIPPED[kind]
    own = quick_experiment(kind, one.template, one.generator, ["tiny-gpt2"])
    assert experiments.shipped(kind, ["tiny-gpt2"]).to_json() == own.to_json()


def test_a_prompt_for_a_word_is_asked_without_the_space_before_it(tmp_path, log):
    asked = []

    class Hears(Scripted):
        def ask(self, prompts, sampling):
            asked.extend(prompts)
            return super().ask(prompts, sampling)

    runner = ExperimentRunner(tmp_path, opener=lambda name: Hears(log, name, " True"))
    result = runner.run(experiments.shipped("boolean", ["m"], num_seqs=3, seq_lens=[2]))
    assert all(prompt.endswith(":") for prompt in asked)
    assert all(row["program"].endswith(": ") for row in result.rows)
    runner.run(experiments.shipped("range", ["m"], num_seqs=3, seq_lens=[2]))
    assert all(prompt.endswith(": ") for prompt in asked[3:])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_seqs": 0}, "num_seqs must be 1 or more"),
        ({"seq_lens": []}, "seq_lens must have 1 or more"),
        ({"seq_lens": [0, 2]}, "at least 1"),
        ({"seq_lens": [2, 2]}, "different lengths"),
        ({"models": []}, "models must have 1 or more"),
        ({"models": ["a", "a"]}, "different models"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"seeds": 3}, "no setting 'seeds'; did you mean 'seed'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(errors.RequestError, match=words):
        config(**wrong)


def test_names_and_templates_are_checked():
    with pytest.raises(errors.RequestError, match="name must be"):
        quick_experiment("a/b", prompts.MINIMAL, generators.make_range_program, ["m"])
    with pytest.raises(errors.RequestError, match="exactly one"):
        quick_experiment("a", "what?", generators.make_range_program, ["m"])
    with pytest.raises(errors.RequestError, match="no experiment 'bindin'; did you mean 'binding'"):
        experiments.shipped("bindin", ["m"])


def test_a_models_batches_do_not_depend_on_what_was_asked_before(llama):
    answerer = answering.ModelAnswerer(llama)
    texts = [generators.make_range_program(5, np.random.default_rng(seed))[0] for seed in range(6)]
    sampling = {"max_new_tokens": 6, "temperature": 0.0, "seed": 0}
    first = answerer.ask(texts[:3], sampling)
    assert answerer.ask(texts, sampling)[:3] == first
    assert answerer.ask(texts[:3], sampling) == first
    assert [len(text) > 0 for text in first] == [True] * 3


def test_each_prompt_draws_from_a_seed_of_its_own_whatever_stands_beside_it(llama):
    answerer = answering.ModelAnswerer(llama)
    texts = [f"x = {number}\n" for number in range(8)]
    sampling = {"max_new_tokens": 4, "temperature": 1e6, "seed": 0}  # so hot that a seed alone decides
    said = answerer.ask(texts, sampling)
    assert len(set(said)) == 8
    assert answerer.ask(texts[5:], sampling) == said[5:]
    assert answerer.ask(texts, {**sampling, "seed": 1}) != said
