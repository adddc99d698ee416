"""What a viewer shows beside an episode: parts of its messages, and tracks of values along it.

    tracks.write(folder, tracks.Track(name="surprise", axes="token", unit="nats", origin={"run": "it"}), values)
    for track in tracks.tracks_of(folder):
        track.unit, tracks.values_of(folder, track.name)

A Part is a piece of a message (text, thought, tool call, result) with its span of token positions. A Track has a value for
each token, token × layer, step × layer or step × step, a unit, the track that is its control, and where it is from. They lie
in a run's folder: `tracks/NAME.json`, sealed, and `tracks/NAME.safetensors`, whose checksum stands in it. Costs the values once.
"""

import zlib
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pydantic
import safetensors.numpy

from sonde.core import errors
from sonde.store import damage, disk, documents, names, schemas, tensors

FOLDER = "tracks"
AXES = ("token", "token layer", "step layer", "step step")
_Name = Annotated[pydantic.StrictStr, pydantic.AfterValidator(lambda name: names.check(name, what="track"))]


class Part(pydantic.BaseModel):
    """A piece of a message.

    Attributes:
        message: Which message of the episode it belongs to, from 0.
        kind: What it is.
        span: Its token positions in the episode, end excluded.
        name: Of a tool, for calls and results.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    message: schemas.Count
    kind: Literal["text", "thought", "tool_call", "tool_result"]
    span: tuple[schemas.Count, schemas.Count]
    name: schemas.Text = ""

    @pydantic.field_validator("span")
    @classmethod
    def _forward(cls, span: tuple[int, int]) -> tuple[int, int]:
        if span[1] < span[0]:
            raise ValueError(f"a span ends where it begins or later, got {span}")
        return span


class Track(pydantic.BaseModel):
    """Values along an episode.

    Attributes:
        name: Its name.
        axes: What each axis of the values counts.
        unit: Of the values, such as `nats`.
        episode: Which episode, by its path below the run's folder; empty for the run as a whole.
        first: The token position or step of the first value.
        layers: The layers, where there is an axis of them.
        control: The track to hold it against; empty for none.
        origin: What made it: run, stage, settings.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: _Name
    axes: Literal["token", "token layer", "step layer", "step step"]
    unit: schemas.Text
    episode: schemas.Text = ""
    first: schemas.Count = 0
    layers: list[schemas.Count] = []
    control: schemas.Text = ""
    origin: schemas.Data = {}


class _Document(schemas.Document):
    track: Track
    shape: schemas.Shape
    crc32_of_values: schemas.Crc


PARTS = schemas.register("parts of messages", list[Part])
KIND = schemas.register("track", _Document)


def write(folder: Path, track: Track, values: npt.ArrayLike) -> None:
    """Keeps a track of a run; one of that name is replaced.

    Raises:
        RequestError: The values have other axes, or another number of layers, than the track says.
        StoreError: It cannot be written.
    """
    array = np.ascontiguousarray(values, dtype=np.float32)
    axes = track.axes.split()
    if array.ndim != len(axes):
        raise errors.RequestError(f"track {track.name!r} has the axes {track.axes}, its values have {array.ndim}")
    if "layer" in axes and array.shape[1] != len(track.layers):
        raise errors.RequestError(
            f"track {track.name!r} has {len(track.layers)} layers, its values {array.shape[1]}: name the layers of the columns"
        )
    data, document = safetensors.numpy.save({"values": array}), _place(folder, track.name, "json")
    with disk.explained(document):
        disk.make_dirs(document.parent)
        disk.write_atomic(_place(folder, track.name, "safetensors"), data)
    told: dict[str, Any] = {"track": track.model_dump(mode="json"), "shape": list(array.shape)}
    documents.keep(document, {**told, "crc32_of_values": f"{zlib.crc32(data):08x}"})


def tracks_of(folder: Path) -> list[Track]:
    """Returns the tracks of a run, sorted by name.

    Raises:
        DamagedError: One of them is not as it was written.
    """
    return [Track(**documents.kept(path, KIND)["track"]) for path in sorted((folder / FOLDER).glob("*.json"))]


def values_of(folder: Path, name: str) -> npt.NDArray[np.float32]:
    """Returns the values of a track.

    Raises:
        StoreError: There is none of that name.
        DamagedError: They are not as they were written.
    """
    told, path = documents.kept(_place(folder, name, "json"), KIND), _place(folder, name, "safetensors")
    found = tensors.read_numpy(path, crc32=int(told["crc32_of_values"], 16)).get("values")
    if found is None or list(found.shape) != told["shape"] or found.dtype != np.float32:
        raise damage.Damage(path, "holds other values than its track says").error()
    return found


def _place(folder: Path, name: str, ending: str) -> Path:
    return folder / FOLDER / f"{names.check(name, what='track')}.{ending}"
