"""How is one command run, watched and brought to an end, so that nothing of it is left? By its first process.

Bubblewrap reports the number of the process that is the first in the command's own process namespace. Killing that one
makes the kernel kill all others, however they detached themselves, and it counts as ended only when they have. So the
end of a command, in time or not, is always: kill it, wait for it, read what is left in the pipe.

Costs: a look at the command every 25 ms, in a thread. The event loop is never blocked.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from typing import Any

from sonde.agents.sandbox import base, control_groups, watching
from sonde.core import errors

INTERVAL = 0.025
Arguments = Callable[[int, int | None], list[str]]
"""The command line, from the descriptors of bubblewrap's status pipe and of the filter."""


class Job:
    """One command; `run` it once, in a task that nobody cancels, and `stop` it from anywhere."""

    def __init__(
        self,
        arguments: Arguments,
        *,
        limits: base.Limits,
        workspace: int,
        program: bytes | None,
        place: control_groups.Place | None,
    ) -> None:
        """Takes what to run.

        Args:
            arguments: Makes the command line.
            limits: What is allowed.
            workspace: Descriptor of the working folder, which is watched.
            program: The system-call filter.
            place: Where it gets a control group, if it can have one.
        """
        self._arguments = arguments
        self._limits = limits
        self._workspace = workspace
        self._program = program
        self._place = place
        self._output = base.Output(limits.output)
        self._stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def stop(self, reason: str) -> None:
        """Has the command killed as soon as it can be; the first reason given is the one reported."""
        if not self._stopped.done():
            self._stopped.set_result(reason)

    async def run(self) -> base.Result:
        """Runs the command to its end.

        Raises:
            SandboxError: Bubblewrap could not start it.
        """
        if self._place is None:
            return await self._run(None)
        group = await asyncio.to_thread(control_groups.Group, self._place, self._limits)
        try:
            return await self._run(group)
        finally:
            await asyncio.to_thread(group.close)

    async def _run(self, group: control_groups.Group | None) -> base.Result:
        clock, limits = base.Stopwatch(), self._limits
        running = await _start(self._arguments, self._program, group)
        exited = asyncio.ensure_future(running.process.wait())
        reading = asyncio.ensure_future(self._read(running.process.stdout))
        looking = asyncio.ensure_future(self._look(running.first, exited, group))
        try:
            await asyncio.wait({exited, self._stopped}, timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            timed_out, seconds = not exited.done() and not self._stopped.done(), clock.seconds
            note = f"it ran longer than {limits.seconds:g} s" if timed_out else ""
            if self._stopped.done() and not exited.done():
                note = self._stopped.result()
        finally:
            running.kill()
        code = await running.end()
        _, peak = await asyncio.gather(reading, looking)
        if group is not None:
            note, peak = note or group.exceeded(), group.peak()
        text = self._output.text()
        if code is None and not note:
            if running.first is None or text.startswith("bwrap: "):
                raise errors.SandboxError(f"bubblewrap could not run the command: {text.strip()}")
            note = "it was killed from outside, perhaps for want of memory"
        return base.Result(text, None if note else code, timed_out, self._output.truncated, seconds, note, peak)

    async def _read(self, stream: Any) -> None:
        while data := await stream.read(65536):
            self._output.add(data)
            if self._output.total > base.FLOOD:
                self.stop(f"it wrote more than {base.FLOOD} bytes of output")

    async def _look(
        self, first: int | None, exited: asyncio.Future[int], group: control_groups.Group | None
    ) -> int | None:
        """Watches until the end; returns the most memory that was seen in use."""
        if first is None:
            return None
        watch = watching.Watch(first, limits=self._limits, workspace=self._workspace, group=group)
        try:
            while not exited.done() and not self._stopped.done():
                if reason := await asyncio.to_thread(watch.look):
                    self.stop(reason)
                await asyncio.wait({exited, self._stopped}, timeout=INTERVAL, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.close()
        return watch.peak_memory


class _Running:
    """What a started command is held by."""

    def __init__(self, process: asyncio.subprocess.Process, status: asyncio.StreamReader, first: int | None) -> None:
        self.process = process
        self.first = first
        self._status = status
        self._handle: int | None = None
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                self._handle = os.pidfd_open(first)

    def kill(self) -> None:
        """Kills everything, at once; harmless if nothing is left."""
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            elif self.process.returncode is None:
                self.process.kill()

    async def end(self) -> int | None:
        """Waits until nothing is left; returns the exit code that bubblewrap reported, if it did."""
        if self._handle is not None:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            loop.add_reader(self._handle, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(self._handle)
                os.close(self._handle)
                self._handle = None
        await self.process.wait()
        reports = [json.loads(line) for line in (await self._status.read()).splitlines()]
        return next((report["exit-code"] for report in reports if "exit-code" in report), None)


async def _start(arguments: Arguments, program: bytes | None, group: control_groups.Group | None) -> _Running:
    report, status = os.pipe()
    given, filter_ = [status], None
    try:
        if program is not None:
            filter_, fill = os.pipe()
            given.append(filter_)
            os.write(fill, program)
            os.close(fill)
        process = await asyncio.create_subprocess_exec(
            *([] if group is None else group.enter()),
            *arguments(status, filter_),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=given,
            env={},  # the first process inside is a bubblewrap, and shows what it was started with
            umask=0o022,
        )
    except BaseException as error:
        os.close(report)
        if isinstance(error, OSError):
            raise errors.SandboxError(f"cannot start a sandboxed command: {error}") from error
        raise
    finally:
        for one in given:
            os.close(one)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(report, "rb", buffering=0)
    )
    line = await reader.readline()
    return _Running(process, reader, json.loads(line)["child-pid"] if line else None)
