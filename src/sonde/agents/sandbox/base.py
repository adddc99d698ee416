"""What is a sandbox? One writable folder, one command at a time in it, and limits on everything else.

    async with choosing.open_sandbox(files={"main.py": "print(6 * 7)"}) as sandbox:
        result = await sandbox.run("python main.py")
        assert result.output.strip() == "42" and result.exit_code == 0

A command is a new shell in the working folder. Whatever it starts ends with it; only files in the working folder stay
for the next command, and those go when the sandbox is closed.
"""

import dataclasses
import math
import re
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from sonde.core import errors

WORKSPACE = "/workspace"
MAX_COMMAND = 100_000
"""Bytes of a command; the kernel takes at most 128 KiB in one argument."""

FLOOD = 64 * 2**20
"""Bytes of output after which a command is stopped, kept or not."""

# Everything that moves a cursor, hides text or reverses it; line feeds and tabs stay.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a command may use.

    Attributes:
        seconds: Wall clock; then the whole process tree is killed.
        memory: Bytes, for one process and for all together; see `Sandbox.memory_kept_by`.
        processes: At once, threads included.
        output: Bytes kept of what it writes: the beginning and the end.
        disk: Bytes in the working folder; the sandbox's own limit is the most a single command can be given.
    """

    seconds: float | int = 30.0
    memory: int = 512 * 2**20
    processes: int = 64
    output: int = 20_000
    disk: int = 256 * 2**20

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not 0 < (given := getattr(self, field.name)) < math.inf:
                raise ValueError(f"the limit {field.name!r} must be positive and finite, got {given}")


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of a command.

    Attributes:
        output: Standard output and standard error as they came, harmless to show on a terminal.
        exit_code: None if the command was stopped.
        timed_out: Whether it was stopped because its time was up.
        truncated: Whether the middle of the output was cut.
        seconds: How long it took.
        note: Why it was stopped, if it was.
        peak_memory: Bytes it used at once, at most, where that is known: counted by the kernel, or as last seen.
    """

    output: str
    exit_code: int | None
    timed_out: bool
    truncated: bool
    seconds: float
    note: str = ""
    peak_memory: int | None = None


@runtime_checkable
class Sandbox(Protocol):
    """A place to run commands that nobody vouches for."""

    @property
    def memory_kept_by(self) -> str:
        """Who keeps commands within `Limits.memory`: the kernel, or somebody who looks now and then, and why."""
        ...

    async def run(self, command: str, *, limits: Limits | None = None) -> Result:
        """Runs `bash -c command` in the working folder.

        Args:
            command: Shell text.
            limits: For this command instead of the sandbox's own.

        Raises:
            SandboxError: The sandbox is closed, or the text cannot be a command: a NUL byte, or too long.
        """
        ...

    async def put(self, files: Mapping[str, str | bytes]) -> None:
        """Writes files, by paths relative to the working folder; folders are made as needed.

        Raises:
            SandboxError: A path is absolute, contains `..`, or leads through a symbolic link; or the disk is full.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Reads a file, by its path relative to the working folder.

        Raises:
            SandboxError: There is no such regular file, or its path is one that `put` would refuse.
        """
        ...

    async def close(self) -> None:
        """Stops what runs and removes everything; may be called twice."""
        ...

    async def __aenter__(self) -> Self:
        """Itself."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes, whatever happened."""
        ...


class Output:
    """Keeps the beginning and the end of a stream, whatever its length."""

    def __init__(self, limit: int) -> None:
        """Starts empty; `limit` is in bytes."""
        self._tail_limit = limit // 2
        self._head_limit = limit - self._tail_limit
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    @property
    def truncated(self) -> bool:
        """Whether something was cut."""
        return self.total > len(self._head) + self._tail_limit

    def add(self, data: bytes) -> None:
        """Takes the next bytes."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_limit + 65536:
            del self._tail[: len(self._tail) - self._tail_limit]

    def text(self) -> str:
        """What was kept, as harmless text, with a note where it was cut."""
        if not self.truncated:
            return harmless(bytes(self._head + self._tail))
        cut = self.total - len(self._head) - self._tail_limit
        end = bytes(self._tail[len(self._tail) - self._tail_limit :])
        return f"{harmless(bytes(self._head))}\n[… {cut} bytes cut …]\n{harmless(end)}"


class Stopwatch:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._start


def harmless(data: bytes) -> str:
    """Text that does nothing to a terminal: control characters are spelled out, undecodable bytes replaced."""
    text = data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def check_command(command: str) -> None:
    """Refuses what cannot be handed to a shell.

    Raises:
        SandboxError: It holds a NUL byte, cannot be encoded, or is too long.
    """
    if "\0" in command:
        raise errors.SandboxError(f"a command cannot hold a NUL byte, found one at character {command.index(chr(0))}")
    try:
        size = len(command.encode())
    except UnicodeEncodeError as error:
        raise errors.SandboxError(f"a command must be text that UTF-8 can encode: {error}") from None
    if size > MAX_COMMAND:
        raise errors.SandboxError(
            f"the command has {size} bytes, at most {MAX_COMMAND} are allowed: put() a script and run that"
        )


def parts_of(path: str) -> list[str]:
    """The components of a path relative to the working folder.

    Raises:
        SandboxError: The path is empty, absolute, leaves the folder, or holds what a file name cannot.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or not parts or "\0" in path:
        raise errors.SandboxError(
            f"not a path inside the working folder: {path[:200]!r}; expected a relative one without '..'"
        )
    return parts
