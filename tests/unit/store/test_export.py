"""What is exported is what was recorded, read back with the tools it is meant for."""

import json
import math
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sonde import store
from sonde.core import errors


@pytest.fixture
def run(tmp_path):
    run = store.Run.create(tmp_path / "runs", kind="test")
    for number in range(2):
        with run.new_episode() as writer:
            for step in range(3):
                values = {
                    "resid": store.Array.from_numpy(np.full((step + 1, 2, 2), 10 * number + step, "f4")),
                    "flags": store.Array.from_numpy(np.array([True, False])),
                    "half": store.Array("BF16", (1, 2), np.array([0x3F80, 0x4000], "<u2").tobytes()),
                    "none": store.Array.from_numpy(np.zeros((1, 0), "f4")),
                }
                record = {"text": f"s{step}", "n": step, "loss": step / 2, "ok": step > 0, "nested": {"a": [step]}}
                record |= {"mixed": "x" if step else 1, "step": "own", "seldom": 1} if number else {"loss": math.nan}
                writer.append_step(record, values)
            if number:
                writer.close({"reward": math.inf})
    return run


def test_json_holds_manifest_and_all_steps(run, tmp_path):
    path = store.export_json(run, tmp_path / "out" / "run.json")
    found = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert found["run"] == run.manifest
    assert [episode["id"] for episode in found["episodes"]] == ["00000", "00001"]
    assert found["episodes"][1]["steps"] == run.episode("00001").steps
    assert found["episodes"][1]["arrays"]["resid"] == {"dtype": "F32", "shape": [6, 2, 2]}
    assert found["episodes"][1]["reward"] == "inf"


def test_the_steps_table_has_typed_columns_and_json_for_the_rest(run, tmp_path):
    files = store.export_parquet(run, tmp_path / "out")
    assert [path.name for path in files] == ["steps.parquet"]
    table = pq.read_table(files[0])
    assert table.column_names[:3] == ["run", "episode", "step"]
    rows = table.to_pylist()
    assert [(row["episode"], row["step"]) for row in rows] == [(f"0000{e}", s) for e in range(2) for s in range(3)]
    assert {row["run"] for row in rows} == {run.id}
    kinds = {field.name: field.type for field in table.schema}
    assert (kinds["text"], kinds["n"], kinds["loss"], kinds["ok"]) == (
        pa.string(),
        pa.int64(),
        pa.float64(),
        pa.bool_(),
    )
    assert math.isnan(rows[0]["loss"])
    assert rows[4]["loss"] == 0.5
    assert json.loads(rows[5]["nested"]) == {"a": [2]}
    assert [json.loads(row["mixed"]) for row in rows[3:]] == [1, "x", "x"]
    assert [row["seldom"] for row in rows] == [None] * 3 + [1] * 3
    assert rows[3]["field.step"] == "own"
    assert table.schema.field("nested").metadata == {b"sonde": b"json"}


def test_array_tables_hold_every_row_with_its_step(run, tmp_path):
    names = ["resid", "flags", "half", "none"]
    files = store.export_parquet(run, tmp_path / "out", names)
    assert [path.stem for path in files] == ["steps", *names]
    table = pq.read_table(files[1])
    assert table.schema.field("value").type == pa.list_(pa.float32(), 4)
    assert table.schema.field("value").metadata[b"row_shape"] == b"[2, 2]"
    rows = table.to_pylist()
    assert [row["step"] for row in rows] == [0, 1, 1, 2, 2, 2] * 2
    assert [row["row"] for row in rows] == [*range(6)] * 2
    assert rows[-1]["value"] == [12.0] * 4
    assert pq.read_table(files[2]).column("value").to_pylist() == [True, False] * 6
    assert pq.read_table(files[3]).column("value").to_pylist() == [[1.0, 2.0]] * 6
    assert pq.read_table(files[4]).column("value").to_pylist() == [[]] * 6


def test_arrays_are_written_in_pieces(run, tmp_path, monkeypatch):
    from sonde.store import export

    monkeypatch.setattr(export, "ROWS_BYTES", 32)
    files = store.export_parquet(run, tmp_path / "out", ["resid"])
    assert pq.ParquetFile(files[1]).num_row_groups == 6
    assert pq.read_table(files[1]).num_rows == 12


def test_odd_array_names_give_safe_and_different_files(tmp_path):
    run = store.Run.create(tmp_path, kind="test")
    names = ["../x", "a/b", "a_b", "steps"]
    with run.new_episode() as writer:
        writer.append_step({}, {name: store.Array.from_numpy(np.ones(1)) for name in names})
    files = store.export_parquet(run, tmp_path / "out", names)
    assert len(set(files)) == 5
    assert {path.parent for path in files} == {tmp_path / "out"}


def test_an_array_nobody_recorded_is_answered_with_the_nearest(run, tmp_path):
    with pytest.raises(errors.StoreError, match="did you mean 'resid'"):
        store.export_parquet(run, tmp_path / "out", ["resd"])


def test_rows_that_differ_between_episodes_are_refused(run, tmp_path):
    with run.new_episode() as writer:
        writer.append_step({}, {"resid": store.Array.from_numpy(np.ones((1, 5), "f4"))})
    with pytest.raises(errors.StoreError, match="differ between episodes"):
        store.export_parquet(run, tmp_path / "out", ["resid"])


def test_a_run_without_steps_exports_to_empty_tables(tmp_path):
    run = store.Run.create(tmp_path / "runs", kind="test")
    assert pq.read_table(store.export_parquet(run, tmp_path / "out")[0]).num_rows == 0
    assert json.loads(store.export_json(run, tmp_path / "run.json").read_text())["episodes"] == []


def test_without_pyarrow_the_message_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(errors.MissingExtraError, match=r'pip install "sonde\[export\]"'):
        store.export_parquet(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    store.export_json(run, tmp_path / "run.json")


def test_exporting_onto_a_folder_says_so(run, tmp_path):
    with pytest.raises(errors.StoreError, match="cannot export"):
        store.export_json(run, tmp_path)
