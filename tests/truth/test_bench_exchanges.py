"""Exchanging a node between inputs of any lengths is what the RASP program itself says, computed here without a model."""

import numpy as np
import pytest
import torch

from sonde.bench import cases, correspondence, high, lengths, placing, rasp, shipped

CORE = tuple(map(str, cases.ids("core")))
LARGE = {"2", "39", "97", "113"}


def exchanged(case, base, other, node):
    """The program's answers on `base`, with the variables of a node as on `other` at the positions that both have."""
    places, there = placing.place(case.program).of, rasp.evaluate_all(case.program, other, causal=case.causal)

    def change(variable, values):
        if variable not in places or node not in places[variable].nodes:
            return values
        shared = min(len(base), len(other))
        return [*there[variable][:shared], *values[shared:]]

    return rasp.evaluate_all(case.program, base, causal=case.causal, change=change)[case.program]


def tokens_of(case, rows):
    vocabulary = case.compiled().vocabulary
    return [tuple(vocabulary[token] for token in row[1:]) for row in rows.tolist()]


@pytest.mark.parametrize("number", [pytest.param(one, marks=pytest.mark.slow) if one in LARGE else one for one in CORE])
def test_a_node_exchanged_in_the_compiled_model_is_the_node_exchanged_in_the_program(number):
    case, task, rng = cases.get(int(number)), shipped.task_of(number), np.random.default_rng(int(number))
    names, outputs, known = correspondence.nodes_of(task.program.circuit), case.compiled().outputs, task.inputs.lengths
    middle = known[len(known) // 2]
    for one, two in ((known[0], known[-1]), (known[-1], known[0]), (middle, known[-1]), (known[-1], known[-1])):
        base, other = task.inputs.pair(rng, 6, length=one, other=two)
        swapped = torch.eye(len(names), dtype=torch.bool)[:, None].expand(-1, len(base), -1)
        answers = task.program.answers(base, other, swapped)[:, :, 1:]
        for node, found in zip(names, answers, strict=True):
            for row, here, there in zip(found.tolist(), tokens_of(case, base), tokens_of(case, other), strict=True):
                expected = exchanged(case, here, there, node)
                if task.regression:
                    assert row == pytest.approx(expected, abs=1e-3)
                else:
                    said = [None if answer == high.UNKNOWN else outputs[int(answer)] for answer in row]
                    assert said == expected, (node, here, there)


def reads_nothing_but_positions(case, node):
    """Whether no variable of a node is computed from tokens, so that it is the same at a position of any two inputs."""
    places = placing.place(case.program).of
    return not any(rasp.TOKENS in rasp.variables(variable) for variable, place in places.items() if node in place.nodes)


@pytest.mark.parametrize("number", [pytest.param(one, marks=pytest.mark.slow) if one in LARGE else one for one in CORE])
def test_every_node_matters_in_at_least_2_percent_of_exchanges_unless_it_knows_nothing_but_positions(number):
    case, task, rng = cases.get(int(number)), shipped.task_of(number), np.random.default_rng(0)
    moved = lengths.moved(task, [lengths.pair(task, rng, 10) for _ in range(40)])
    for node, share in moved.items():
        assert (share < lengths.LEAST) == reads_nothing_but_positions(case, node), (node, share)


def test_inputs_of_different_lengths_are_exchanged_where_the_program_reads_the_length_alone():
    assert lengths.mixed(shipped.task_of("67"))  # the length decides from where a token is taken
    assert not lengths.mixed(shipped.task_of("3"))
    assert not lengths.mixed(shipped.task_of("ioi"))
    rng = np.random.default_rng(0)
    apart = [one.shape != two.shape for one, two in (lengths.pair(shipped.task_of("67"), rng, 2) for _ in range(200))]
    assert 0.3 < np.mean(apart) < 0.6
    assert all(one.shape == two.shape for one, two in (lengths.pair(shipped.task_of("3"), rng, 2) for _ in range(50)))
