"""Which files of a model folder may be opened, and how are they read?

A folder may come from anyone. A file is opened only if it is a regular file inside the folder (a link must end there too;
in a Hugging Face cache, in the blobs beside the snapshots), and read only up to a size. JSON must be an object, with finite
numbers. Costs a few system calls per file.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from sonde.core import errors

MIB = 1 << 20
#: Far above the largest that were seen: a configuration has some kilobytes.
LARGEST_JSON = 4 * MIB


class Folder:
    """A folder that nobody has vouched for."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        cached = self.path.parent.name == "snapshots"  # the cache keeps files once, and links to them
        self._homes = (self.path, self.path.parent.parent / "blobs") if cached else (self.path,)

    def file(self, name: str) -> Path | None:
        """The file of a name; None if there is none.

        Raises:
            ModelError: The name or a link leads out of the folder, or it is no regular file.
        """
        if not is_plain(name):
            raise errors.ModelError(f"{name!r} is no name of a file in {self.path}: it leads out of the folder")
        link = self.path / name
        if not link.is_symlink() and not link.exists():
            return None
        found = link.resolve()
        if not any(found.is_relative_to(home) for home in self._homes):
            raise errors.ModelError(f"{link} leads out of its folder, to {found}: put the file itself there")
        if not found.is_file():
            raise errors.ModelError(f"{link} is no regular file")
        return found

    def read(self, name: str, *, most: int = LARGEST_JSON) -> bytes | None:
        """The content of a file; None if there is none.

        Raises:
            ModelError: As `file`, or it has more than `most` bytes.
        """
        path = self.file(name)
        if path is None:
            return None
        with path.open("rb") as opened:
            content = opened.read(most + 1)
        if len(content) > most:
            raise errors.ModelError(f"{path} is too large: {name} may have {most:,} bytes")
        return content

    def json(self, name: str, *, most: int = LARGEST_JSON) -> dict[str, Any] | None:
        """The object in a JSON file; None if there is none.

        Raises:
            ModelError: As `read`, or it holds no JSON object.
        """
        content = self.read(name, most=most)
        if content is None:
            return None
        with explained(f"{self.path / name} is no JSON"):
            found = json.loads(content, parse_constant=_not_finite)
        if not isinstance(found, dict):
            raise errors.ModelError(f"{self.path / name} must hold a JSON object, got {type(found).__name__}")
        return found


def is_plain(name: object) -> bool:
    """Whether this is the name of a file and no path."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns whatever a library raises on a broken file into a ModelError, and says of what file a ModelError speaks.

    Everything is caught on purpose: libraries that read model files let almost any exception through, and those written in
    Rust one that is no Exception.

    Args:
        what: What could not be done: the beginning of the message.
    """
    try:
        yield
    except errors.SondeError as error:
        if type(error) is not errors.ModelError:
            raise
        raise errors.ModelError(f"{what}: {error}") from error.__cause__
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise errors.ModelError(f"{what}: {type(error).__name__}: {shortened(str(error))}") from error


def shortened(text: str) -> str:
    """A message of a library, of bounded length and without control characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text.strip()[:600])
    return shown if len(text) <= 600 else shown + " …"


def _not_finite(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
