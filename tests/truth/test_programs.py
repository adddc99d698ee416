"""Planted answerers are seen through: one that runs programs scores all, one that reads line 1 scores what that gives."""

import numpy as np
import pytest

from sonde.programs import (
    ExperimentRunner,
    SeedsSettings,
    experiments,
    find_robust_seeds,
    generators,
    heuristics,
    interpreter,
    prompts,
)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SONDE_RUNS", str(tmp_path / "runs"))


class Planted:
    """Answers a program by a rule."""

    def __init__(self, rule):
        self.rule = rule

    def ask(self, asked, sampling):
        template = prompts.VARIABLE_BINDING.removesuffix("{code}")
        return [f"{self.rule(prompt.removeprefix(template))}\n\na = 3" for prompt in asked]

    def close(self):
        pass


RULES = {"runs it": interpreter.answer, "line 1": heuristics.line_1, "line 2": heuristics.line_2}


def opened(name):
    return Planted(RULES[name])


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    runner = ExperimentRunner(tmp_path_factory.mktemp("results"), opener=opened)
    return runner.run(experiments.shipped("binding", list(RULES), num_seqs=60, seq_lens=[5, 17], batch_size=60))


def test_who_runs_the_program_scores_all_and_who_reads_line_1_little_more_than_chance(result):
    by_model = result.summary["by_model"]
    assert by_model["runs it"]["accuracy"] == 1.0
    assert by_model["line 1"]["high"] < 0.5
    long = [row["correct"] for row in result.rows if row["model_id"] == "line 1" and row["seq_len"] == 17]
    assert np.mean(long) < 0.3


def test_the_heuristics_beside_a_model_are_what_models_that_use_them_score(result):
    for rule, name in (("line 1", "line-1 heuristic"), ("line 2", "line-2 heuristic")):
        expected = result.summary["heuristics"]["overall"][name]
        assert result.summary["by_model"][rule]["accuracy"] == pytest.approx(expected)


def test_reading_line_1_is_exposed_by_the_root_line(result):
    def accuracy(model, *, first):
        rows = [row for row in result.rows if row["model_id"] == model]
        return np.mean([row["correct"] for row in rows if (row["metadata"]["root_line"] == 1) == first])

    assert accuracy("line 1", first=True) == 1.0
    assert accuracy("line 1", first=False) < 0.2
    assert accuracy("runs it", first=False) == 1.0


def test_no_shallow_rule_scores_on_balanced_programs_of_16_lines():
    made = generators.make_balanced_binding_programs(16, 300, np.random.default_rng(0))
    scores = heuristics.scores([(program, answer) for program, answer, _ in made])
    assert scores["line-1 heuristic"] < 0.22, "an unbalanced set gives it four fifths"
    assert scores["line-2 heuristic"] < 0.22
    last = [str(answer) == told["assignments"][-1][1] for _, answer, told in made]
    assert np.mean(last) < 0.22


def test_labels_are_right_beyond_26_lines():
    for seq_len in (27, 35):
        for seed in range(25):
            program, answer = generators.make_variable_binding_program(seq_len, np.random.default_rng(seed))
            code, query = interpreter.split(program)
            scope = {}
            exec(code, scope)
            assert scope[query] == answer


def test_robust_seeds_are_those_that_all_models_get_right():
    found = find_robust_seeds(SeedsSettings(models=("runs it", "line 1"), max_seeds=40), opener=opened)
    assert [(one.hops, one.seq_len) for one in found] == [(3, 17), (2, 17), (1, 17), (3, 5), (2, 5), (1, 5)]
    for one in found:
        if one.seed is None:
            assert one.tried == 40
            continue
        rng = np.random.default_rng(one.seed)
        program, answer = generators.make_variable_binding_program(one.seq_len, rng, hops=one.hops)
        assert (program, answer) == (one.program, one.answer)
        assert heuristics.line_1(program) == answer
        earlier = [
            generators.make_variable_binding_program(one.seq_len, np.random.default_rng(seed), hops=one.hops)
            for seed in range(one.seed)
        ]
        assert all(heuristics.line_1(program) != answer for program, answer in earlier), "the first such seed"
    assert sum(one.seed is not None for one in found) >= 4
    (nothing,) = find_robust_seeds(SeedsSettings(models=("line 2",), cases=((3, 3),), max_seeds=20), opener=opened)
    assert (nothing.seed, nothing.tried) == (None, 20), "with three hops in three lines, line 2 holds no constant"
