"""How is the memory of a whole command kept within its limit by the kernel? In a control group, where one can be had.

A group counts every page that its processes are the first to touch: private or shared, in a page table or not, files
in memory, buffers of pipes and sockets, page tables. Each command is started in a group of its own, which goes with it.
It is made below the group that Sonde itself runs in (version 1), or beside it (version 2, where a group that holds
processes cannot hold limited groups), and never where a limit around Sonde would no longer hold.

None can be had by ordinary users of version 1, in most containers (there the file system of groups is read-only), and
in sessions that are not delegated to their user; `find` says which it is. A group that a killed process left behind is
empty, and is removed by the next `find` from the same place.

Costs, on two busy cores: some 4 ms a command, of which half a millisecond is for making and removing the group.
"""

import contextlib
import dataclasses
import fcntl
import functools
import math
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from sonde.agents.sandbox import base
from sonde.core import errors

OWN = 16 * 2**20
"""Bytes beyond the limit for what is not the command's: bubblewrap, shells, the kernel's own records of processes."""

_OWN_PROCESSES = 2  # bubblewrap outside and inside
_MOST_MEMORY, _MOST_PROCESSES = 2**62, 2**22  # that the kernel takes as limits
_PREFIX = "sonde-"
_HELD = "cgroup.procs"
"""The file in a group's folder whose lock its maker holds; that of the folder is for who makes groups below it."""

_SOCKETS = "memory.kmem.tcp.{}_in_bytes"
_BATCH = 2**20
"""Bytes by which a group may be short of its limit when it is full, or beyond it for a moment without harm."""

_NEEDED = {"memory", "pids"}
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where groups can be made.

    Attributes:
        version: Of the kernel's interface, 1 or 2.
        memory: Folder for groups that limit memory.
        processes: Folder for groups that limit processes; the same one in version 2.
    """

    version: int
    memory: Path
    processes: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """Both, each once."""
        return tuple(dict.fromkeys((self.memory, self.processes)))


class Group:
    """One command's group; `close` it when nothing runs in it any more. Everything here blocks, for a moment."""

    def __init__(self, place: Place, limits: base.Limits) -> None:
        """Makes it.

        Args:
            place: Where.
            limits: Of these, `memory` and `processes`.

        Raises:
            SandboxError: It cannot be made.
        """
        name = _PREFIX + secrets.token_hex(8)
        self._version, self._limits = place.version, limits
        self._most = min(math.ceil(limits.memory) + OWN, _MOST_MEMORY)
        self._memory, self._processes = place.memory / name, place.processes / name
        self._folders = tuple(folder / name for folder in place.folders)
        self._locks: list[int] = []
        try:
            for folder in self._folders:
                with _locked(folder.parent):  # lest it be swept before it is locked
                    folder.mkdir()
                    self._locks.append(_lock(folder / _HELD))
            self._limit()
        except OSError as error:
            self.close()
            raise errors.SandboxError(f"cannot make a control group in {place.memory}: {error.strerror}") from None

    def enter(self) -> list[str]:
        """The beginning of a command line that continues inside, with an empty environment."""
        # Moving a single thread spares the kernel a wait for all processors; version 2 moves processes only.
        file = "tasks" if self._version == 1 else "cgroup.procs"
        files = [str(folder / file) for folder in self._folders]
        moves = "".join(f'echo 0 >"${number}" && ' for number in range(1, len(files) + 1))
        return ["/bin/sh", "-c", f'{moves}shift {len(files)} && exec env -i "$@"', "sh", *files]

    def exceeded(self) -> str:
        """Why the command must be stopped now; empty if it need not be."""
        killed, full = self._events() if self._version == 2 else self._events_of_version_1()
        if full:
            return f"it used more than {self._limits.memory} bytes of memory"
        return "it was killed because the memory of the machine, or of a group around Sonde, was full" if killed else ""

    def peak(self) -> int | None:
        """The most bytes it used at once; None if this kernel does not say."""
        if self._version == 1:
            return self._number("memory.max_usage_in_bytes") + self._number(_SOCKETS.format("max_usage"))
        return self._number("memory.peak") or None

    def close(self) -> None:
        """Removes it; what cannot be removed yet is left for a later `find`."""
        for folder in self._folders:
            for _ in range(20):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # the last process has ended, but the kernel is not done with it
                    time.sleep(0.001)
                else:
                    break
        while self._locks:
            os.close(self._locks.pop())

    def _limit(self) -> None:
        processes = min(math.ceil(self._limits.processes) + _OWN_PROCESSES, _MOST_PROCESSES)
        (self._processes / "pids.max").write_text(str(processes), encoding="ascii")
        limits = [("memory.max", self._most), ("memory.swap.max", 0)]
        if self._version == 1:  # in this order; buffers of sockets are counted apart
            limits = [("memory.limit_in_bytes", self._most), ("memory.memsw.limit_in_bytes", self._most)]
            limits.append((_SOCKETS.format("limit"), OWN))
        for number, (name, most) in enumerate(limits):
            if number == 0 or (self._memory / name).exists():  # a kernel may count no swap
                (self._memory / name).write_text(str(most), encoding="ascii")

    def _events(self) -> tuple[bool, bool]:
        """Whether the kernel has killed something here for want of memory, and whether this group's limit was met."""
        events = self._table("memory.events")
        if events["oom_kill"] > 0:
            return True, events["oom"] > 0
        # Buffers of sockets may go beyond the limit, until something else needs a page.
        return False, self._number("memory.current") > self._most + _BATCH

    def _events_of_version_1(self) -> tuple[bool, bool]:
        if self._table("memory.oom_control")["oom_kill"] > 0:
            return True, self._number("memory.max_usage_in_bytes") > self._most - _BATCH
        sockets = self._number(_SOCKETS.format("usage"))
        if sockets <= OWN:
            return False, False
        table = self._table("memory.stat")
        files = table["cache"] - table["shmem"]  # copies of what is on disk: the kernel takes them back when it must
        return False, self._number("memory.usage_in_bytes") - files + sockets > self._most

    def _table(self, name: str) -> dict[str, int]:
        lines = (self._memory / name).read_text(encoding="ascii").splitlines()
        return {key: int(number) for key, number in (line.split() for line in lines)}

    def _number(self, name: str) -> int:
        """What a file says; 0 if this kernel does not have it."""
        file = self._memory / name
        return int(file.read_text(encoding="ascii")) if file.exists() else 0


def find() -> Place:
    """The place for groups of this process's commands; proven by running something in one.

    Raises:
        SandboxError: There is none; says why.
    """
    try:
        place = _place()
        _prove(place)
        for folder in place.folders:
            _sweep(folder)
    except OSError as error:
        raise errors.SandboxError(f"{error.filename}: {error.strerror}") from None
    return place


def beside(own: Path, *, top: Path) -> Place:
    """The place for groups of a process of version 2: in its own group if that one may hold any, else beside it.

    Args:
        own: Folder of the process's own group.
        top: Where the file system of groups is mounted.

    Raises:
        SandboxError: There is none that keeps the limits around the process; says why.
    """
    with contextlib.suppress(OSError):  # refused by the kernel unless this is the first of all groups
        (own / "cgroup.subtree_control").write_text("+memory +pids", encoding="ascii")
    if _passes_on(own):
        return Place(2, own, own)
    if own == top or not _passes_on(own.parent):
        raise errors.SandboxError(f"memory and processes cannot be limited in or beside the control group {own}")
    for name in ("memory.max", "memory.high"):
        limit = (own / name).read_text(encoding="ascii").strip()
        if limit != "max":
            raise errors.SandboxError(f"{name} of {own} is {limit}, which would not hold for a group beside it")
    return Place(2, own.parent, own.parent)


def _passes_on(folder: Path) -> bool:
    return set((folder / "cgroup.subtree_control").read_text(encoding="ascii").split()) >= _NEEDED


def _place() -> Place:
    own: dict[str, str] = {}
    for line in _lines("/proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    mounts = dict(_mounts())
    if "memory" in own:
        missing = sorted(name for name in _NEEDED if name not in own or name not in mounts)
        if missing:
            raise errors.SandboxError(f"no control groups for {' and '.join(missing)} are mounted here")
        return Place(1, *(_inside(mounts[name], own[name]) for name in ("memory", "pids")))
    if "" not in own or "" not in mounts:
        raise errors.SandboxError("no control groups are mounted here")
    return beside(_inside(mounts[""], own[""]), top=Path(mounts[""][1]))


def _mounts() -> Iterator[tuple[str, tuple[str, str]]]:
    """For each controller, which part of its groups is mounted, and where; all of version 2 go by an empty name."""
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (_OCTAL.sub(lambda found: chr(int(found[1], 8)), word) for word in before.split()[3:5])
            for name in options.split(",") if kind == "cgroup" else [""]:
                yield name, (root, point)


def _lines(file: str) -> list[str]:
    return Path(file).read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _inside(mount: tuple[str, str], path: str) -> Path:
    root, point = mount
    inside = os.path.relpath(path, root)
    if inside.startswith(".."):
        raise errors.SandboxError(f"the control group {path} of this process is not to be seen below {point}")
    return Path(point) / inside


@functools.cache
def _prove(place: Place) -> None:
    group = Group(place, base.Limits())
    try:
        tried = subprocess.run([*group.enter(), "true"], capture_output=True, text=True, check=False)
    finally:
        group.close()
    if tried.returncode != 0:
        said = base.harmless(tried.stderr.encode()).strip()
        raise errors.SandboxError(f"no process can be moved into a control group in {place.memory}: {said}")


def _sweep(folder: Path) -> None:
    """Removes groups whose maker was killed: nobody holds their locks."""
    with _locked(folder):
        for left in folder.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                os.close(_lock(left / _HELD))
                left.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    held = _lock(folder, wait=True)
    try:
        yield
    finally:
        os.close(held)


def _lock(path: Path, *, wait: bool = False) -> int:
    """A descriptor that holds the lock of a file or folder for as long as it is open.

    Raises:
        BlockingIOError: Somebody else holds it.
    """
    held = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(held)
        raise
    return held
