"""How do steps and arrays become Parquet columns?

A field that is always a bool, an integer, a number or a string gets that type; a field that is nested, or of
several types, becomes JSON text and says so in its metadata. A field named like a key column (run, episode,
step) becomes `field.run` and so on. Costs one Python pass per column.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde.core import errors
from sonde.store import disk, plain

KEYS = ("run", "episode", "step")


def import_pyarrow() -> tuple[Any, Any]:
    """Returns the modules pyarrow and pyarrow.parquet.

    Raises:
        MissingExtraError: They are not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise errors.MissingExtraError("pyarrow", extra="export", feature="Parquet export") from error
    return pyarrow, pyarrow.parquet


def write(path: Path, schema: Any, batches: Iterator[Mapping[str, Any]]) -> None:
    """Writes batches of columns as one Parquet file, atomically."""
    pa, parquet = import_pyarrow()
    with (
        disk.replacing(path) as fd,
        os.fdopen(fd, "wb", closefd=False) as file,
        parquet.ParquetWriter(file, schema) as target,
    ):
        for batch in batches:
            columns = [_column(batch[field.name], field.type) for field in schema]
            target.write_table(pa.Table.from_arrays(columns, schema=schema))


def _column(values: Any, kind: Any) -> Any:
    """Returns a pyarrow array; numpy blocks become one list per row without a Python loop."""
    pa, _ = import_pyarrow()
    if not isinstance(values, np.ndarray) or values.ndim == 1:
        return pa.array(values, type=kind)
    width = values[0].size
    flat = pa.array(values.reshape(-1), type=kind.value_type)
    if not pa.types.is_fixed_size_list(kind):
        return pa.ListArray.from_arrays(pa.array([0] * (len(values) + 1), pa.int32()), flat)
    return pa.FixedSizeListArray.from_arrays(flat, width)


def learn_fields(steps: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the kind of every field of the steps: bool, int, float, str or json."""
    kinds: dict[str, str | None] = {}
    for step in steps:
        for name, value in step.items():
            kinds[name] = _join(kinds.get(name), _kind(value))
    return {name: kind or "json" for name, kind in kinds.items()}


def _kind(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, float) or plain.special_float(value) is not None:
        return "float"
    return "str" if _is_text(value) else "json"


def _is_text(value: Any) -> bool:
    """Returns whether it is a string that UTF-8, and so Parquet, can hold."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _join(first: str | None, second: str | None) -> str | None:
    """Returns the kind that holds both."""
    if first is None or second is None or first == second:
        return first or second
    return "float" if {first, second} == {"int", "float"} else "json"


def step_columns(steps: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> dict[str, list[Any]]:
    """Returns the values of every field, as its column wants them."""
    return {_label(name): [_cell(step.get(name), kind) for step in steps] for name, kind in fields.items()}


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value)
    if kind == "float":
        special = plain.special_float(value)
        return float(value) if special is None else special
    return value


def steps_schema(fields: Mapping[str, str]) -> Any:
    """Returns the schema of the steps table."""
    pa, _ = import_pyarrow()
    types = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "str": pa.string(), "json": pa.string()}
    keys = [pa.field("run", pa.string()), pa.field("episode", pa.string()), pa.field("step", pa.int64())]
    rest = [
        pa.field(_label(name), types[kind], metadata={"sonde": "json"} if kind == "json" else None)
        for name, kind in fields.items()
    ]
    return pa.schema(keys + rest)


def rows_schema(name: str, dtype: str, tail: tuple[int, ...]) -> Any:
    """Returns the schema of an array's table."""
    pa, _ = import_pyarrow()
    types = {
        "F64": pa.float64(), "F32": pa.float32(), "F16": pa.float16(), "BF16": pa.float32(), "BOOL": pa.bool_(),
        "I64": pa.int64(), "I32": pa.int32(), "I16": pa.int16(), "I8": pa.int8(),
        "U64": pa.uint64(), "U32": pa.uint32(), "U16": pa.uint16(), "U8": pa.uint8(),
    }  # fmt: skip
    if dtype not in types:
        raise errors.StoreError(f"array {name!r} is {dtype}, which Parquet lacks; read it with EpisodeReader.array")
    width = int(np.prod(tail))
    kind = types[dtype]
    if tail:
        kind = pa.list_(kind, width) if width else pa.list_(kind)
    about = {"array": name, "dtype": dtype, "row_shape": json.dumps(tail)}
    value = pa.field("value", kind, metadata=about)
    keys = [pa.field("run", pa.string()), pa.field("episode", pa.string())]
    return pa.schema([*keys, pa.field("step", pa.int64()), pa.field("row", pa.int64()), value])


def file_name(name: str) -> str:
    """Returns a safe file name for an array; odd names get a checksum so that no two share one."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).strip(".")[:100]
    return safe if safe == name and safe != "steps" else f"{safe}-{zlib.crc32(name.encode()):08x}"


def _label(name: str) -> str:
    return f"field.{name}" if name in KEYS else name
