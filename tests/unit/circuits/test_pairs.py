"""Clean and corrupt inputs as tensors."""

import dataclasses

import pytest
import torch

from sonde.circuits import pairs
from sonde.core import errors


def three():
    return pairs.Pairs.of(
        [
            pairs.Pair([1, 2, 3], [1, 9, 3], answers=[4], wrongs=[5, 6], label="a", cluster="x"),
            pairs.Pair([1, 2], [9, 2], answers=[4, 7], label="b", cluster="x"),
            pairs.Pair([5], [6]),
        ],
        pad=8,
    )


def test_rows_are_padded_on_the_right_and_ends_are_the_last_real_positions():
    made = three()
    assert made.clean.tolist() == [[1, 2, 3], [1, 2, 8], [5, 8, 8]]
    assert made.corrupt.tolist() == [[1, 9, 3], [9, 2, 8], [6, 8, 8]]
    assert made.ends.tolist() == [2, 1, 0]
    assert made.real.tolist() == [[True, True, True], [True, True, False], [True, False, False]]
    assert made.answers.tolist() == [[4, -1], [4, 7], [-1, -1]]
    assert made.wrongs.tolist() == [[5, 6], [-1, -1], [-1, -1]]
    assert made.labels == ("a", "b", "2")
    assert made.clusters == ("x", "x", "2")


def test_a_pair_of_different_lengths_is_refused_by_name():
    with pytest.raises(errors.RequestError, match="pair 'the long one' has 2 clean and 3 corrupt tokens"):
        pairs.Pairs.of([pairs.Pair([1, 2], [1, 3]), pairs.Pair([1, 2], [1, 2, 3], label="the long one")])
    with pytest.raises(errors.RequestError, match="pair '1' has 2 clean"):
        pairs.Pairs.of([pairs.Pair([1, 2], [1, 3]), pairs.Pair([1, 2], [1, 2, 3])])


@pytest.mark.parametrize("given", [[], [pairs.Pair([], [])]])
def test_no_pairs_and_empty_inputs_are_refused(given):
    with pytest.raises(errors.RequestError, match="at least one"):
        pairs.Pairs.of(given)


def test_parts_that_do_not_fit_are_refused():
    made = three()
    with pytest.raises(errors.RequestError, match=r"ends must lie between 0 and 2"):
        dataclasses.replace(made, ends=torch.tensor([3, 1, 0]))
    with pytest.raises(errors.RequestError, match="2 labels for 3 pairs"):
        dataclasses.replace(made, labels=("a", "b"))
    with pytest.raises(errors.RequestError, match="pair 'b' is read nowhere"):
        dataclasses.replace(made, read=torch.tensor([[True] * 3, [False] * 3, [True] * 3]))


def test_the_metric_reads_at_the_ends_unless_told_otherwise():
    made = three()
    logits = torch.arange(3 * 3 * 2, dtype=torch.float32).reshape(3, 3, 2)
    assert torch.equal(made.reading(logits), logits[[0, 1, 2], [2, 1, 0]][:, None])
    assert made.counted.all()
    read = torch.tensor([[True, False, True], [False, True, False], [True, False, False]])
    told = dataclasses.replace(made, read=read)
    assert told.places.tolist() == [[0, 2], [1, 1], [0, 0]]
    assert told.counted.tolist() == [[True, True], [True, False], [True, False]]
    assert torch.equal(told.reading(logits)[0], logits[0, [0, 2]])


def test_selecting_and_batching_keep_every_part_of_a_row():
    made = dataclasses.replace(three(), positions=torch.tensor([[0, 1, 2], [1, 0, 2], [2, 0, 1]]))
    chosen = made.select([2, 0])
    assert chosen.clean.tolist() == [[5, 8, 8], [1, 2, 3]]
    assert chosen.labels == ("2", "a")
    assert chosen.positions.tolist() == [[2, 0, 1], [0, 1, 2]]
    assert [len(part) for part in made.batches(2)] == [2, 1]
    assert [part.labels for part in made.batches(2)] == [("a", "b"), ("2",)]
    assert next(made.batches(None)) is made
    with pytest.raises(errors.RequestError, match="at least 1"):
        list(made.batches(0))


def test_tensors_of_equal_length_need_no_padding():
    clean = torch.tensor([[1, 2], [3, 4]])
    made = pairs.Pairs.of_tensors(clean, clean.flip(0), answers=torch.tensor([[1], [2]]))
    assert made.ends.tolist() == [1, 1]
    assert made.wrongs.shape == (2, 0)
    assert len(made) == 2
    assert made.width == 2
