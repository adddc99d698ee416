"""Does a running command stay within its limits? A look at its file systems and its processes, many times a second.

A command with a control group (see `control_groups`) is kept within memory and processes by the kernel; all there is to
see is whether the kernel had to kill something, for then all of it is stopped.

Without one, limits that the kernel keeps per process or per user (see `bubblewrap`) come first, and this catches what
many processes do together. A look reads the sandbox's own `/proc`, so it costs by what runs inside, not by what runs on
the machine: under half a millisecond for five processes. Memory is the sum of the resident sets; only if that is too much, the proportional sets
are summed, which count a shared page once. Not seen: pages of a shared mapping that nobody has in his page table at the
moment, and the kernel's buffers for pipes and sockets; the former are bounded by address space, the latter by open
files, and sandboxed processes are the first that the kernel kills when memory runs out.
"""

import os
import re
from pathlib import Path

from sonde.agents.sandbox import base, control_groups

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROPORTIONAL = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)
_THREADS, _RESIDENT = 17, 21
"""Fields of `/proc/<pid>/stat` after the name in parentheses."""

BYTES_PER_FILE = 4096
"""A file costs the kernel memory even when empty: one is allowed for so many bytes of disk."""


class Watch:
    """One command, seen from outside."""

    def __init__(self, pid: int, *, limits: base.Limits, workspace: int, group: control_groups.Group | None) -> None:
        """Takes what to look at.

        Args:
            pid: The first process of the sandbox, as numbered here.
            limits: What is allowed.
            workspace: Descriptor of the working folder.
            group: The command's control group, if it has one.
        """
        self._root = f"/proc/{pid}/root"
        self._limits = limits
        self._workspace = workspace
        self._group = group
        self._allowed = (limits.disk, max(1000, limits.disk // BYTES_PER_FILE))
        self._before = _used(workspace)
        self._proc: int | None = None
        self.peak_memory: int | None = None

    def look(self) -> str:
        """Why the command must be stopped now; empty if it need not be. Blocking: call in a thread."""
        if self._proc is None and not self._enter():
            return ""
        return self._disk() or (self._tree() if self._group is None else self._group.exceeded())

    def close(self) -> None:
        """Lets go of the sandbox's file systems."""
        if self._proc is not None:
            os.close(self._proc)
            self._proc = None

    def _disk(self) -> str:
        for place in (self._workspace, f"{self._root}/tmp", f"{self._root}/dev/shm"):  # noqa: S108
            try:
                found = _used(place)
            except OSError:
                continue
            # What was too much before this command must not keep it from clearing up.
            allowed = [max(pair) for pair in zip(self._allowed, self._before, strict=True)]
            if found[0] > allowed[0]:
                return f"it used more than {allowed[0]} bytes of disk"
            if found[1] > allowed[1]:
                return f"it made more than {allowed[1]} files"
        return ""

    def _tree(self) -> str:
        assert self._proc is not None
        try:
            pids = [name for name in os.listdir(self._proc) if name.isdigit()]  # noqa: PTH208 a descriptor
        except OSError:  # all of it has just ended
            return ""
        if len(pids) > self._limits.processes + 2:  # the sandbox's own first process, and one just ending
            return f"it had more than {self._limits.processes} processes"
        threads = memory = 0
        for pid in pids:
            fields = self._read(f"{pid}/stat").rpartition(b")")[2].split()
            if len(fields) > _RESIDENT:
                threads += int(fields[_THREADS])
                memory += int(fields[_RESIDENT]) * _PAGE
        if threads > self._limits.processes + 2:
            return f"it had more than {self._limits.processes} processes and threads"
        if memory > self._limits.memory:
            memory = self._proportional(pids) or memory
        self.peak_memory = max(self.peak_memory or 0, memory)
        return f"it used more than {self._limits.memory} bytes of memory" if memory > self._limits.memory else ""

    def _enter(self) -> bool:
        """Opens the sandbox's own `/proc`, once it is there: before that, the same name shows the machine's."""
        try:
            found = os.open(f"{self._root}/proc", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return False
        if os.fstat(found).st_dev == Path("/proc").stat().st_dev:
            os.close(found)
            return False
        self._proc = found
        return True

    def _proportional(self, pids: list[str]) -> int:
        return 1024 * sum(
            int(size) for pid in pids for size in _PROPORTIONAL.findall(self._read(f"{pid}/smaps_rollup"))
        )

    def _read(self, name: str) -> bytes:
        try:
            with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=self._proc), "rb") as file:
                return file.read()
        except OSError:  # it has just ended
            return b""


def _used(place: int | str) -> tuple[int, int]:
    """Bytes and files of a file system."""
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree
