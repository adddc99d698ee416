"""Losses, measures, places and inputs: what they promise."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest
import torch

from sonde.bench import batched, correspondence, high, measuring, sampling, siit
from sonde.circuits import graph
from sonde.core import errors

LOW = graph.Graph(3, 4, 4)


def circuit_of(*edges):
    return graph.Circuit.of(graph.Graph(3, 2, 2), edges)


CHAIN = circuit_of("input->a0.h0<q>", "a0.h0->m0", "m0->a1.h1<v>", "a1.h1->logits")


@pytest.fixture
def perfect(case3):
    """The program itself as the model, nodes at their own places."""
    places = correspondence.draw(case3.program.circuit, case3.program.circuit.graph, same_place=True)
    return siit.Pupils(case3, case3.program.shape, [places])


@pytest.mark.parametrize("seed", range(20))
def test_places_keep_the_order_of_the_program(seed):
    places = correspondence.draw(CHAIN, LOW, seed=seed)
    found = correspondence.carried(CHAIN, places, LOW)  # refuses edges that go backwards
    assert len(found) == len(CHAIN)
    assert {name[0] for name in (places["a0.h0"], places["a1.h1"])} == {"a"}
    assert places["m0"][0] == "m"


def every_layout(circuit, low):
    """All of them, by trying every assignment of places."""
    nodes, reads = correspondence.nodes_of(circuit), [name.partition("->") for name in circuit.merged().names]
    stage = {place: 2 * int(place[1:].partition(".")[0]) + (place[0] == "m") for place in low.sources[1:]}
    kinds = [[place for place in stage if place[0] == node[0]] for node in nodes]
    for places in itertools.product(*kinds):
        found = dict(zip(nodes, places, strict=True))
        pairs = [(found[one], found[two]) for one, _, two in reads if one in found and two in found]
        if len(set(places)) == len(places) and all(stage[one] < stage[two] for one, two in pairs):
            yield tuple(places)


@pytest.mark.parametrize(
    "edges",
    [
        ("input->m0", "m0->a1.h0<v>", "a1.h0->logits"),
        ("input->a0.h0<q>", "input->a0.h1<q>", "a0.h0->m0", "m0->logits", "a0.h1->logits"),
        ("input->a0.h0<q>", "a0.h0->m0", "m0->a1.h1<v>", "a1.h1->logits"),
    ],
)
def test_places_are_drawn_evenly_from_all_layouts_in_which_nodes_come_after_those_they_read(edges):
    circuit, low = circuit_of(*edges), graph.Graph(2, 3, 3)
    every, draws = list(every_layout(circuit, low)), 1000
    drawn = collections.Counter(
        tuple(correspondence.draw(circuit, low, name="case 3", seed=seed).values()) for seed in range(draws)
    )
    assert set(drawn) <= set(every)
    expected = draws / len(every)
    distance = sum((drawn[one] - expected) ** 2 / expected for one in every)
    assert abs(distance - len(every)) < 4 * (2 * len(every)) ** 0.5  # chi squared, within four deviations


def test_cases_of_one_circuit_have_places_of_their_own():
    drawn = {tuple(correspondence.draw(CHAIN, LOW, name=f"case {case}", seed=0).values()) for case in range(20)}
    assert len(drawn) > 10


def test_places_differ_between_seeds_and_are_their_own_when_asked():
    drawn = {tuple(correspondence.draw(CHAIN, LOW, seed=seed).values()) for seed in range(20)}
    assert len(drawn) > 10
    assert correspondence.draw(CHAIN, LOW, same_place=True) == {"a0.h0": "a0.h0", "m0": "m0", "a1.h1": "a1.h1"}


def test_a_circuit_that_does_not_fit_is_refused():
    with pytest.raises(errors.RequestError, match="does not fit into 1 layers"):
        correspondence.draw(CHAIN, graph.Graph(1, 4, 4))


def test_the_program_answers_as_its_definition_says(case3):
    base = torch.tensor([[4, 3, 0, 3, 3]])
    none = torch.zeros(1, 1, 2, dtype=torch.bool)
    assert case3.program.answers(base, base, none)[0, 0, 1:].tolist() == pytest.approx([1, 1 / 2, 2 / 3, 3 / 4])


def test_a_swapped_node_of_the_program_has_the_others_value(case3):
    base, other = torch.tensor([[4, 3, 0, 3, 3]]), torch.tensor([[4, 0, 0, 0, 3]])
    whole = torch.tensor([[[False, True]], [[True, False]]])  # the head; then the MLP, which is all that the head reads
    for answers in case3.program.answers(base, other, whole):
        assert answers[0, 1:].tolist() == pytest.approx([0, 0, 0, 1 / 4])


def test_the_program_as_its_own_pupil_has_no_loss_and_full_marks(perfect):
    weights = perfect.task.program.weights
    batch = perfect.batch(np.random.default_rng(0), 64)
    assert perfect.losses(weights, batch).abs().max() < 1e-9
    (found,) = measuring.measure(perfect, weights, rows=32)
    assert (found.accuracy, found.iia, found.strict) == (1.0, 1.0, 1.0)
    assert found.moved["a1.h0"] > 0.3


def test_a_model_whose_nodes_stand_elsewhere_fails_iit_and_strict_but_behaves(case3):
    shape = dataclasses.replace(case3.program.shape)
    pupils = siit.Pupils(case3, shape, [{"m0": "m1", "a1.h0": "a0.h0"}])
    (found,) = measuring.measure(pupils, case3.program.weights, rows=200)
    assert found.accuracy == 1.0
    assert found.iia < 0.8
    assert found.strict < 0.8
    assert not found.reached(0.9)


@pytest.mark.parametrize(
    ("way", "low", "high_"), [("individual", 1, 1), ("sample_all", 0, 10), ("all", 10, 10), ("silent", 0, 0)]
)
def test_strict_swaps_touch_only_nodes_outside_the_circuit(case3, way, low, high_):
    shape = dataclasses.replace(case3.program.shape, n_heads=5)
    pupils = siit.Pupils(case3, shape, [{"m0": "m0", "a1.h0": "a1.h2"}, {"m0": "m1", "a1.h0": "a0.h1"}])
    batch = pupils.batch(np.random.default_rng(0), 100)
    masks = pupils.masks(batch, "strict", way)
    counts = masks.sum(dim=-1)
    assert not bool((masks & ~pupils.free[:, None]).any())
    assert low <= int(counts.min())
    assert int(counts.max()) <= high_


def test_nodes_outside_the_circuit_start_with_a_tenth_of_their_output(case3):
    shape = dataclasses.replace(case3.program.shape, n_heads=2)
    pupils = siit.Pupils(case3, shape, [{"m0": "m0", "a1.h0": "a1.h1"}])
    weights = batched.draw(shape, [0])
    before, after = (batched.named(shape, one[0]) for one in (weights, pupils.hushed(weights)))
    shares = {name: after[name] / before[name] for name in before if name.endswith("weight")}
    changed = {name for name in shares if not torch.equal(before[name], after[name])}
    attention = "model.layers.{}.self_attn.o_proj.weight"
    assert changed == {attention.format(0), attention.format(1), "model.layers.1.mlp.fc_out.weight"}
    assert torch.allclose(shares[attention.format(1)][0], torch.tensor([0.1, 1.0]))


def test_mixed_swaps_take_the_ways_in_turn(case3):
    shape = dataclasses.replace(case3.program.shape, n_heads=5)
    pupils = siit.Pupils(case3, shape, [{"m0": "m0", "a1.h0": "a1.h2"}, {"m0": "m1", "a1.h0": "a0.h1"}])
    batch = pupils.batch(np.random.default_rng(0), 30)
    for index, way in enumerate(siit.STRICT):
        for masks in (pupils.masks, pupils.silent):
            mixed = masks(batch, "strict", "mixed")
            assert torch.equal(mixed[:, index::4], masks(batch, "strict", way)[:, index::4])


def test_all_nodes_outside_the_circuit_are_silent_and_only_in_the_strict_loss(case3):
    shape = dataclasses.replace(case3.program.shape, n_heads=5)
    pupils = siit.Pupils(case3, shape, [{"m0": "m0", "a1.h0": "a1.h2"}, {"m0": "m1", "a1.h0": "a0.h1"}])
    batch = pupils.batch(np.random.default_rng(0), 8)
    assert torch.equal(pupils.silent(batch, "strict", "silent"), pupils.free[:, None].expand(-1, 8, -1))
    assert not any(bool(pupils.silent(batch, kind, "silent").any()) for kind in ("iit", "behaviour"))
    assert not bool(pupils.silent(batch, "strict", "all").any())


class Said:
    """A program of one node that says what it is told to: -1 is no answer."""

    def __init__(self, circuit, said):
        self.circuit, self.said = circuit, torch.tensor(said)

    def answers(self, base, other, swapped):
        return self.said.expand(len(swapped), len(base), -1)


def test_where_the_program_has_no_answer_nothing_is_learned_and_nothing_counts(case3):
    edges = ("input->m0", "m0->logits")
    program = Said(graph.Circuit.of(case3.program.circuit.graph, edges), [0, 1, high.UNKNOWN, 1, high.UNKNOWN])
    inputs = dataclasses.replace(case3.inputs, lengths=(4,))
    task = dataclasses.replace(case3, program=program, regression=False, d_out=2, inputs=inputs)
    shape = dataclasses.replace(case3.program.shape, d_out=2)
    pupils, weights = siit.Pupils(task, shape, [{"m0": "m0"}]), batched.draw(shape, [0]).requires_grad_()
    batch = pupils.batch(np.random.default_rng(0), 8)
    logits = batched.run(shape, weights, batch.base).logits[0, 0]
    known = torch.nn.functional.cross_entropy(logits[:, [1, 3]].flatten(0, 1), torch.ones(16, dtype=torch.long))
    assert torch.allclose(pupils.losses(weights, batch, kinds=["behaviour"])[0, 0], known, atol=1e-6)
    (found,) = measuring.measure(pupils, weights.detach(), rows=16)
    assert found.answers == 16 * 2


def test_logits_beyond_the_limit_cost(case3):
    program = Said(case3.program.circuit, [0, 1, 1, 1, 1])
    task = dataclasses.replace(case3, program=program, regression=False, d_out=2)
    shape = dataclasses.replace(case3.program.shape, d_out=2)
    pupils, losses = siit.Pupils(task, shape, [{"m0": "m0", "a1.h0": "a1.h0"}]), []
    for bias in (40.0, 60.0):
        row = batched.named(shape, torch.zeros(shape.n_parameters))
        row["lm_head.bias"][:] = torch.tensor([-bias, bias])
        batch = pupils.batch(np.random.default_rng(0), 8)
        losses.append(float(pupils.losses(batched.joined(shape, row), batch, kinds=["behaviour"])))
    assert losses[0] < 1e-6
    assert losses[1] == pytest.approx(siit.EXCESS * 10**2, rel=1e-4)


def test_an_unknown_way_of_swapping_is_an_error_with_the_nearest(perfect):
    batch = perfect.batch(np.random.default_rng(0), 4)
    with pytest.raises(errors.RequestError, match="did you mean 'sample_all'"):
        perfect.losses(case3_weights(perfect), batch, strict="sample_al")


def case3_weights(pupils):
    return pupils.task.program.weights


@pytest.mark.parametrize("detached", [True, False])
def test_gradients_flow_through_what_was_taken_from_the_other_input_unless_detached(case3, detached):
    shape = case3.program.shape
    pupils = siit.Pupils(case3, shape, [{"m0": "m0", "a1.h0": "a1.h0"}])
    weights = batched.draw(shape, [0]).requires_grad_()
    batch = pupils.batch(np.random.default_rng(0), 16)
    masks = torch.ones(1, 1, 16, 4, dtype=torch.bool)  # every node from the other input
    logits = pupils.logits(weights, batch, masks, detached=detached)
    (gradient,) = torch.autograd.grad(logits.sum(), weights)
    used = {name for name, part in batched.named(shape, gradient[0]).items() if bool(part.any())}
    inside = [name for name in used if "mlp.fc" in name or ("_proj.weight" in name and "o_proj" not in name)]
    assert bool(inside) != detached
    assert "lm_head.weight" in used


def test_a_seed_fixes_inputs_and_they_include_sorted_rows():
    inputs = sampling.Inputs(symbols=(5, 3, 8, 1), bos=9, lengths=(4, 5))
    one, other = inputs.pair(np.random.default_rng([1, 2]), 400, length=5)
    again, _ = inputs.pair(np.random.default_rng([1, 2]), 400, length=5)
    rank = torch.tensor([-1, 3, -1, 1, -1, 0, -1, -1, 2])
    in_order = (rank[one[:, 1:]].diff(dim=1) >= 0).all(dim=1).float().mean()
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert bool((one[:, 0] == 9).all())
    assert 0.15 < in_order < 0.45
