"""The engine's attention: few queries with many keys give what torch's kernel gives."""

import pytest
import torch
import torch.nn.functional as F

from sonde.models import attention

KEYS, SPARE = 90, 38


def drawn(rows, width, *, heads, shared):
    generator = torch.Generator().manual_seed(rows * width)
    query = torch.randn(rows, width, heads, 16, generator=generator).transpose(1, 2)
    # Keys and values are the first slots of a larger store, as in the engine.
    key, value = (torch.randn(rows, shared, KEYS + SPARE, 16, generator=generator)[:, :, :KEYS] for _ in range(2))
    return query, key, value


def ragged(rows, width):
    """Rows of different lengths; the first queries of the shorter ones are padding, which sees the first key."""
    slots = KEYS - width - 3 * torch.arange(rows)[:, None] + torch.arange(width)
    return (torch.arange(KEYS) <= slots.clamp(min=0)[..., None])[:, None]


@pytest.mark.parametrize("block", [1, 3 * 8 * 30 * KEYS, 1 << 21], ids=["a row", "a few rows", "all rows"])
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (7, 30), (9, 1), (16, 64)])
@pytest.mark.parametrize("shared", [8, 4, 1])
def test_in_blocks_is_what_torchs_kernel_gives(rows, width, shared, block, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", block)
    query, key, value = drawn(rows, width, heads=8, shared=shared)
    for allowed in (ragged(rows, width), None):
        expected = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=0.3, enable_gqa=True)
        found = attention._in_blocks(query * 0.3, key, value, allowed)
        torch.testing.assert_close(found, expected.transpose(1, 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "width", "few"), [(1, 1, False), (7, 1, False), (8, 1, True), (1, 2, True), (3, 64, True), (3, 65, False)]
)
def test_it_is_taken_where_it_is_faster(rows, width, few):
    query, _, _ = drawn(rows, width, heads=8, shared=8)
    assert attention._few_queries(query) is few
    assert not attention._few_queries(query.to(torch.bfloat16))
