"""The 129 cases: worked examples, the facts they share with InterpBench, compiled against direct evaluation, true circuits."""

import json
import pathlib
import random
import re
import time

import numpy as np
import pytest
import torch

from sonde.bench import cases, compiling, listing
from sonde.circuits import graph, pairs, running
from sonde.core import errors

FACTS = json.loads((pathlib.Path(__file__).parents[1] / "data/bench/cases.json").read_text(encoding="utf-8"))
ALL, CORE = cases.ids("all"), cases.ids("core")
FEW, MANY, EXHAUSTIVE = 15, 1000, 5000
OTHER_COMPONENTS = {5, 42, 57, 116, 119, 127}
INPUT_UNCOUNTED = {
    1,
    6,
    13,
    17,
    19,
    32,
    38,
    92,
    97,
    99,
    112,
    115,
    131,
}  # an MLP reads the input and a head that read it
OTHER_EDGES = {81, 88, 96, 108, 113, 118, 124, 125, 126}
OTHER_ANSWERS = {10, 19, 21, 23, 119}  # a blank where the original has no answer; fewer values of a part sum
QUICK = {2, 3, 4, 18, 21, 97, 110, 129}  # circuits that are run alone in every test run; the others only in slow ones


def agree(case, inputs):
    """Checks that the compiled model and the program say the same, and always something."""
    compiled = case.compiled()
    for tokens, said in zip(inputs, compiled.run(inputs), strict=True):
        expected = case.evaluate(tokens)
        assert None not in expected, (case.id, tokens)
        if case.kind == "reg":
            assert said == pytest.approx(expected, abs=1e-5), (case.id, tokens)
        else:
            assert said == expected, (case.id, tokens)


@pytest.mark.parametrize("number", ALL)
def test_the_program_says_what_was_worked_out_by_hand(number):
    case = cases.get(number)
    for given, said in case.examples:
        assert case.evaluate(given) == list(said)
        assert len(given) in case.lengths


@pytest.mark.parametrize("number", ALL)
def test_a_case_has_the_facts_of_its_namesake(number):
    case, facts = cases.get(number), FACTS[str(number)]
    assert (case.kind, case.causal, case.released) == (facts["kind"], facts["causal"], facts["released"])
    assert [case.min_length, case.max_length] == facts["lengths"]
    assert len(set(case.vocabulary)) == len(case.vocabulary) == facts["n_words"]
    assert sorted(map(str, case.vocabulary))[:6] == facts["first_words"]


def test_the_groups_are_those_of_the_table():
    assert tuple(int(number) for number in FACTS) == ALL
    released = [int(number) for number, facts in FACTS.items() if facts["released"]]
    assert list(cases.ids("released")) == released
    assert list(CORE) == [number for number in released if len(FACTS[str(number)]["components"]) > 1]
    assert (len(ALL), len(released), len(CORE)) == (129, 84, 32)


def components(number):
    """Heads and MLPs, each with its layer."""
    kinds = {"a": "head", "m": "MLP"}
    names = cases.get(number).compiled().components
    return sorted(f"{kinds[name[0]]} of layer {re.findall(r'[0-9]+', name)[0]}" for name in names)


@pytest.mark.parametrize("number", ALL)
def test_the_circuit_of_a_case_has_the_components_of_the_table(number):
    assert (components(number) == FACTS[str(number)]["components"]) == (number not in OTHER_COMPONENTS)


@pytest.mark.parametrize("number", ALL)
def test_the_circuit_of_a_case_has_as_many_edges_as_in_the_table(number):
    """Those into queries, keys and values of a head are one edge."""
    edges = {re.sub("<.>", "", name) for name in cases.get(number).compiled().circuit.names}
    same = len(edges) == FACTS[str(number)]["n_edges"]
    assert same == (number not in OTHER_COMPONENTS | INPUT_UNCOUNTED | OTHER_EDGES)
    if number in INPUT_UNCOUNTED:
        assert len(edges) == FACTS[str(number)]["n_edges"] + 1


@pytest.mark.parametrize("number", ALL)
def test_a_model_has_as_many_answers_as_in_the_table(number):
    outputs = cases.get(number).compiled().outputs
    assert (len(outputs or [0]) == FACTS[str(number)]["n_labels"]) == (number not in OTHER_ANSWERS)


@pytest.mark.parametrize("number", CORE)
def test_a_compiled_core_case_says_what_its_program_says(number):
    case = cases.get(number)
    agree(case, [*(given for given, _ in case.examples), *case.sample(FEW)])


@pytest.mark.slow
@pytest.mark.parametrize("number", ALL)
def test_every_compiled_case_says_what_its_program_says(number):
    case = cases.get(number)
    agree(case, list(case.inputs()) if case.n_inputs <= EXHAUSTIVE else case.sample(MANY))


@pytest.mark.slow
def test_all_cases_compile_within_ten_seconds():
    started = time.process_time()
    for case in map(cases.get, ALL):
        compiling.compile(case.program, case.vocabulary, max_length=case.max_length, causal=case.causal)
    assert time.process_time() - started < 10


def twins(case, n, *, seed=0):
    """Clean and corrupt inputs of equal, greatest length, the corrupt ones with their positions shuffled.

    Every other clean input is one token repeated, for tasks that seldom say yes to random ones.
    """
    draw, compiled, length = random.Random(seed), case.compiled(), case.max_length - 1
    words = case.vocabulary
    rows = [
        [
            compiled.encode(draw.choices(words if row % 2 or side else [draw.choice(words)], k=length))
            for row in range(n)
        ]
        for side in range(2)
    ]
    orders = [[0, *draw.sample(range(1, length + 1), length)] for _ in range(n)]
    read = torch.ones(n, length + 1, dtype=torch.bool)
    read[:, 0] = False
    clean, corrupt = (torch.tensor(one) for one in rows)
    return pairs.Pairs.of_tensors(clean, corrupt, positions=torch.tensor(orders), read=read)


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=() if number in QUICK else pytest.mark.slow) for number in CORE]
)
def test_the_true_circuit_alone_does_the_whole_task(number):
    case = cases.get(number)
    compiled = case.compiled()
    with compiled.model() as model:
        runner = running.Runner(model, twins(case, 8), "mse")
        assert runner.graph == compiled.circuit.graph
        whole, alone = runner.logits(), runner.logits(compiled.circuit)
        assert torch.allclose(whole, alone, atol=1e-4)
        nothing = runner.logits(graph.Circuit.empty(runner.graph))
        assert not torch.allclose(whole, nothing, atol=0.1)  # the control: cut everything, and the task is not done


@pytest.mark.parametrize("number", [3, 4, 15, 53, 110])
def test_no_edge_of_the_true_circuit_can_be_spared(number):
    case = cases.get(number)
    true = case.compiled().circuit
    with case.compiled().model() as model:
        runner = running.Runner(model, twins(case, 64), "mse")
        whole = runner.logits()
        for i, j in zip(*np.nonzero(true.edges), strict=True):
            fewer = true.edges.copy()
            fewer[i, j] = False
            name = f"{true.graph.sources[i]}->{true.graph.destinations[j]}"
            assert not torch.allclose(whole, runner.logits(graph.Circuit(true.graph, fewer)), atol=1e-3), name


@pytest.mark.parametrize("number", ALL)
def test_a_program_can_be_read(number):
    lines = listing.lines(cases.get(number).program)
    assert lines
    assert not any("function" in line for line in lines)


def test_all_cases_have_names_of_their_own():
    assert len({cases.get(number).name for number in ALL}) == len(ALL)


@pytest.mark.parametrize("number", [0, 16, 27, 132])
def test_a_number_without_a_case_is_refused(number):
    with pytest.raises(errors.RequestError, match=rf"no case {number}: they go from 1 to 131, without 16 and 27"):
        cases.get(number)


def test_an_unknown_group_is_refused():
    with pytest.raises(
        errors.RequestError, match="no group 'cores'; there are all, released, core; did you mean 'core'"
    ):
        cases.ids("cores")


def test_a_case_is_compiled_once():
    assert cases.get(3).compiled() is cases.get(3).compiled()


def test_inputs_are_all_there_are_and_samples_fit():
    case = cases.get(3)
    assert len(set(case.inputs())) == case.n_inputs == 4**3 + 4**4
    assert set(case.sample(200)) <= set(case.inputs())
    assert case.sample(5, seed=1) == case.sample(5, seed=1) != case.sample(5, seed=2)
