"""How is a file of a run opened, when a stranger may have put anything in its place?

Only a regular file is opened: a link could lead out of the run, and a pipe or a device may never end. Nothing is read
that is larger than its kind may be. Costs one look at the open file.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from sonde.store import damage, disk

LINK = "is a link: what belongs to a run lies in its folder"


def opened(path: Path) -> BinaryIO:
    """Opens a regular file for reading.

    Raises:
        FileNotFoundError: There is none.
        UnreadableError: It is something else, or may not be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | disk.NO_SURPRISE)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise damage.UnreadableError(_refused(error)) from error
    try:
        check_regular(fd)
    except BaseException:
        os.close(fd)
        raise
    return os.fdopen(fd, "rb")


def check_regular(fd: int) -> None:
    """Checks that an open file is a regular one.

    Raises:
        UnreadableError: It is a folder, a pipe, a device or a socket.
    """
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise damage.UnreadableError("is not a regular file")


def size_of(file: BinaryIO, limit: int) -> int:
    """Returns how long an open file is.

    Raises:
        UnreadableError: It is longer than it may be.
    """
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        raise damage.UnreadableError(f"has {size} bytes, more than the {limit} it may have")
    return size


def read(path: Path, limit: int) -> bytes:
    """Returns the content of a regular file.

    Raises:
        FileNotFoundError: There is none.
        UnreadableError: It is something else, may not be read, or is too long.
    """
    with opened(path) as file:
        return _bytes(file, size_of(file, limit))


def ends(path: Path, count: int) -> tuple[bytes, bytes]:
    """Returns the first and the last bytes of a regular file of any length; raises what `read` does."""
    with opened(path) as file:
        first = _bytes(file, count)
        file.seek(max(0, os.fstat(file.fileno()).st_size - count))
        return first, _bytes(file, count)


def _bytes(file: BinaryIO, count: int) -> bytes:
    try:
        return file.read(count)
    except OSError as error:
        raise damage.UnreadableError(_refused(error)) from error


def _refused(error: OSError | ValueError) -> str:
    """Returns why a file cannot be opened."""
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ELOOP:
        return LINK
    if code in (errno.ENXIO, errno.ENODEV, errno.EISDIR):
        return "is not a regular file"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"
