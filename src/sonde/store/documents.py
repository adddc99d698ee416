"""How does a JSON text carry its own checksum and version?

The last key of every object is `crc32`: eight hex digits, the CRC-32 of all bytes before the comma in front
of it. Documents (manifest.json, episode.json) are indented, lines of steps.jsonl are not; both are plain
JSON to any other program. Costs one CRC per text. This sealing is the same in every format version.
"""

import importlib.metadata
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.store import damage, disk, plain

FORMAT = 1


def seal_line(content: Mapping[str, Any]) -> bytes:
    """Returns the content as one JSON line with its checksum, newline included."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
    return text[:-1] + _line_end(text[:-1]) + b"\n"


def unseal_line(line: bytes) -> dict[str, Any] | None:
    """Returns the content of a line without its newline, or None if the checksum does not match."""
    size = len(_line_end(b""))
    body, end = line[:-size], line[-size:]
    if end != _line_end(body):
        return None
    return json.loads(line)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a document with its checksum, atomically and durably."""
    text = json.dumps(content, indent=2, allow_nan=False).encode("ascii")
    body = text[: -len("\n}")]
    disk.write_atomic(path, body + _document_end(body))


def keep(path: Path, content: Mapping[str, Any]) -> None:
    """Writes what one part of a study found, as a document."""
    with disk.explained(path):
        disk.make_dirs(path.parent)
        write(path, plain.jsonable({"format": FORMAT, **content}))


def kept(path: Path) -> dict[str, Any]:
    """Returns what `keep` wrote; raises what `read` does."""
    content = read(path)
    del content["format"]
    return content


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Writes what a study found as plain JSON without a checksum: for other programs, and made anew from the parts."""
    text = json.dumps(plain.jsonable(content), indent=1, allow_nan=False) + "\n"
    with disk.explained(path):
        disk.write_atomic(path, text.encode())


def is_document(data: bytes) -> bool:
    """Returns whether a text is a document, damaged or not: it begins or ends as one."""
    return data.startswith(b'{\n  "format": %d,' % FORMAT) or b'"crc32": ' in data[-len(_document_end(b"")) :]


def is_sealed(data: bytes) -> bool:
    """Returns whether a document's checksum matches its content."""
    size = len(_document_end(b""))
    return data[-size:] == _document_end(data[:-size])


def read(path: Path) -> dict[str, Any]:
    """Returns the content of a document.

    Raises:
        StoreError: There is no such file.
        DamagedError: The checksum does not match.
        VersionError: A newer Sonde wrote it.
    """
    with disk.explained(path, doing="read"):
        data = path.read_bytes()
    sealed = is_sealed(data)
    try:
        content = json.loads(data)
        version = content["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        content, version = {}, None
    if isinstance(version, int) and version > FORMAT:
        raise errors.VersionError(
            f"{path} has format {version}, written by sonde {_writer(content)}; this sonde {sonde_version()} reads up "
            f"to format {FORMAT}: upgrade with `pip install --upgrade sonde`"
            + ("" if sealed else " (its checksum does not match either, so it may be damaged instead)")
        )
    if not sealed or version is None:
        raise damage.Damage(path, "the checksum does not match the content").error()
    content.pop("crc32", None)
    return content


def sonde_version() -> str:
    """Returns the version of the installed package, without importing it."""
    return package_version("sonde") or "0+unknown"


def package_version(name: str) -> str | None:
    """Returns the version of an installed package, or None, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _writer(content: Mapping[str, Any]) -> str:
    versions = content.get("versions")
    found = versions.get("sonde") if isinstance(versions, dict) else None
    return str(found or "of unknown version")


def _line_end(body: bytes) -> bytes:
    return b',"crc32":"%08x"}' % zlib.crc32(body)


def _document_end(body: bytes) -> bytes:
    return b',\n  "crc32": "%08x"\n}\n' % zlib.crc32(body)
