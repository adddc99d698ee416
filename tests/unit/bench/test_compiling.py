"""Programs that become transformers: same results, the right circuit, ordinary models, errors that say why."""

import itertools

import numpy as np
import pytest
import torch

from sonde.bench import compiling, placing, rasp
from sonde.core import errors

LETTERS = "abx"
EQUAL = rasp.Select(rasp.TOKENS, rasp.TOKENS, lambda key, query: key == query)
LAST = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key == query - 1)
UP_TO_HERE = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key <= query)


def share():
    is_x = rasp.Map(lambda token: int(token == "x"), rasp.TOKENS, kind="numerical", name="is_x")
    return rasp.Aggregate(UP_TO_HERE, is_x, 0, kind="numerical", name="share")


def programs():
    last = rasp.Aggregate(LAST, rasp.TOKENS, name="last")
    start = rasp.Aggregate(LAST, rasp.TOKENS, "start", name="last")
    count = rasp.SelectorWidth(EQUAL, name="count")
    shares = share()
    return {
        "tokens": rasp.TOKENS,
        "map": rasp.Map(str.upper, rasp.TOKENS),
        "map to some": rasp.Map(lambda token: None if token == "b" else token, rasp.TOKENS),
        "pairs": rasp.SequenceMap(lambda token, index: (token, index), rasp.TOKENS, rasp.INDICES),
        "the same twice": rasp.SequenceMap(lambda one, two: one + two, rasp.TOKENS, rasp.TOKENS),
        "last, or none": last,
        "last, or start": start,
        "keys that BOS could be taken for": rasp.SelectorWidth(
            rasp.Select(start, start, lambda key, query: key == "start")
        ),
        "count": count,
        "count of counts": rasp.SelectorWidth(rasp.Select(count, count, lambda key, query: key >= query)),
        "count as a number": rasp.SelectorWidth(EQUAL, kind="numerical"),
        "width of nothing": rasp.SelectorWidth(rasp.Select(rasp.TOKENS, rasp.TOKENS, lambda key, query: False)),
        "share": shares,
        "steps of a number": rasp.Map(lambda number: round(10 * number), shares),
        "number to number": rasp.Map(lambda number: number**2, shares, kind="numerical"),
        "difference": rasp.LinearSequenceMap(shares, share(), 2.0, -0.5),
        "sum of categories": rasp.LinearSequenceMap(rasp.INDICES, count, 1.0, 1.0),
        "mean of categories": rasp.Aggregate(UP_TO_HERE, rasp.INDICES, 0, kind="numerical"),
        "default of a number": rasp.Aggregate(LAST, count, 7, kind="numerical"),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", programs())
def test_a_compiled_program_says_what_direct_evaluation_says(name, causal):
    program = programs()[name]
    found = compiling.compile(program, LETTERS, max_length=5, causal=causal)
    inputs = [row for length in range(1, 5) for row in itertools.product(LETTERS, repeat=length)]
    expected = [rasp.evaluate(program, row, causal=causal) for row in inputs]
    said = found.run(inputs)
    if found.outputs is None:
        for one, other in zip(said, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
    else:
        assert said == expected


def test_the_circuit_has_an_edge_for_every_reading():
    found = compiling.compile(share(), LETTERS, max_length=5, causal=True)
    assert found.circuit.names == ("input->m0", "input->a1.h0<q>", "input->a1.h0<k>", "m0->a1.h0<v>", "a1.h0->logits")
    assert found.components == ("m0", "a1.h0")
    assert found.meanings == {"m0": ("is_x",), "a1.h0": ("share",)}


def test_a_head_whose_predicate_ignores_queries_reads_none():
    program = rasp.SelectorWidth(rasp.Select(rasp.TOKENS, rasp.TOKENS, lambda key, query: key == "a"))
    found = compiling.compile(program, LETTERS, max_length=5)
    assert found.circuit.names == ("input->a0.h0<k>", "a0.h0->m0", "m0->logits")


def test_operations_of_one_depth_share_a_layer():
    count = rasp.SelectorWidth(EQUAL)
    last = rasp.Aggregate(LAST, rasp.TOKENS)
    upper = rasp.Map(str.upper, rasp.TOKENS)
    both = rasp.SequenceMap(lambda one, two: (one, two), last, upper)
    found = placing.place(rasp.SequenceMap(lambda one, two: (one, two), both, count))
    assert found.nodes == ("a0.h0", "a0.h1", "m0", "m1", "m2")
    assert (found.n_layers, found.n_heads) == (3, 2)


def test_padding_changes_nothing():
    found = compiling.compile(rasp.SelectorWidth(EQUAL), LETTERS, max_length=8)
    assert found.run([list("aab"), list("abxabxa")])[0] == found.run([list("aab")])[0] == [2, 2, 1]


def test_a_compiled_model_is_an_ordinary_model():
    found = compiling.compile(share(), LETTERS, max_length=5, causal=True)
    with found.model() as model:
        logits, cache = model.run_with_cache("x a x", "blocks.*.hook_resid_post")
        assert found.decode(logits[0].detach()) == pytest.approx([1, 0.5, 2 / 3], abs=1e-6)
        assert cache["blocks.1.hook_resid_post"].shape == (1, 4, len(found.basis))
        assert model.to_tokens("x a x").tolist() == [found.encode("xax")]
        is_x = found.basis.index("is_x")
        assert cache["blocks.0.hook_resid_post"][0, 1:, is_x].tolist() == pytest.approx([1, 0, 1], abs=1e-6)


def test_without_bos_inputs_begin_with_their_first_token():
    program = rasp.Aggregate(UP_TO_HERE, rasp.INDICES, kind="numerical")
    found = compiling.compile(program, LETTERS, max_length=4, bos=False)
    assert found.run([list("abxa")])[0] == pytest.approx([0, 0.5, 1, 1.5], abs=1e-5)


def test_the_same_program_gives_the_same_weights():
    one, other = (compiling.compile(share(), LETTERS, max_length=5) for _ in range(2))
    assert one.weights.keys() == other.weights.keys()
    assert all(np.array_equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert all(value.dtype == np.float32 for value in one.weights.values())


def test_weights_survive_saving(tmp_path):
    import sonde

    found = compiling.compile(share(), "abcdefx", max_length=8)
    with found.model() as model:
        model.hf.save_pretrained(tmp_path)
        model.tokenizer.save_pretrained(tmp_path)
        expected = model.run_with_cache("x a x")[0]
    with sonde.load(str(tmp_path)) as again:
        assert torch.equal(again.run_with_cache("x a x")[0], expected)


def wrong_programs():
    number = share()
    return [
        (rasp.Aggregate(UP_TO_HERE, number, name="kept"), "Aggregate 'kept': it is categorical but reads a number"),
        (rasp.Aggregate(UP_TO_HERE, rasp.INDICES, kind="numerical", name="mean"), "'mean': .* needs a default"),
        (rasp.Aggregate(UP_TO_HERE, rasp.TOKENS, 0, kind="numerical", name="mean"), "a number is needed, but it may read 'a'"),
        (rasp.SelectorWidth(rasp.Select(number, number, lambda key, query: True), name="w"), "compares 'share', a number"),
        (rasp.SequenceMap(lambda one, two: 0, number, rasp.TOKENS, name="s"), "SequenceMap 's': 'share' is numerical"),
        (rasp.SelectorWidth(rasp.Select(rasp.TOKENS, rasp.INDICES, lambda key, query: key < query), name="w"), "predicate fails"),
        (rasp.LinearSequenceMap(number, number, kind="categorical", name="sum"), "a weighted sum is numerical"),
        (rasp.Map(lambda number: 1 / number, rasp.INDICES, name="inverse"), "Map 'inverse': its function fails"),
    ]  # fmt: skip


@pytest.mark.parametrize(("program", "message"), wrong_programs())
def test_a_program_that_cannot_compile_says_which_operation_and_why(program, message):
    with pytest.raises(errors.CompileError, match=message):
        compiling.compile(program, LETTERS, max_length=5)


def test_numbers_with_too_many_values_cannot_be_looked_up():
    means = rasp.Aggregate(UP_TO_HERE, rasp.TOKENS, 0, kind="numerical", name="means")
    with pytest.raises(errors.CompileError, match="Map 'map': what it reads may take more than"):
        compiling.compile(rasp.Map(round, means), [0.1 * 3**power for power in range(12)], max_length=12)


def test_what_would_be_too_large_is_refused_with_its_size_before_it_is_built():
    called = []

    def both(one, two):
        called.append(1)
        return one + two

    table = rasp.SequenceMap(both, rasp.TOKENS, rasp.INDICES, name="table")
    with pytest.raises(errors.CompileError, match=r"SequenceMap 'table': .* 390 × 390 values, 152,100 pairs"):
        compiling.compile(table, range(390), max_length=391)
    assert not called
    pairs = rasp.SequenceMap(lambda one, two: (one, two), rasp.TOKENS, rasp.INDICES, name="pairs")
    with pytest.raises(errors.CompileError, match=r"14,400 hidden units .* stream of 14,6.. directions .* GB"):
        compiling.compile(pairs, range(120), max_length=121)
    assert compiling.compile(table, range(12), max_length=13).run([[3, 4]]) == [[3, 5]]


@pytest.mark.parametrize("program", [rasp.SelectorWidth(EQUAL), rasp.Aggregate(LAST, rasp.TOKENS, "a")])
def test_what_needs_bos_says_so(program):
    with pytest.raises(errors.CompileError, match="compile with bos=True"):
        compiling.compile(program, LETTERS, max_length=5, bos=False)


def test_a_model_needs_tokens_and_room_for_them():
    for words, room in (("", 5), ("ab", 1)):
        with pytest.raises(errors.CompileError, match="a model needs tokens"):
            compiling.compile(rasp.TOKENS, words, max_length=room)


def test_unknown_tokens_and_long_inputs_are_refused():
    found = compiling.compile(rasp.TOKENS, LETTERS, max_length=4)
    with pytest.raises(errors.RequestError, match="'q' is not in the vocabulary"):
        found.encode("aq")
    with pytest.raises(errors.RequestError, match="4 tokens are too many: the longest input has 3"):
        found.encode("aaaa")
