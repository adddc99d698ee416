"""The engine's attention kernel equals the explicit one, whatever the shapes."""

import pytest
import torch

from sonde.models import attention, frames


def frame_of(slots, keys):
    slots = torch.tensor(slots)
    seen = torch.arange(keys).expand(len(slots), keys)
    return frames.Frame(
        positions=slots, slots=slots, key_positions=seen, owns_mask=True, padded=bool((slots < 0).any())
    )


def explicit(query, key, value, allowed):
    scores = attention.scores_of(query, key, allowed, scaling=0.3, softcap=None)
    return attention.weighted(attention.pattern_of(scores), value)


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (6, 1)])
@pytest.mark.parametrize(
    "slots",
    [[[40]], [[40], [40]], [[40], [7], [23]], [[40]] * 8, [[40], *([slot] for slot in range(-1, 8))]],
    ids=["one", "two", "lengths", "many", "many lengths"],
)
def test_one_query_per_row_whoever_shares_keys(heads, slots):
    of_query, of_key = heads
    query = torch.randn(len(slots), of_query, 1, 16)
    key, value = torch.randn(2, len(slots), of_key, 60, 16)[..., :41, :]  # the first slots of a larger store
    frame = frame_of(slots, 41)
    found = attention._engine_kernel(query, key, value, frame.bias(None, query.dtype), 0.3)
    torch.testing.assert_close(found, explicit(query, key, value, frame.allowed(None)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("slots", [[[0, 1, 2]], [[38, 39, 40]], [[-1, 3, 4], [38, 39, 40]]])
def test_several_queries_see_what_they_may(slots, window):
    keys = max(max(row) for row in slots) + 1
    query, key, value = torch.randn(len(slots), 6, 3, 16), *torch.randn(2, len(slots), 2, keys, 16)
    frame = frame_of(slots, keys)
    allowed = frame.allowed(window)
    found = attention._engine_kernel(query, key, value, frame.bias(window, query.dtype), 0.3)
    allowed = attention._causal(query, key) if allowed is None else allowed
    torch.testing.assert_close(found, explicit(query, key, value, allowed), atol=1e-5, rtol=1e-5)


def test_a_bias_is_made_once_and_says_what_the_mask_says():
    frame = frame_of([[-1, 3, 4], [38, 39, 40]], 41)
    bias = frame.bias(None, torch.float32)
    assert frame.bias(None, torch.float32) is bias
    assert torch.equal(bias == 0, frame.allowed(None))
    assert bool((bias[~frame.allowed(None)] == -torch.inf).all())
    assert frame.bias(None, torch.float64).dtype == torch.float64
    assert frame_of([[40]], 41).bias(None, torch.float32) is None
