"""Arrays keep every bit on the way through numpy, the journal and the safetensors file."""

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sonde import store
from sonde.core import errors
from sonde.store import arrays

NUMPY = ["F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"]


@pytest.mark.parametrize("dtype", sorted(arrays.ITEM_BYTES))
@pytest.mark.parametrize("close", [True, False])
def test_every_dtype_comes_back_bit_for_bit(tmp_path, dtype, close):
    data = bytes(range(12 * arrays.ITEM_BYTES[dtype])) if dtype != "BOOL" else bytes([0, 1] * 6)
    value = store.Array(dtype, (2, 3, 2), data)
    writer = store.EpisodeWriter.create(tmp_path / "e")
    for _ in range(3):
        writer.append_step({}, {"x": value})
    writer.close() if close else writer.abort()
    found = store.EpisodeReader.open(tmp_path / "e").array("x")
    assert (found.dtype, found.shape, bytes(found.data)) == (dtype, (6, 3, 2), data * 3)


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_goes_in_and_out_unchanged(dtype):
    values = np.arange(6).reshape(2, 3).astype(arrays._NUMPY[dtype])
    value = store.Array.from_numpy(values)
    assert value.dtype == dtype
    np.testing.assert_array_equal(value.to_numpy(), values)
    assert value.to_numpy().dtype == values.dtype


@given(
    hnp.arrays(dtype=st.sampled_from([">f4", "<f4", ">i8", "?", "<f2"]), shape=hnp.array_shapes(min_dims=0, min_side=0))
)
def test_any_shape_byte_order_and_stride_is_stored_as_its_values(values):
    for view in (values, values.T, values[..., ::2] if values.ndim else values):
        np.testing.assert_array_equal(store.Array.from_numpy(view).to_numpy(), view)


def test_bf16_widens_to_exactly_equal_float32():
    halves = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], dtype="<u2")
    value = store.Array("BF16", (4,), halves.tobytes())
    assert value.to_numpy(widen=True).tolist() == [1.0, -2.0, float("inf"), 2.0**-133]
    with pytest.raises(errors.StoreError, match="widen=True"):
        value.to_numpy()


def test_wrong_arrays_are_refused_with_got_and_expected():
    with pytest.raises(errors.StoreError, match="got 3 bytes, expected 8"):
        store.Array("F32", (2,), b"abc")
    with pytest.raises(errors.StoreError, match="no dtype 'f32'"):
        store.Array("f32", (2,), b"12345678")
    with pytest.raises(errors.StoreError, match="complex64"):
        store.Array.from_numpy(np.zeros(2, dtype="c8"))


def test_rows_are_views_on_the_same_memory():
    value = store.Array.from_numpy(np.arange(12, dtype="f4").reshape(4, 3))
    part = value.rows(1, 3)
    assert part.to_numpy().tolist() == [[3, 4, 5], [6, 7, 8]]
    assert np.shares_memory(part.to_numpy(), value.to_numpy())


def test_a_closed_array_is_a_view_on_the_mapped_file_and_never_writes_to_it(closed):
    reader = store.EpisodeReader.open(closed)
    first, second = reader.array("resid"), reader.array("resid")
    assert np.shares_memory(first.to_numpy(), second.to_numpy())
    first.data[0:4] = b"\xff" * 4
    assert reader.verify() == []


def test_other_programs_read_the_safetensors_file(closed):
    tensors = safetensors.numpy.load_file(closed / "activations.safetensors")
    reader = store.EpisodeReader.open(closed)
    assert sorted(tensors) == reader.names
    for name in reader.names:
        np.testing.assert_array_equal(tensors[name], reader.array(name).to_numpy())


def test_arrays_are_aligned_to_their_items(tmp_path):
    with store.EpisodeWriter.create(tmp_path / "e") as writer:
        for name, dtype in enumerate(["u1", "f8", "f2", "?", "f4"]):
            writer.append_step({}, {str(name): store.Array.from_numpy(np.ones(3, dtype))})
    reader = store.EpisodeReader.open(tmp_path / "e")
    assert all(reader.array(name).to_numpy().flags.aligned for name in reader.names)
