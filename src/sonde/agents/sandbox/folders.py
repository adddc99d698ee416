"""How to read and write in a folder that an adversary has arranged? Step by step, following no symbolic link.

Every component is opened relative to the folder before it and must be a real folder; the last one must be a regular
file, and is opened so that a pipe or a device cannot make the caller wait. A path thus never leads out of the folder
it starts in, whatever is renamed meanwhile. Blocking: call in a thread. Cost: one system call per component.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence

from sonde.agents.sandbox import base
from sonde.core import errors

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write(root: int, path: str, data: bytes, *, owner: int | None = None) -> None:
    """Writes one file under an open folder; what has its name is replaced, never written through.

    Args:
        root: Descriptor of the folder.
        path: Relative to it.
        data: The whole content.
        owner: User and group that files and folders shall belong to; None: who calls.

    Raises:
        SandboxError: See `Sandbox.put`.
    """
    parts = base.parts_of(path)
    with _explained("write", path), _folder(root, parts[:-1], make=True, owner=owner) as folder:
        mode = 0o644
        with contextlib.suppress(FileNotFoundError):
            mode = _kept(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode)
        draft = f".{secrets.token_hex(8)}"
        file = os.open(draft, _CREATE, mode, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(data)
                os.fchmod(file, mode)
                if owner is not None:
                    os.fchown(file, owner, owner)
            os.rename(draft, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise


def read(root: int, path: str, *, limit: int) -> bytes:
    """Reads one regular file under an open folder.

    Args:
        root: Descriptor of the folder.
        path: Relative to it.
        limit: A longer file is refused; one with holes can claim any length.

    Raises:
        SandboxError: See `Sandbox.get`.
    """
    parts = base.parts_of(path)
    with _explained("read", path), _folder(root, parts[:-1]) as folder:
        file = os.open(parts[-1], _READ, dir_fd=folder)
        with os.fdopen(file, "rb") as stream:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise errors.SandboxError(f"cannot read {path!r}: not a regular file")
            data = stream.read(limit + 1) if found.st_size <= limit else None
        if data is None or len(data) > limit:
            raise errors.SandboxError(f"cannot read {path!r}: {found.st_size} bytes, at most {limit} are allowed")
        return data


def _kept(mode: int) -> int:
    """The permissions that a file keeps when it is written anew."""
    return stat.S_IMODE(mode) & 0o777 | 0o600 if stat.S_ISREG(mode) else 0o644


@contextlib.contextmanager
def _folder(root: int, parts: Sequence[str], *, make: bool = False, owner: int | None = None) -> Iterator[int]:
    current = os.dup(root)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=current)
                    if owner is not None:
                        os.chown(part, owner, owner, dir_fd=current, follow_symlinks=False)
            current, before = os.open(part, _FOLDER, dir_fd=current), current
            os.close(before)
        yield current
    finally:
        os.close(current)


@contextlib.contextmanager
def _explained(verb: str, path: str) -> Iterator[None]:
    reasons = {
        errno.ELOOP: "it is a symbolic link, and none is followed",
        errno.ENOTDIR: "a part of it is no folder, or a symbolic link, and none is followed",
        errno.ENXIO: "not a regular file",
        errno.EISDIR: "it is a folder, not a regular file",
        errno.ENOSPC: "the working folder is full",
    }
    try:
        yield
    except OSError as error:
        reason = reasons.get(error.errno or 0, error.strerror)
        raise errors.SandboxError(f"cannot {verb} {path[:200]!r} in the sandbox: {reason}") from None
