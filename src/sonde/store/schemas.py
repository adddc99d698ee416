"""What must a document hold, by kind?

Checksums find accidents, not forgeries: whoever can write a run folder can write a checksum. So every document is
compared with the schema of its kind before anything in it is used. A kind is a name, a pydantic model and the most bytes
that a document of it may have; whoever keeps documents of a new kind registers it.

    class Found(pydantic.BaseModel): ...
    schemas.register("found things", Found)

Loaded when the first document is read: pydantic takes 60 ms.
"""

import dataclasses
from typing import Annotated, Any, Literal

import pydantic

from sonde.core import errors
from sonde.store import arrays, damage, names

MEBI = 1 << 20
#: The most bytes of a document, where its kind does not say otherwise.
LIMIT = 256 * MEBI

#: Whole numbers that fit into 63 bits, as lengths and places in files do.
Count = Annotated[pydantic.StrictInt, pydantic.Field(ge=0, lt=2**63)]
Text = pydantic.StrictStr
Number = pydantic.StrictInt | pydantic.StrictFloat
Crc = Annotated[pydantic.StrictStr, pydantic.Field(pattern=r"^[0-9a-f]{8}$")]
Dtype = Annotated[pydantic.StrictStr, pydantic.Field(pattern=f"^({'|'.join(arrays.ITEM_BYTES)})$")]
Shape = Annotated[list[Count], pydantic.Field(max_length=arrays.MAX_AXES), pydantic.Field(fail_fast=True)]
Data = dict[pydantic.StrictStr, Any]


class Document(pydantic.BaseModel):
    """What every document has."""

    format: Annotated[pydantic.StrictInt, pydantic.Field(ge=1)]


class Manifest(Document):
    """manifest.json."""

    id: Annotated[pydantic.StrictStr, pydantic.AfterValidator(lambda id: names.check(id, what="id"))]
    created: Text
    kind: Text
    model: Data
    settings: Data
    seed: pydantic.StrictInt | None
    versions: Data
    status: Literal["running", "finished", "failed"]
    finished: Text | None = None
    error: Text | None = None
    summary: Data = {}


class _Episode(Document):
    """What episode.json says at any time."""

    id: Text
    created: Text
    versions: Data
    metadata: Data


class OpenEpisode(_Episode):
    """episode.json while steps may follow."""

    status: Literal["open"]


class Packed(pydantic.BaseModel):
    """An array of a closed episode."""

    dtype: Dtype
    shape: Shape
    crc32: Crc


class ClosedEpisode(_Episode):
    """episode.json at the end."""

    status: Literal["closed"]
    closed: Text
    summary: Data
    steps: Count
    steps_bytes: Count
    data_bytes: Count
    data_header_crc32: Crc
    arrays: dict[pydantic.StrictStr, Packed]


class StepLine(pydantic.BaseModel):
    """A line of steps.jsonl."""

    index: Count
    record: tuple[Count, Count]
    arrays: dict[pydantic.StrictStr, tuple[Count, Count, Crc]]
    step: Data


class RecordArray(pydantic.BaseModel):
    """An array in the head of a journal's record."""

    name: Text
    dtype: Dtype
    shape: Annotated[Shape, pydantic.Field(min_length=1)]
    crc32: Crc


class RecordHead(pydantic.BaseModel):
    """The head of a journal's record."""

    index: Count
    arrays: Annotated[list[RecordArray], pydantic.Field(fail_fast=True)]


class HeaderEntry(pydantic.BaseModel):
    """An array in the header of a safetensors file."""

    dtype: Dtype
    shape: Annotated[Shape, pydantic.Field(min_length=1)]
    data_offsets: tuple[Count, Count]


class Header(pydantic.RootModel[dict[pydantic.StrictStr, HeaderEntry]]):
    """The header of a safetensors file, but for what it says about itself."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _arrays(cls, told: Any) -> Any:
        return {name: one for name, one in told.items() if name != "__metadata__"} if isinstance(told, dict) else told


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of document."""

    schema: Any  # a pydantic.TypeAdapter
    limit: int


_kinds: dict[str, Kind] = {}


def register(kind: str, schema: Any, *, limit: int = LIMIT) -> str:
    """Makes a kind of document known, and returns its name.

    Args:
        kind: What to call it, as in "is no {kind}".
        schema: A pydantic model, or any type that pydantic can check.
        limit: The most bytes that it may have.
    """
    _kinds[kind] = Kind(pydantic.TypeAdapter(schema), limit)
    return kind


def strict(record: type, *, extra: Literal["forbid", "ignore"] = "forbid") -> Any:
    """Returns a schema of the fields of a dataclass, of exactly their types."""
    fields: dict[str, Any] = {field.name: (field.type, ...) for field in dataclasses.fields(record)}
    return pydantic.create_model(record.__name__, __config__=pydantic.ConfigDict(strict=True, extra=extra), **fields)


def limit_of(kind: str) -> int:
    """Returns the most bytes that a document of this kind may have."""
    return _kinds[kind].limit


def check(content: Any, kind: str) -> None:
    """Compares what was read with the schema of its kind.

    Raises:
        UnreadableError: It does not fit; says where and why.
    """
    try:
        _kinds[kind].schema.validate_python(content)
    except pydantic.ValidationError as error:
        raise damage.UnreadableError(f"is no {kind}: {_first(error)}") from None
    except errors.SondeError as error:
        raise damage.UnreadableError(f"is no {kind}: {error}") from None


def _first(error: pydantic.ValidationError) -> str:
    """Returns the first thing that is wrong, and where."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:60] for part in found["loc"][:6])
    more = error.error_count() - 1
    return f"{place + ': ' if place else ''}{found['msg'][:200]}" + (f" (and {more} more)" if more else "")


register("document", Document)
register("manifest", Manifest, limit=64 * MEBI)
register("episode", Annotated[OpenEpisode | ClosedEpisode, pydantic.Discriminator("status")], limit=64 * MEBI)
register("step", StepLine, limit=64 * MEBI)
register("record", RecordHead, limit=16 * MEBI)
register("header", Header, limit=100_000_000)
register("line", Data, limit=64 * MEBI)
