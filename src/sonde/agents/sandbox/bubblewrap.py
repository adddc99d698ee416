"""How are commands confined without a daemon? With bubblewrap: new namespaces for every command, for everybody.

What a command gets, and who sees to it:

1. No network, no other processes, no devices but null, zero, full, random and tty: namespaces of its own for network,
   processes, users, mounts, System V objects and the host name; a session of its own, so no terminal to type into.
2. The file system of `namespace`, read-only but for the working folder, a private /tmp and /dev/shm; a fixed
   environment; no capabilities, no way to gain any, and the system calls that `filters` leaves.
3. Limits kept by the kernel: private memory per process, processes per sandbox, open files, file size, disk; and, where
   `control_groups` can be had, the memory of all processes together. Where not, that is watched (see `watching`), as
   the clock is everywhere; then the first process of the namespace is killed, and with it, by the kernel, all others.

Python: see `interpreter`; `python -m pytest` works inside if pytest is installed here. Costs, on two busy cores: 50 ms
to open, the first time 0.5 s more (see `hidden_tests`), 40 ms for a command that does nothing. The working folder is
kept in memory. Needs Linux, bubblewrap 0.5 or newer and util-linux; no root.
"""

import asyncio
import functools
import logging
import math
import os
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sonde.agents.sandbox import base, control_groups, filters, folders, interpreter, namespace, running
from sonde.core import errors

SCRATCH = 64 * 2**20
"""Bytes of /tmp and of /dev/shm, each, at most."""

_OPEN_FILES = 256
_CLOSED = "the sandbox was closed"
_WATCHED = "Sonde, by a look at all processes every 25 ms"
_ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "PATH": "/sandbox/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": "/sandbox/packages",
    "PYTHONUNBUFFERED": "1",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
    "TZ": "UTC",
    "USER": "agent",
}
# The first thing inside, before the command: limits that it cannot raise again.
_PRELUDE = """
ulimit -c 0; ulimit -n {files}; ulimit -u {processes}; ulimit -d {memory}; ulimit -v {space}; ulimit -f {disk}
ulimit -t {seconds}; ulimit -q 0
echo 1000 >/proc/self/oom_score_adj
""".strip().replace("\n", "; ")


class BubblewrapSandbox:
    """A sandbox made of namespaces; made by `open`."""

    def __init__(
        self,
        space: namespace.Namespace,
        *,
        limits: base.Limits,
        place: control_groups.Place | None = None,
        memory_kept_by: str = _WATCHED,
    ) -> None:
        """Takes over a namespace; closing the sandbox closes it."""
        self.limits = limits
        self.memory_kept_by = memory_kept_by
        self._place = place
        self._space: namespace.Namespace | None = space
        self._jobs: set[running.Job] = set()
        self._work: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls, *, limits: base.Limits | None = None, python_packages: Sequence[Path] | None = None
    ) -> "BubblewrapSandbox":
        """Makes a sandbox and proves that it works.

        Args:
            limits: For all its commands; `disk` is the size of its working folder.
            python_packages: What Python inside can import beside its standard library: files and folders as they lie
                in a site-packages folder. By default pytest and what it needs; see `interpreter.packages` for others.

        Raises:
            SandboxError: Bubblewrap is missing or not allowed to work here.
        """
        limits = limits or base.Limits()
        packages = await asyncio.to_thread(interpreter.chosen, python_packages)
        place, kept_by = await asyncio.to_thread(_place)
        space = await namespace.make(disk=limits.disk, packages=packages)
        sandbox = cls(space, limits=limits, place=place, memory_kept_by=kept_by)
        try:
            trial = await sandbox.run("exit 7", limits=base.Limits())
            if trial.exit_code != 7:
                raise errors.SandboxError(f"bubblewrap's trial run failed: {trial.note or trial.output}")
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def run(self, command: str, *, limits: base.Limits | None = None) -> base.Result:
        """Runs `bash -c command` in the working folder; see `base.Sandbox`."""
        base.check_command(command)
        space, chosen = self._opened(), limits or self.limits
        line = functools.partial(_arguments, space, command, chosen)
        job = running.Job(line, limits=chosen, workspace=space.workspace, program=filters.program(), place=self._place)
        work = self._keep(job.run())
        self._jobs.add(job)
        try:
            result = await asyncio.shield(work)
        except asyncio.CancelledError:
            job.stop("its caller was cancelled")
            await asyncio.wait([work])
            raise
        finally:
            self._jobs.discard(job)
        if result.note == _CLOSED:
            raise errors.SandboxError("the sandbox was closed while a command was running")
        return result

    async def put(self, files: Mapping[str, str | bytes]) -> None:
        """Writes files into the working folder; see `base.Sandbox`."""
        for path, content in files.items():
            space, data = self._opened(), content.encode() if isinstance(content, str) else content
            work = asyncio.to_thread(folders.write, space.workspace, path, data, owner=space.owner)
            await asyncio.shield(self._keep(work))

    async def get(self, path: str) -> bytes:
        """Reads a file of the working folder; see `base.Sandbox`."""
        work = asyncio.to_thread(folders.read, self._opened().workspace, path, limit=self.limits.disk)
        return await asyncio.shield(self._keep(work))

    async def close(self) -> None:
        """Stops what runs and removes everything; may be called twice."""
        space, self._space = self._space, None
        for job in self._jobs:
            job.stop(_CLOSED)
        if self._work:
            await asyncio.wait(self._work)
        if space is not None:
            await asyncio.to_thread(space.close)  # giving back a full disk takes the kernel a while

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes, whatever happened."""
        await self.close()

    def _opened(self) -> namespace.Namespace:
        if self._space is None:
            raise errors.SandboxError("the sandbox is closed: open a new one")
        os.fchmod(self._space.workspace, 0o755)  # a command may have locked its own folder
        return self._space

    def _keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts work that goes on to its end, even if whoever asked for it does not wait; closing waits for it."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task


def _place() -> tuple[control_groups.Place | None, str]:
    """Where commands get control groups, and the sentence that says who keeps their memory within the limit."""
    try:
        place = control_groups.find()
    except errors.SandboxError as error:
        kept_by = f"{_WATCHED}, for want of a control group: {error}"
        _say(f"The memory of sandboxed commands is kept within its limit by {kept_by}")
        return None, kept_by
    return place, f"the kernel, by a control group for each command (version {place.version})"


@functools.cache
def _say(sentence: str) -> None:
    """Says it once."""
    logging.getLogger(__name__).warning(sentence)


def _arguments(
    space: namespace.Namespace, command: str, limits: base.Limits, status: int, program: int | None
) -> list[str]:
    scratch = str(min(limits.disk, SCRATCH))
    line = [*space.enter(), space.tools.bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    line += ["--cap-drop", "ALL", "--uid", str(namespace.UID), "--gid", str(namespace.UID), "--hostname", "sandbox"]
    line += ["--json-status-fd", str(status), *([] if program is None else ["--seccomp", str(program)])]
    line += ["--disable-userns"] if space.tools.disables else []
    line += ["--clearenv", *(word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value))]
    line += [*namespace.system_mounts(space.tools), "--ro-bind", "/etc", "/etc", "--ro-bind", "/sandbox", "/sandbox"]
    line += ["--proc", "/proc", "--dev", "/dev", "--size", scratch, "--tmpfs", "/dev/shm"]  # noqa: S108
    line += ["--size", scratch, "--tmpfs", "/tmp", *namespace.prefix_mounts()]  # noqa: S108
    line += ["--bind", base.WORKSPACE, base.WORKSPACE, "--remount-ro", "/dev", "--remount-ro", "/"]
    prelude = _PRELUDE.format(
        files=_OPEN_FILES,
        processes=limits.processes + 1,  # the first process of the namespace is not the command's
        memory=math.ceil(limits.memory / 1024),
        space=math.ceil(max(4 * limits.memory, 4 * 2**30) / 1024),
        disk=math.ceil(limits.disk / 1024),
        seconds=math.ceil(limits.seconds) + 1,
    )
    shell = f'{{ {prelude}; }} 2>/dev/null; exec /bin/bash -c "$1"'
    return [*line, "--chdir", base.WORKSPACE, "--", "/bin/bash", "-c", shell, "bash", command]
