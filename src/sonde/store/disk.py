"""How do bytes reach the disk so that a crash or a full disk never leaves half a file behind?

Whole files are written beside their target, fsynced and renamed over it; files that grow are fsynced after
each append and cut back to the last good end when an append fails. Costs one or two fsyncs per promise
(0.2 ms on a good SSD, 10 ms on a slow disk).
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from sonde.core import errors

if sys.platform != "win32":
    import fcntl

#: A file is opened as itself, never through a link, and never waiting for the other end of a pipe.
NO_SURPRISE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_DEEP = 100
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def explained(path: Path, *, doing: str = "write", then: str = "try again") -> Iterator[None]:
    """Turns an OSError inside the block into a StoreError that says what to do.

    Args:
        path: The file or folder the block works on.
        doing: What was being done to it.
        then: What the caller should do once space is free again.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            message = f"cannot {doing} {path}: the disk is full ({error.strerror}); free some space, then {then}"
        else:
            message = f"cannot {doing} {path}: {error.strerror or error}"
        raise errors.StoreError(message) from error


def write_all(fd: int, data: memoryview | bytes) -> None:
    """Writes all of the bytes, however many calls that takes."""
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(fd, view) :]


def fsync_dir(folder: Path) -> None:
    """Makes renames and new names inside the folder durable."""
    if sys.platform == "win32":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(folder: Path) -> None:
    """Makes the folder and those above it, durably; fine if they exist."""
    if folder.is_dir():
        return
    make_dirs(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_dir(folder.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[int]:
    """Gives a file descriptor to write; the file takes the place of `path` only when the block ends well."""
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        try:
            yield fd
            os.fsync(fd)
        finally:
            os.close(fd)
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a whole file: afterwards it holds either the old bytes or the new ones, never a mixture."""
    with replacing(path) as fd:
        write_all(fd, data)


def remove_tree(folder: Path) -> None:
    """Deletes a folder and all in it, following no link, however deep it is."""
    try:
        shutil.rmtree(folder)
    except RecursionError:  # what is deep comes up, and goes with the rest
        for place, subfolders, _ in os.walk(folder, topdown=True):
            if len(Path(place).parts) - len(folder.parts) >= _DEEP:
                for name in subfolders:
                    (Path(place) / name).rename(folder / f"{secrets.token_hex(8)}")
                subfolders.clear()
        remove_tree(folder)


def is_locked(path: Path) -> bool:
    """Returns whether some AppendFile holds this file right now."""
    if sys.platform == "win32":
        return False
    try:
        fd = os.open(path, os.O_RDONLY | NO_SURPRISE)
    except OSError:  # there is none, or it is nothing that an AppendFile would open
        return False
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and not _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    """Tries to become the only owner of the file; the system lets go of it when the process ends."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing to ask
        return True
    return True


class AppendFile:
    """A file that grows by durable appends and has one writer at a time."""

    def __init__(self, path: Path) -> None:
        """Opens the file, making it if it is missing, and locks it.

        Raises:
            StoreError: Another writer has it open, or it is not a regular file.
        """
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | NO_SURPRISE, 0o666)
        self._close = weakref.finalize(self, os.close, self._fd)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self._close()
            raise errors.StoreError(f"{path} is not a regular file: delete it")
        if not _lock(self._fd):
            self._close()
            raise errors.StoreError(f"{path} is being written by another process or writer; close that one first")

    def append(self, *chunks: memoryview | bytes) -> int:
        """Writes the chunks at the end, durably; returns how many bytes that was."""
        for chunk in chunks:
            write_all(self._fd, chunk)
        os.fsync(self._fd)
        return sum(len(chunk) for chunk in chunks)

    def cut(self, size: int) -> None:
        """Takes back everything after the first `size` bytes, durably."""
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)

    def close(self) -> None:
        """Lets go of the file; fine if that was done before."""
        self._close()

    def __enter__(self) -> Self:
        """Returns the file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes it."""
        self.close()
