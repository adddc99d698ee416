"""Parts and tracks: written, read, replaced, damaged, forged."""

import json

import numpy as np
import pytest

from sonde import store
from sonde.core import errors
from sonde.store import documents, schemas, tracks

SURPRISE = tracks.Track(name="surprise", axes="token", unit="nats", first=3, origin={"run": "it"})


@pytest.fixture
def run(tmp_path):
    return store.Run.create(tmp_path, kind="test", id="it")


def test_a_track_is_read_as_it_was_written(run):
    values = np.arange(6, dtype=np.float32)
    tracks.write(run.folder, SURPRISE, values)
    layered = tracks.Track(name="norm", axes="token layer", unit="1", layers=[2, 5], control="surprise")
    tracks.write(run.folder, layered, np.ones((6, 2)))
    assert tracks.tracks_of(run.folder) == [layered, SURPRISE]
    assert tracks.values_of(run.folder, "surprise").tolist() == values.tolist()
    tracks.write(run.folder, SURPRISE, values[:2])
    assert tracks.values_of(run.folder, "surprise").tolist() == [0, 1]
    assert run.verify() == []


@pytest.mark.parametrize(
    ("track", "values", "told"),
    [
        (SURPRISE, np.ones((2, 2)), "has the axes token, its values have 2"),
        (tracks.Track(name="x", axes="step layer", unit="", layers=[1]), np.ones((2, 2)), "has 1 layers, its values 2"),
    ],
)
def test_values_of_another_shape_are_refused(run, track, values, told):
    with pytest.raises(errors.RequestError, match=told):
        tracks.write(run.folder, track, values)


def test_a_name_that_leaves_the_folder_is_refused(run):
    with pytest.raises(errors.StoreError, match="cannot be a folder name"):
        tracks.values_of(run.folder, "../manifest")


def test_changed_values_are_named(run):
    tracks.write(run.folder, SURPRISE, np.ones(4))
    path = run.folder / "tracks" / "surprise.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\1\1")
    with pytest.raises(errors.DamagedError, match=r"surprise\.safetensors"):
        tracks.values_of(run.folder, "surprise")


def test_a_forged_track_is_refused(run):
    tracks.write(run.folder, SURPRISE, np.ones(4))
    path = run.folder / "tracks" / "surprise.json"
    told = json.loads(path.read_text())
    told.pop("crc32")
    documents.write(path, told | {"track": {**told["track"], "axes": "planet"}})
    with pytest.raises(errors.DamagedError, match="axes"):
        tracks.tracks_of(run.folder)


def test_parts_have_a_kind_and_a_span_that_ends_after_it_begins():
    part = {"message": 0, "kind": "tool_call", "span": [3, 9], "name": "bash"}
    schemas.check([part], tracks.PARTS)
    for wrong in ({"kind": "song"}, {"span": [9, 3]}, {"span": [-1, 3]}, {"more": 1}):
        with pytest.raises(Exception, match="is no parts of messages"):
            schemas.check([part | wrong], tracks.PARTS)
