"""A fresh container of an instance, to judge a patch in: started, used by commands whose raw output is kept, removed.

    async with Container.open(image, limits=limits) as container:
        await container.put("/tmp/patch.diff", data)
        code, said = await container.call("git apply /tmp/patch.diff")
        ran = await container.record("/bin/bash /eval.sh", log_file, seconds=1800)

Unlike in an agent's sandbox, output is not made harmless: it is what SWE-bench's own log parsers read. Commands run as
root in the image's own folder, as the harness runs them, without a network unless one is asked for. When Sonde ends,
however it ends, so does the container, and it is removed. Starting and removing one takes about a second.
"""

import asyncio
import codecs
import contextlib
import dataclasses
import io
import re
import secrets
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

from sonde.agents.sandbox import base, docker_engine
from sonde.core import errors

LARGEST_LOG = 512 * 2**20
"""Bytes of output after which a judging script is stopped."""

PROCESSES = 4096
_SAID = 200_000
_READY = "ready"


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """How a recorded command ended.

    Attributes:
        seconds: How long it took.
        note: Why it was stopped, if it was.
        timed_out: Whether it was stopped because its time was up.
    """

    seconds: float
    note: str = ""
    timed_out: bool = False


class Container:
    """A running container; made by `open`."""

    def __init__(self, engine: docker_engine.Engine, name: str) -> None:
        """Takes over a container that runs."""
        self._engine = engine
        self._name = name

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, image: str, *, limits: base.Limits, network: bool = False, engine: docker_engine.Engine | None = None
    ) -> AsyncIterator["Container"]:
        """Starts a container for the length of a block.

        Args:
            image: What it is made from; fetched if it is not there.
            limits: Of these, memory is kept.
            network: Whether it has the engine's default network.
            engine: Where.

        Raises:
            SandboxError: There is no engine, no such image, or it does not start, such as one for other processors.
        """
        engine = engine or docker_engine.Engine()
        platform = await engine.platform()
        found = await engine.image(image)
        name = f"sonde-judge-{secrets.token_hex(6)}"
        process = await engine.start(*_line(name, found.id, limits, network), given=asyncio.subprocess.PIPE)
        try:
            if not await _ready(process):
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                assert process.stderr
                said = base.harmless((await process.stderr.read())[-2000:]).strip()
                other = f"; it is made for {found.platform}, and the engine is {platform}" * (
                    found.platform != platform
                )
                raise errors.SandboxError(f"image {image} does not start: {said or 'it does not say why'}{other}")
            yield cls(engine, name)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await asyncio.shield(engine.remove(name))

    async def call(self, command: str) -> tuple[int, bytes]:
        """Runs a shell command; its exit code and what it wrote, cut in the middle.

        Raises:
            SandboxError: The engine does not answer.
        """
        answer = await self._engine.call("exec", self._name, "bash", "-c", f"exec 2>&1\n{command}", deadline=600.0)
        if answer.complaint and not answer.output and answer.code != 0:
            raise errors.SandboxError(f"the container that judges cannot run a command: {answer.said[:300]}")
        return answer.code, answer.output

    async def put(self, path: str, data: bytes) -> None:
        """Writes a file, by its absolute path.

        Raises:
            SandboxError: It cannot be written.
        """
        place = PurePosixPath(path)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(str(place.relative_to("/")))
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
        answer = await self._engine.call("cp", "-", f"{self._name}:/", given=packed.getvalue(), deadline=600.0)
        if answer.code != 0:
            raise errors.SandboxError(f"cannot write {path} into the container that judges: {answer.said[:300]}")

    async def changed(self) -> list[tuple[str, str]]:
        """The files and folders that differ from the image; told by the engine, not by the container.

        Each is a letter (`A` added, `C` changed, `D` deleted) and an absolute path; a line that is neither, because a name
        holds a line end, comes with `?`.
        """
        answer = await self._engine.call("diff", self._name, deadline=600.0)
        if answer.code != 0:
            raise errors.SandboxError(f"the engine does not say what changed in the container: {answer.said[:300]}")
        lines = answer.output.decode(errors="replace").split("\n")
        return [(line[0], line[2:]) if re.match("[ACD] /", line) else ("?", line) for line in lines if line]

    async def record(self, command: str, log: Path, *, seconds: float) -> Recorded:
        """Runs a shell command and writes its output to a file, as text in which bytes that are none are replaced.

        Args:
            command: Shell text.
            log: The file.
            seconds: After which it is stopped, and all that it started with it.

        Raises:
            SandboxError: The engine does not run it.
        """
        process = await self._engine.start("exec", self._name, "bash", "-c", f"exec 2>&1\n{command}")
        clock, note, timed_out = base.Stopwatch(), "", False
        try:
            async with asyncio.timeout(seconds):
                if not await _kept(process, log):
                    note = f"it wrote more than {LARGEST_LOG} bytes of output"
        except TimeoutError:
            note, timed_out = f"it ran longer than {seconds:g} s", True
        finally:
            taken = clock.seconds
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
            if note:
                await self._engine.call("kill", self._name)
        return Recorded(taken, note, timed_out)


def _line(name: str, image: str, limits: base.Limits, network: bool) -> list[str]:
    """Arguments of `docker` that start a container which waits until whoever started it is gone.

    Without a network pip would wait some seconds before it believes that there is none.
    """
    waits = f"echo {_READY}; exec cat > /dev/null"
    return [
        "run", "--rm", "--interactive", "--init", "--name", name, "--label", f"{docker_engine.LABEL}={docker_engine.owner()}",
        *([] if network else ["--network", "none", "--env", "PIP_RETRIES=0"]), "--user", "root", "--memory", str(limits.memory), "--memory-swap",
        str(limits.memory), "--pids-limit", str(PROCESSES), "--security-opt", "no-new-privileges", "--cap-drop",
        "NET_RAW", "--cap-drop", "MKNOD", "--entrypoint", "bash", image, "-c", waits,
    ]  # fmt: skip


async def _ready(process: asyncio.subprocess.Process) -> bool:
    """Whether the container says that it runs, as soon as it may be expected to."""
    assert process.stdout
    try:
        async with asyncio.timeout(docker_engine.DEADLINE):
            return (await process.stdout.readline()).strip() == _READY.encode()
    except TimeoutError:
        return False


async def _kept(process: asyncio.subprocess.Process, log: Path) -> bool:
    """Writes a process's output to a file until it ends; False if there is too much of it."""
    assert process.stdout
    decoder, total = codecs.getincrementaldecoder("utf-8")(errors="replace"), 0
    with log.open("w", encoding="utf-8", newline="") as file:
        while data := await process.stdout.read(2**20):
            total += len(data)
            if total > LARGEST_LOG:
                return False
            file.write(decoder.decode(data))
        file.write(decoder.decode(b"", final=True))
    await process.wait()
    return True
