"""The pool of cached conversations: what is reused, what is dropped."""

import hypothesis
import torch
from hypothesis import strategies as st

from sonde.core import spans
from sonde.models import frames, kv

BYTES = 2 * 4 * 2 * 4 * 8  # keys and values, floats, kv heads, capacity, d_head: one row of _slab


def _slab(rows=1):
    slab = kv.Slab(rows, 4)
    slab.stage(0, torch.zeros(rows, 2, 1, 8))
    return slab


def _cells(tokens):
    return kv.cells(list(tokens), range(len(tokens)))


def _entry(tokens, slab=None, lineage=None, row=0, coverage=None):
    return kv.Entry(_cells(tokens), lineage or {}, None, slab or _slab(), row, coverage or {})


def _match(pool, tokens, lineage=None, **more):
    defaults = {"order": None, "recorders": [], "limit": 99}
    return pool.match(_cells(tokens), lineage or {}, **{**defaults, **more})


def test_the_pool_drops_the_longest_unused_when_the_budget_is_exceeded():
    pool = kv.Pool(3 * BYTES)
    entries = [_entry([n]) for n in range(5)]
    for entry in entries[:3]:
        pool.add(entry)
    pool.seat([(entries[0], 1)], 2)  # copied and continued, so it goes
    assert pool.entries == entries[1:3]
    for entry in entries[3:]:
        pool.add(entry)
    assert pool.entries == entries[2:]
    assert pool.nbytes == 3 * BYTES


def test_the_newest_conversation_stays_whatever_the_budget():
    pool = kv.Pool(0)
    for n in range(3):
        pool.add(_entry([n]))
    assert [entry.cells[:, 0].tolist() for entry in pool.entries] == [[2]]


def test_rows_of_one_slab_are_counted_once():
    pool, slab = kv.Pool(10**9), _slab(2)
    pool.add(_entry([1], slab))
    pool.add(_entry([2], slab, row=1))
    assert pool.nbytes == 2 * BYTES


def test_a_use_as_source_of_a_copy_keeps_a_conversation_young():
    pool = kv.Pool(2 * BYTES)
    old, young = _entry([1, 2, 3]), _entry([4])
    pool.add(old)
    pool.add(young)
    pool.seat([(old, 2), (old, 2)], 4)  # two rows from one: a copy
    pool.add(_entry([5]))
    assert old in pool.entries
    assert young not in pool.entries


def test_a_conversation_that_branches_off_late_takes_over_the_row():
    pool = kv.Pool(10**9)
    old = _entry([1, 2, 3])
    pool.add(old)
    assert pool.seat([(old, 2)], 4) == (old.slab, [0])
    assert pool.entries == []


def test_a_conversation_that_branches_off_early_leaves_the_other_alone():
    pool = kv.Pool(10**9)
    old = _entry(range(kv.TAIL + 3))
    pool.add(old)
    slab, rows = pool.seat([(old, 2)], 4)
    assert slab is not old.slab
    assert (rows, pool.entries) == ([0], [old])


def _told_apart(slab):
    for stored in (*slab.keys, *slab.values):
        stored[:] = torch.arange(slab.rows, dtype=torch.float32)[:, None, None, None]
    return slab


@hypothesis.given(st.permutations(range(6)), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_rows_that_change_places_keep_what_is_in_them(order, counts):
    slab = _told_apart(_slab(6))
    for count in counts:
        rows = order[:count]
        assert sorted(slab.to_front(rows)) == list(range(count))
        for stored in (*slab.keys, *slab.values):
            assert [stored[slab.place[row]].unique().tolist() for row in range(6)] == [[float(row)] for row in range(6)]


def test_when_some_conversations_stay_behind_the_others_go_on_in_place_and_nothing_is_lost():
    pool, slab = kv.Pool(10**9), _told_apart(_slab(4))
    entries = [_entry([row], slab, row=row) for row in range(4)]
    for entry in entries:
        pool.add(entry)
    assert pool.seat([(entries[3], 1), (entries[1], 1)], 4) == (slab, [0, 1])
    assert pool.entries == [entries[0], entries[2]]
    copy, _ = pool.seat([(entries[2], 1)], 4)
    assert copy is not slab, "three of four rows would lie idle"
    assert copy.keys[0][0, 0, 0, 0] == 2


def test_the_match_that_saves_most_wins_up_to_the_limit():
    pool = kv.Pool(10**9)
    short, long = _entry([1, 2]), _entry([1, 2, 3, 9])
    pool.add(short)
    pool.add(long)
    assert _match(pool, [1, 2, 3, 4]) == (long, 3)
    assert _match(pool, [1, 2, 3, 4], limit=1)[1] == 1
    assert _match(pool, [7]) == (None, 0)
    assert _match(pool, [1, 2], order="other") == (None, 0)
    assert _match(pool, [1, 2], recorders=["me"]) == (None, 0)


def test_a_prefix_whose_tokens_stood_elsewhere_in_the_episode_is_not_reused():
    """Turns that begin alike: after the oldest was dropped, its beginning is in the slots, at other positions."""
    entry = kv.Entry(kv.cells([1, 2, 3, 4], [0, 1, 2, 3]), {}, None, _slab(), 0, {})
    assert entry.reusable(kv.cells([1, 2, 3, 4], [0, 1, 2, 3]), {}, []) == 4
    assert entry.reusable(kv.cells([1, 2, 3, 4], [0, 1, 12, 13]), {}, []) == 2
    assert entry.reusable(kv.cells([1, 2, 3, 4], [10, 11, 12, 13]), {}, []) == 0


SETS = st.sets(st.integers(0, 9), max_size=6)
LINEAGES = st.tuples(st.permutations("ab"), SETS, SETS)


@hypothesis.given(LINEAGES, LINEAGES)
def test_a_prefix_is_reused_only_if_the_same_was_applied_in_the_same_order_at_each_slot(left, right):
    """Against a slot-by-slot account: what was applied there, in which order. Reuse may be less, never more."""
    left, right = (
        {key: spans.of_positions(where) for key, where in zip(keys, sets, strict=True)} for keys, *sets in (left, right)
    )

    def at(lineage, slot):
        return [key for key, where in lineage.items() if any(slot in span for span in where)]

    exact = next((slot for slot in range(10) if at(left, slot) != at(right, slot)), 10)
    found = _entry(range(10), lineage=left).reusable(_cells(range(10)), right, [])
    assert found <= exact
    if list(left) == list(right):
        assert found == exact


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from([None, 1, 3, 99]),
)
def test_the_mask_of_a_frame_is_the_causal_one_row_by_row(rows, window):
    """Rows of any length, left padded: a query sees its own row's keys up to itself, inside the window."""
    width, length = max(new for _, new in rows), max(past + new for past, new in rows)
    slots = torch.full((len(rows), width), -1)
    for index, (past, new) in enumerate(rows):
        slots[index, width - new :] = torch.arange(past, past + new)
    keys = torch.arange(length).expand(len(rows), length)
    frame = frames.Frame(slots, slots, keys, owns_mask=True, padded=bool((slots < 0).any()))
    mask = frame.allowed(window)
    for row in range(len(rows)):
        for column in range(width):
            slot = int(slots[row, column])
            if slot < 0:
                continue
            expected = [key <= slot and (window is None or key > slot - window) for key in range(length)]
            if mask is None:  # a plain causal kernel: square, or one query that sees everything
                assert expected == [key <= length - width + column for key in range(length)]
            else:
                assert mask[row, 0, column].tolist() == expected
