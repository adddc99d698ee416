"""Arrays inside interventions: private, read-only, and writable as JSON. numpy is imported only when one is met."""

import base64
from typing import TYPE_CHECKING, Any

from sonde.core import errors

if TYPE_CHECKING:
    import numpy as np

_DTYPES = ("float16", "float32", "float64")


def frozen(value: Any) -> "np.ndarray":
    """A private, read-only float copy of an array or tensor of any library."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = np.array(value, dtype=None, copy=True)
    if array.dtype.kind not in "fiu":
        raise errors.InterventionError(f"expected an array of numbers, got dtype {array.dtype}")
    array = array if array.dtype.kind == "f" else array.astype(np.float32)
    if np.isnan(array).any():
        raise errors.InterventionError(f"{np.isnan(array).sum()} of {array.size} numbers are NaN")
    array.setflags(write=False)
    return array


def to_json(array: "np.ndarray") -> dict[str, Any]:
    """An array as JSON data."""
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "base64": data}


def from_json(data: Any) -> "np.ndarray":
    """Reads what `to_json` wrote.

    Raises:
        InterventionError: It wrote no such thing.
    """
    import numpy as np

    try:
        if data["dtype"] not in _DTYPES or not all(type(size) is int and size >= 0 for size in data["shape"]):
            raise ValueError(f"numbers of type {data['dtype']!r:.40} in shape {data['shape']!r:.80}")
        raw = np.frombuffer(base64.b64decode(data["base64"], validate=True), dtype=data["dtype"])
        return raw.reshape(data["shape"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise errors.InterventionError(f"this is no array as Sonde writes it: {error!r:.300}") from error
