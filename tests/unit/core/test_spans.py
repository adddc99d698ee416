"""Sets of positions against Python's own sets."""

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from sonde.core import errors, spans

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8)


def _make(pairs):
    return [spans.Span(start, start + length) for start, length in pairs]


def _set(parts):
    return {position for part in parts for position in part}


def _is_canonical(parts):
    return all(len(part) for part in parts) and all(a.stop < b.start for a, b in itertools.pairwise(parts))


@hypothesis.given(PAIRS)
def test_union_is_the_set_union_sorted_and_disjoint(pairs):
    merged = spans.union(_make(pairs))
    assert _set(merged) == _set(_make(pairs))
    assert _is_canonical(merged)


@hypothesis.given(st.lists(st.integers(0, 40), max_size=20))
def test_of_positions_holds_exactly_the_positions(positions):
    made = spans.of_positions(positions)
    assert _set(made) == set(positions)
    assert _is_canonical(made)


@hypothesis.given(PAIRS, PAIRS)
def test_intersect_is_the_set_intersection(left, right):
    both = spans.intersect(spans.union(_make(left)), spans.union(_make(right)))
    assert _set(both) == _set(_make(left)) & _set(_make(right))
    assert _is_canonical(both)


@hypothesis.given(PAIRS, st.integers(-3, 40), st.integers(-3, 40))
def test_clip_keeps_what_lies_between(pairs, start, stop):
    clipped = spans.clip(spans.union(_make(pairs)), start, stop)
    assert _set(clipped) == {position for position in _set(_make(pairs)) if start <= position < stop}


@hypothesis.given(PAIRS, PAIRS)
def test_first_difference_is_the_smallest_position_in_only_one_set(left, right):
    found = spans.first_difference(spans.union(_make(left)), spans.union(_make(right)))
    different = _set(_make(left)) ^ _set(_make(right))
    assert found == (min(different) if different else None)


@hypothesis.given(PAIRS)
def test_a_set_does_not_differ_from_itself(pairs):
    assert spans.first_difference(spans.union(_make(pairs)), spans.union(_make(pairs))) is None


def test_a_span_knows_its_length_and_members():
    span = spans.Span(3, 6)
    assert (len(span), list(span), 3 in span, 6 in span) == (3, [3, 4, 5], True, False)


def test_a_span_that_runs_backwards_is_refused():
    with pytest.raises(errors.InterventionError, match="start 4, stop 3"):
        spans.Span(4, 3)
