"""One command in a container: started, watched and brought to an end, so that nothing of it is left.

The shell that becomes the command first writes a line with a random mark and its own process number. From that line on
the clock runs, so a time limit counts the command and not the engine's own start. The command has ended when that
process has; then, or when a limit is met, everything else in the container but its keeper is killed.

Costs: a request to the keeper every 25 ms.
"""

import asyncio
import contextlib
import math
import secrets
from collections.abc import Awaitable, Callable

from sonde.agents.sandbox import base, docker_engine, docker_files, docker_keeper
from sonde.core import errors

INTERVAL = 0.025
SIZING = 1.0
"""Seconds between two looks at the size of a container's own files."""

_PRELUDE = """
exec 2>&1; printf '%s %d\\n' {mark} $$
{{ ulimit -c 0; ulimit -f {disk}; {strict} echo 1000 >/proc/self/oom_score_adj; }} 2>/dev/null
exec bash -c "$1"
"""
_STRICT = "ulimit -n 256; ulimit -d {memory}; ulimit -v {space}; ulimit -t {seconds}; ulimit -q 0;"
_HEAD = 200
"""Bytes in which the mark must come."""


def words(command: str, mark: str, limits: base.Limits, *, folder: str, strict: bool) -> list[str]:
    """The program and arguments that run a command inside.

    Args:
        command: Shell text.
        mark: What its first line begins with.
        limits: Those that a shell can set.
        folder: Where it starts.
        strict: Whether each process is limited in memory, files and time; programs that reserve much do not bear it.
    """
    kilobytes, seconds = math.ceil(limits.memory / 1024), math.ceil(limits.seconds) + 1
    space = math.ceil(max(4 * limits.memory, 4 * 2**30) / 1024)
    each = _STRICT.format(memory=kilobytes, space=space, seconds=seconds) if strict else ""
    prelude = _PRELUDE.format(mark=mark, disk=math.ceil(limits.disk / 1024), strict=each)
    return ["bash", "-c", docker_files.ENTER + prelude, "sonde", folder, command]


class Job:
    """One command; `run` it once, in a task that nobody cancels, and `stop` it from anywhere."""

    def __init__(
        self,
        engine: docker_engine.Engine,
        keeper: docker_keeper.Keeper,
        *,
        limits: base.Limits,
        size: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """Takes where to run.

        Args:
            engine: What runs the container.
            keeper: Of the container.
            limits: What is allowed.
            size: Gives the bytes that the container's own files have, where no kernel limits them.
        """
        self._engine = engine
        self._keeper = keeper
        self._limits = limits
        self._size = size
        self._output = base.Output(limits.output)
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[int] = loop.create_future()
        self._stopped: asyncio.Future[str] = loop.create_future()

    def stop(self, reason: str) -> None:
        """Has the command killed as soon as it can be; the first reason given is the one reported."""
        if not self._stopped.done():
            self._stopped.set_result(reason)

    async def run(
        self, line: Callable[[str], list[str]], end: Callable[[], Awaitable[docker_keeper.Counts]]
    ) -> base.Result:
        """Runs the command to its end.

        Args:
            line: Makes the arguments of `docker` from the mark.
            end: Kills everything in the container but its keeper.

        Raises:
            SandboxError: It could not be started, or the engine or the container went away.
        """
        before, mark = await self._keeper.ask("look"), secrets.token_hex(8)
        process = await self._engine.start(*line(mark))
        assert process.stdout
        assert process.stderr
        reading = asyncio.ensure_future(self._read(process.stdout, mark.encode()))
        complaint = asyncio.ensure_future(process.stderr.read(65536))
        sizing = asyncio.ensure_future(self._watch_size())
        try:
            number = await self._start(reading, complaint)
            clock = base.Stopwatch()
            timed_out = await self._watch(number, reading, clock, before)
            seconds = clock.seconds
        finally:
            sizing.cancel()
            try:
                after = await end()
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                raise
        await reading
        code = await process.wait()
        note = f"it ran longer than {self._limits.seconds:g} s" if timed_out else ""
        if self._stopped.done():
            note = self._stopped.result()
        elif not timed_out and after.killed > before.killed:
            note = self._out_of_memory()
        peak = after.peak if after.peak > before.peak else None
        text = self._output.text()
        return base.Result(text, None if note else code, timed_out, self._output.truncated, seconds, note, peak)

    async def _start(self, reading: asyncio.Future[None], complaint: asyncio.Future[bytes]) -> int:
        """Waits for the command's first line; returns its process number, 0 if it did not give one.

        Somebody who wants it stopped must wait too: what has not started cannot be killed, and would start afterwards.
        """
        waiting = {self._begun, reading}
        await asyncio.wait(waiting, timeout=docker_engine.DEADLINE, return_when=asyncio.FIRST_COMPLETED)
        if self._begun.done():
            return self._begun.result()
        if not reading.done():
            raise docker_keeper.Gone(f"Docker did not start the command within {docker_engine.DEADLINE:g} s")
        said = base.harmless(await complaint).strip() or self._output.text().strip()
        raise errors.SandboxError(f"Docker could not start the command: {said or 'it does not say why'}")

    async def _watch(
        self, number: int, reading: asyncio.Future[None], clock: base.Stopwatch, before: docker_keeper.Counts
    ) -> bool:
        """Waits until the command has ended or must be ended; returns whether its time was up."""
        while not self._stopped.done():
            left = self._limits.seconds - clock.seconds
            if left <= 0:
                return True
            waiting = {self._stopped} if reading.done() else {self._stopped, reading}
            await asyncio.wait(waiting, timeout=min(INTERVAL, left), return_when=asyncio.FIRST_COMPLETED)
            counts = await self._keeper.ask(f"look {number}")
            if counts.killed > before.killed:
                self.stop(self._out_of_memory())
            elif not counts.alive and (number or reading.done()):
                return False
        return False

    async def _read(self, stream: asyncio.StreamReader, mark: bytes) -> None:
        head = b""
        while data := await stream.read(65536):
            if not self._begun.done():
                head += data
                first, newline, data = head.partition(b"\n")
                if not newline and len(head) < _HEAD:
                    continue
                named, _, number = first.partition(b" ")
                ours = named == mark and number.isdigit()
                self._begun.set_result(int(number) if ours else 0)
                data = data if ours else head
            self._output.add(data)
            if self._output.total > base.FLOOD:
                self.stop(f"it wrote more than {base.FLOOD} bytes of output")
        if not self._begun.done():
            self._output.add(head)

    async def _watch_size(self) -> None:
        while self._size is not None:
            await asyncio.sleep(SIZING)
            if await self._size() > self._limits.disk:
                self.stop(f"it used more than {self._limits.disk} bytes of disk")

    def _out_of_memory(self) -> str:
        return f"it used more than {self._limits.memory} bytes of memory"
