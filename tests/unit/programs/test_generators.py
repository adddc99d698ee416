"""Programs: labelled by running them, of any length, seeded, varied, balanced."""

import collections
import random

import numpy as np
import pytest

from sonde.core import errors
from sonde.programs import chains, generators, heuristics, interpreter, randomness

SIMPLE = [
    generators.make_variable_binding_program,
    generators.make_range_program,
    generators.make_range_program_unrolled,
    generators.make_variable_increments,
    generators.make_arithmetic_sequence,
    generators.make_counter_program,
    generators.make_fibonacci_program,
    generators.make_exception_program,
    generators.make_boolean_program,
]
RICH = [generators.make_variable_binding_program_with_metadata, generators.make_counterfactual_pair]


def rng(*seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("make", [*SIMPLE, *RICH])
@pytest.mark.parametrize("seq_len", [1, 2, 5, 17, 60])
def test_the_label_is_what_python_computes(make, seq_len):
    for seed in range(5):
        program, answer, *_ = make(seq_len, rng(seed))
        code, query = interpreter.split(program)
        scope = {}
        exec(code, scope)
        assert scope[query] == answer
        assert type(answer) is type(scope[query])


@pytest.mark.parametrize("make", [*SIMPLE, *RICH])
def test_a_seed_fixes_the_program_and_another_changes_it(make):
    assert make(9, rng(4)) == make(9, rng(4))
    assert len({make(9, rng(seed))[0] for seed in range(30)}) >= 28


@pytest.mark.parametrize("make", [*SIMPLE, *RICH])
def test_no_program_without_assignments(make):
    with pytest.raises(errors.RequestError, match="at least one assignment"):
        make(0, rng(0))


@pytest.mark.parametrize("seq_len", [1, 5, 26, 27, 35])
def test_a_binding_program_has_as_many_assignments_as_asked_and_no_variable_twice(seq_len):
    for seed in range(10):
        program, answer, told = generators.make_variable_binding_program_with_metadata(seq_len, rng(seed))
        names = [name for name, _ in told["assignments"]]
        assert program.count("\n") == len(names) == len(set(names)) == seq_len
        assert chains.VariableChain.of(program).value == answer
        assert program.endswith(f"#{told['query']}: ")


def test_hops_and_root_line_are_those_asked_for():
    for hops, root_line in [(1, 1), (1, 17), (2, 9), (3, 15), (4, 1), (4, 14)]:
        _, answer, told = generators.make_variable_binding_program_with_metadata(
            17, rng(hops, root_line), hops=hops, root_line=root_line
        )
        assert (told["depth"], told["root_line"]) == (hops, root_line)
        assert told["assignments"][root_line - 1][1] == str(answer)
        assert len(told["chain"]) == hops


def test_with_and_without_metadata_it_is_the_same_program():
    with_metadata = generators.make_variable_binding_program_with_metadata(12, rng(3))
    assert generators.make_variable_binding_program(12, rng(3)) == with_metadata[:2]
    assert set(with_metadata[2]) == {"chain", "query", "assignments", "depth", "root_line", "targets"}


def test_metadata_say_at_which_characters_the_targets_stand():
    program, answer, told = generators.make_variable_binding_program_with_metadata(12, rng(5), hops=3)
    text = {one["role"]: program[one["start"] : one["end"]] for one in told["targets"]}
    assert text == {"rhs_1": str(answer), "rhs_2": told["chain"][2], "rhs_3": told["chain"][1], "query": told["query"]}


@pytest.mark.parametrize(
    ("hops", "root_line"), [(6, None), (0, None), (None, 6), (None, 0), (3, 4)], ids=lambda value: str(value)
)
def test_an_impossible_request_is_refused(hops, root_line):
    with pytest.raises(errors.RequestError, match="no program of 5 assignments"):
        generators.make_variable_binding_program(5, rng(0), hops=hops, root_line=root_line)


def test_a_balanced_set_has_equal_counts_of_hops_and_of_root_lines_for_each():
    made = generators.make_balanced_binding_programs(8, 403, rng(1))
    cells = collections.Counter((told["depth"], told["root_line"]) for _, _, told in made)
    by_hops = collections.Counter(told["depth"] for _, _, told in made)
    assert len(made) == 403
    assert set(by_hops) == {1, 2, 3, 4}
    assert max(by_hops.values()) - min(by_hops.values()) <= 1
    for hops in by_hops:
        lines = [cells[hops, line] for line in range(1, 8 - hops + 2)]
        assert max(lines) - min(lines) <= 1
    assert sum(cells.values()) == 403
    assert len({program for program, _, _ in made}) == 403
    assert made == generators.make_balanced_binding_programs(8, 403, rng(1))


def test_more_hops_than_lines_are_not_asked_for():
    made = generators.make_balanced_binding_programs(2, 9, rng(0), max_hops=7)
    assert {told["depth"] for _, _, told in made} == {1, 2}


@pytest.mark.parametrize(("count", "max_hops"), [(0, 4), (5, 0)])
def test_an_empty_set_is_refused(count, max_hops):
    with pytest.raises(errors.RequestError, match="at least 1"):
        generators.make_balanced_binding_programs(5, count, rng(0), max_hops=max_hops)


def test_the_unrolled_form_is_the_same_computation_without_a_loop():
    for seed in range(40):
        (looped, answer), (flat, same) = (
            make(6, rng(seed)) for make in (generators.make_range_program, generators.make_range_program_unrolled)
        )
        assert answer == same
        assert "for " in looped
        assert "for " not in flat
        assert flat.count("\n") == 6


def test_range_programs_vary():
    made = [generators.make_range_program(6, rng(seed)) for seed in range(100)]
    assert len({program for program, _ in made}) >= 95
    assert len({answer for _, answer in made}) >= 30
    assert {program.count(",") for program, _ in made} == {0, 1, 2}, "range with one, two and three numbers"


def test_true_and_false_are_equally_frequent_at_any_length():
    for seq_len in (1, 3, 10):
        answers = [generators.make_boolean_program(seq_len, rng(seed, 1))[1] for seed in range(300)]
        assert 0.42 < np.mean(answers) < 0.58


def test_both_branches_of_a_try_are_taken():
    program, _ = generators.make_exception_program(40, rng(0))
    assert 8 <= program.count("// 0\n") <= 31


def test_a_counterfactual_pair_holds_its_twin():
    program, answer, told = generators.make_counterfactual_pair(7, rng(2))
    assert interpreter.answer(told["counterfactual_program"]) == told["counterfactual_answer"] != answer
    assert len(told["counterfactual_program"]) == len(program)


@pytest.mark.parametrize("make", [*SIMPLE, *RICH])
@pytest.mark.parametrize("kind", [np.random.RandomState, random.Random])
def test_numpys_older_and_pythons_random_generators_are_taken(make, kind):
    one, other = kind(3), kind(3)
    made = [make(4, one)[:2] for _ in range(6)]
    assert made == [make(4, other)[:2] for _ in range(6)], "a state fixes the programs"
    assert len(set(made)) > 1, "and moves on"
    assert all(interpreter.answer(program) == answer for program, answer in made)


def test_sets_of_programs_take_them_too_and_others_are_refused():
    made = generators.make_balanced_binding_programs(3, 4, np.random.RandomState(0))
    assert made == generators.make_balanced_binding_programs(3, 4, np.random.RandomState(0))
    with pytest.raises(errors.RequestError, match=r"Generator or RandomState, or random\.Random, got int"):
        randomness.generator(0)


def test_a_program_that_has_all_ten_digits_is_drawn_again_for_a_pair_and_counted():
    redrawn = 0
    for seed in range(12):
        program, _, told = generators.make_counterfactual_pair(50, rng(seed))
        assert told["counterfactual_answer"] not in chains.VariableChain.of(program).constants
        redrawn += told["redrawn"]
    assert redrawn > 0
    with pytest.raises(errors.RequestError, match="all have all ten digits"):
        generators.make_counterfactual_pair(300, rng(0))


def test_heuristics_read_the_constants_of_the_first_two_lines():
    program = "a = 12\nb = a\nc = -3\n#c: "
    assert (heuristics.line_1(program), heuristics.line_2(program)) == (12, None)
    assert heuristics.line_2("a = b\nc = True\n#c: ") is True
    assert heuristics.line_2("a = 1") is None
    assert heuristics.scores([(program, 12), (program, 3)]) == {"line-1 heuristic": 0.5, "line-2 heuristic": 0.0}
    assert heuristics.scores([("a = 1\n#a: ", True)])["line-1 heuristic"] == 0.0, "1 is not True"
