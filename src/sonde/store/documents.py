"""How does a JSON text carry its own checksum and version?

The last key of every object is `crc32`: eight hex digits, the CRC-32 of all bytes before the comma in front
of it. Documents (manifest.json, episode.json) are indented, lines of steps.jsonl are not; both are plain
JSON to any other program. This sealing is the same in every format version.

A seal finds accidents only: anybody can compute one. So what is read is also held to limits of size and depth, to
standard JSON, and to the schema of its kind (see `schemas`). Costs a CRC, a parse and a walk over the containers.
"""

import importlib.metadata
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sonde.core import errors
from sonde.store import damage, disk, files, plain

FORMAT = 1
MAX_DEPTH = 200  # what `plain` writes is never deeper


def seal_line(content: Mapping[str, Any]) -> bytes:
    """Returns the content as one JSON line with its checksum, newline included."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    return text[:-1] + _line_end(text[:-1]) + b"\n"


def unseal_line(line: bytes, kind: str) -> dict[str, Any]:
    """Returns the content of a line without its newline.

    Raises:
        UnreadableError: The checksum does not match, or it is no document of this kind.
    """
    if not _sealed_line(line):
        raise damage.UnreadableError("the checksum of the line does not match")
    return parse(line, kind)


def _sealed_line(line: bytes) -> bool:
    size = len(_line_end(b""))
    return line[-size:] == _line_end(line[:-size])


def whole_lines(path: Path, kind: str) -> tuple[list[dict[str, Any]], int]:
    """Returns what the sealed lines of a file say up to the first that is torn, and where the last of them ends.

    Raises:
        StoreError: There is no such file.
        DamagedError: It is not a regular file, or a line is whole and yet none of this kind.
    """
    from sonde.store import schemas

    found: list[dict[str, Any]] = []
    end = 0
    try:
        with disk.explained(path, doing="read"), files.opened(path) as file:
            while (line := file.readline(schemas.limit_of(kind))).endswith(b"\n") and _sealed_line(line[:-1]):
                found.append(unseal_line(line[:-1], kind))
                end += len(line)
    except damage.UnreadableError as error:
        raise damage.Damage(path, str(error), step=len(found)).error() from error
    return found, end


def parse(data: bytes, kind: str) -> Any:
    """Returns the content of a JSON text of a kind, without regard to a seal.

    Raises:
        UnreadableError: It is too large or too deep, no standard JSON, or no document of this kind.
    """
    from sonde.store import schemas  # pydantic takes 60 ms, which nobody waits for who reads nothing

    if len(data) > schemas.limit_of(kind):
        raise damage.UnreadableError(f"has {len(data)} bytes, more than the {schemas.limit_of(kind)} it may have")
    content = _parsed(data)
    schemas.check(content, kind)
    return content


def _parsed(data: bytes) -> Any:
    try:
        content = _DECODER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise damage.UnreadableError(f"is no JSON as it should be: {error}") from error
    level, depth = _inside([content]), 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise damage.UnreadableError(f"is nested deeper than {MAX_DEPTH}")
        level = [inner for outer in level for inner in _inside(outer)]
    return content


def _inside(value: Any) -> list[Any]:
    """Returns the lists and objects that a list or an object holds."""
    held = value.values() if type(value) is dict else value
    return [one for one in held if type(one) is dict or type(one) is list]


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _not_standard(text: str) -> NoReturn:
    raise ValueError(f"{text} is no standard JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_not_standard)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a document with its checksum, atomically and durably.

    Raises:
        OSError: It cannot be written.
    """
    text = json.dumps(content, indent=2, allow_nan=False).encode("ascii")
    body = text[: -len("\n}")]
    disk.write_atomic(path, body + _document_end(body))


def keep(path: Path, content: Mapping[str, Any]) -> None:
    """Writes what one part of a study found, as a document."""
    with disk.explained(path):
        disk.make_dirs(path.parent)
        write(path, plain.jsonable({"format": FORMAT, **content}))


def kept(path: Path, kind: str) -> dict[str, Any]:
    """Returns what `keep` wrote; raises what `read` does."""
    content = read(path, kind)
    del content["format"]
    return content


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Writes what a study found as plain JSON without a checksum: for other programs, and made anew from the parts."""
    text = json.dumps(plain.jsonable(content), indent=1, allow_nan=False) + "\n"
    with disk.explained(path):
        disk.write_atomic(path, text.encode())


def is_document(path: Path) -> bool:
    """Returns whether a file holds a document, damaged or not: it begins or ends as one.

    Raises:
        OSError: There is no such file.
        UnreadableError: It is not a regular file, or may not be read.
    """
    first, last = files.ends(path, len(_document_end(b"")))
    return first.startswith(b'{\n  "format": %d,' % FORMAT) or b'"crc32": ' in last


def read(path: Path, kind: str = "document") -> dict[str, Any]:
    """Returns the content of a document.

    Raises:
        StoreError: There is no such file.
        DamagedError: The checksum does not match, or it is no document of this kind.
        VersionError: A newer Sonde wrote it.
    """
    try:
        with disk.explained(path, doing="read"):
            return examine(path, kind)
    except damage.UnreadableError as error:
        raise damage.Damage(path, str(error)).error() from error


def examine(path: Path, kind: str) -> dict[str, Any]:
    """Returns the content of a document.

    Raises:
        OSError: There is no such file.
        UnreadableError: The checksum does not match, or it is no document of this kind.
        VersionError: A newer Sonde wrote it.
    """
    from sonde.store import schemas

    data = files.read(path, schemas.limit_of(kind))
    sealed = _sealed(data)
    try:
        content = _parsed(data)
    except damage.UnreadableError:
        if sealed:
            raise
        content = None
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise errors.VersionError(
            f"{path} has format {version}, written by sonde {_writer(content)}; this sonde {sonde_version()} reads up "
            f"to format {FORMAT}: upgrade with `pip install --upgrade sonde`"
            + ("" if sealed else " (its checksum does not match either, so it may be damaged instead)")
        )
    if not sealed or content is None:
        raise damage.UnreadableError("the checksum does not match the content")
    schemas.check(content, kind)
    content.pop("crc32", None)
    return content


def is_sealed(path: Path) -> bool:
    """Returns whether the checksum of a document matches its content; raises what `examine` does."""
    from sonde.store import schemas

    return _sealed(files.read(path, schemas.LIMIT))


def _sealed(data: bytes) -> bool:
    size = len(_document_end(b""))
    return data[-size:] == _document_end(data[:-size])


def read_results(path: Path, kind: str) -> Any:
    """Returns the content of a file of plain JSON, such as `write_results` writes.

    Raises:
        StoreError: There is no such file.
        DamagedError: It is no JSON of this kind.
    """
    from sonde.store import schemas

    try:
        with disk.explained(path, doing="read"):
            return parse(files.read(path, schemas.limit_of(kind)), kind)
    except damage.UnreadableError as error:
        raise damage.Damage(path, str(error)).error() from error


def sonde_version() -> str:
    """Returns the version of the installed package, without importing it."""
    return package_version("sonde") or "0+unknown"


def package_version(name: str) -> str | None:
    """Returns the version of an installed package, or None, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _writer(content: Any) -> str:
    versions = content.get("versions")
    found = versions.get("sonde") if isinstance(versions, dict) else None
    return str(found or "of unknown version")


def _line_end(body: bytes) -> bytes:
    return b',"crc32":"%08x"}' % zlib.crc32(body)


def _document_end(body: bytes) -> bytes:
    return b',\n  "crc32": "%08x"\n}\n' % zlib.crc32(body)
