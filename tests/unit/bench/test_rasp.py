"""RASP programs evaluated directly, and the values that their variables may take."""

import pytest

from sonde.bench import rasp
from sonde.core import errors

BEFORE = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key < query)


def test_a_map_changes_each_value():
    assert rasp.evaluate(rasp.Map(str.upper, rasp.TOKENS), "abc") == ["A", "B", "C"]


def test_a_sequence_map_joins_two_values_of_a_position():
    program = rasp.SequenceMap(lambda token, index: f"{token}{index}", rasp.TOKENS, rasp.INDICES)
    assert rasp.evaluate(program, "ab") == ["a0", "b1"]


def test_a_linear_sequence_map_is_a_weighted_sum():
    assert rasp.evaluate(rasp.LinearSequenceMap(rasp.TOKENS, rasp.INDICES, 2.0, -1.0), [3, 3]) == [6.0, 5.0]


def test_a_width_counts_what_is_selected():
    assert rasp.evaluate(rasp.SelectorWidth(BEFORE), "abc") == [0, 1, 2]


def test_a_numerical_aggregate_is_the_mean_and_the_default_stands_where_nothing_is_selected():
    program = rasp.Aggregate(BEFORE, rasp.TOKENS, 9, kind="numerical")
    assert rasp.evaluate(program, [1, 4, 7]) == [9, 1.0, 2.5]


def test_nothing_selected_and_no_default_is_none_and_so_is_what_follows_from_it():
    last = rasp.Aggregate(rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key == query - 1), rasp.TOKENS)
    assert rasp.evaluate(last, "ab") == [None, "a"]
    assert rasp.evaluate(rasp.Map(str.upper, last), "ab") == [None, "A"]
    assert rasp.evaluate(rasp.SequenceMap(lambda one, two: one + two, last, rasp.TOKENS), "ab") == [None, "ab"]
    same = rasp.SelectorWidth(rasp.Select(last, last, lambda key, query: True))
    assert rasp.evaluate(same, "ab") == [0, 1]  # a missing value neither looks nor is looked at


def test_in_causal_evaluation_no_position_looks_at_later_ones():
    everything = rasp.SelectorWidth(rasp.Select(rasp.TOKENS, rasp.TOKENS, lambda key, query: True))
    assert rasp.evaluate(everything, "abc") == [3, 3, 3]
    assert rasp.evaluate(everything, "abc", causal=True) == [1, 2, 3]


def test_categorical_values_that_differ_cannot_be_aggregated():
    program = rasp.Aggregate(BEFORE, rasp.TOKENS, name="mixed")
    with pytest.raises(errors.RequestError, match="'mixed' is categorical but selects values that differ"):
        rasp.evaluate(program, "abc")


def test_kinds_can_be_changed_and_nothing_else_changes():
    program = rasp.Map(len, rasp.TOKENS, name="length")
    assert rasp.numerical(program).kind == "numerical"
    assert rasp.categorical(rasp.numerical(program)).kind == "categorical"
    assert rasp.numerical(program).name == "length"


def test_each_variable_comes_once_and_after_those_that_it_reads():
    length = rasp.Map(len, rasp.TOKENS)
    program = rasp.SequenceMap(lambda one, two: one == two, length, length)
    assert rasp.variables(program) == (rasp.TOKENS, length, program)


def test_values_are_those_that_inputs_of_the_length_may_give():
    flag = rasp.Map(lambda token: int(token == "x"), rasp.TOKENS, kind="numerical")
    mean = rasp.Aggregate(BEFORE, flag, 0, kind="numerical")
    width = rasp.SelectorWidth(BEFORE)
    both = rasp.SequenceMap(lambda one, two: (one, two), width, rasp.TOKENS)
    known = rasp.values_of(both, "xa", 3) | rasp.values_of(mean, "xa", 3)
    assert known[rasp.TOKENS] == ("a", "x")
    assert known[rasp.INDICES] == (0, 1, 2)
    assert known[width] == (0, 1, 2, 3)
    assert known[mean] == (0, 1 / 3, 0.5, 2 / 3, 1)
    assert len(known[both] or ()) == 8


def test_means_of_too_many_numbers_are_not_listed():
    program = rasp.Aggregate(BEFORE, rasp.TOKENS, 0, kind="numerical")
    assert rasp.values_of(program, [0.1 * 3**power for power in range(12)], 12)[program] is None


def test_values_that_may_be_missing_are_known():
    some = rasp.Map(lambda token: token if token == "a" else None, rasp.TOKENS)
    known = rasp.values_of(some, "ab", 3)
    assert known[some] == ("a",)
    assert rasp.may_be_missing(some, known)
    assert not rasp.may_be_missing(rasp.TOKENS, known)


def test_a_function_that_fails_is_named():
    program = rasp.Map(lambda number: 1 / number, rasp.TOKENS, name="inverse")
    with pytest.raises(errors.CompileError, match=r"Map 'inverse': its function fails .*ZeroDivisionError"):
        rasp.values_of(program, [0, 1], 3)
