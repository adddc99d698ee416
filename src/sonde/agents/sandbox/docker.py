"""How are commands confined where bubblewrap is not to be had? With Docker: a container per command, none at rest but one.

The working folder is a volume in memory of limited size. A container that only waits keeps it alive between commands;
each command runs in a container of its own beside it, so that whatever it starts ends with it, and `docker kill` ends it
in time. No network, a read-only system, no capabilities, an unprivileged user, limits on memory and processes by
control groups; nothing of the machine is mounted but the Python packages that the caller wants shown, read-only.

The image must have bash, coreutils, tar and, for agents that write Python, Python; by default the official slim image
of the version that runs Sonde, fetched by Docker when it is first used. A command costs about half a second.

Where Sonde is developed no Docker engine runs: tested are the command lines made here and the error when no engine
answers, not the commands themselves. Prefer bubblewrap where both are to be had.
"""

import asyncio
import io
import secrets
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sonde.agents.sandbox import base, interpreter
from sonde.core import errors

IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
_USER = "1000:1000"
_HOME = "/tmp"  # noqa: S108
_SCRATCH = "rw,exec,nosuid,nodev,mode=1777,size=64m"
_READ = (
    'p=$(realpath -e -- "$1") && [ "$p" = "$PWD/$1" ] && [ -f "$p" ] && [ "$(stat -c %s -- "$p")" -le "$2" ]'
    ' && exec cat -- "$p"'
)


class DockerSandbox:
    """A sandbox made of containers; made by `open`."""

    def __init__(self, *, limits: base.Limits, image: str = IMAGE, python_packages: Sequence[Path] = ()) -> None:
        """Takes the settings; nothing is started yet.

        Args:
            limits: For all its commands; `disk` is the size of its working folder.
            image: What containers are made from.
            python_packages: See `BubblewrapSandbox.open`.
        """
        self.limits = limits
        self.image = image
        self.name = f"sonde-{secrets.token_hex(6)}"
        self._packages = tuple(python_packages)
        self._open = False
        self._commands: set[str] = set()

    @classmethod
    async def open(
        cls,
        *,
        limits: base.Limits | None = None,
        image: str = IMAGE,
        python_packages: Sequence[Path] | None = None,
    ) -> "DockerSandbox":
        """Makes a sandbox.

        Args:
            limits: See the class.
            image: See the class.
            python_packages: By default pytest and what it needs.

        Raises:
            SandboxError: There is no Docker, its engine does not answer, or the image cannot be had.
        """
        if shutil.which("docker") is None:
            raise errors.SandboxError(
                "Docker (the program `docker`) is not on the PATH: install it and start its engine"
            )
        code, said = await _docker("version", "--format", "{{.Server.Version}}")
        if code != 0:
            raise errors.SandboxError(f"no Docker engine answers: {base.harmless(said).strip()}; start Docker")
        packages = await asyncio.to_thread(interpreter.chosen, python_packages)
        sandbox = cls(limits=limits or base.Limits(), image=image, python_packages=packages)
        try:
            for line in (sandbox.volume_line(), sandbox.keeper_line()):
                code, said = await _docker(*line)
                if code != 0:
                    raise errors.SandboxError(f"`docker {line[0]}` failed: {base.harmless(said).strip()}")
        except BaseException:
            await sandbox._remove()
            raise
        sandbox._open = True
        return sandbox

    @property
    def memory_kept_by(self) -> str:
        """See `base.Sandbox`."""
        return "the kernel, by a control group that Docker makes"

    def volume_line(self) -> list[str]:
        """Arguments of `docker` that make the working folder."""
        options = (
            f"o=size={self.limits.disk},nr_inodes={max(1000, self.limits.disk // 4096)},uid=1000,gid=1000,mode=0755"
        )
        volume = ["volume", "create", "--driver", "local", "--opt", "type=tmpfs", "--opt", "device=tmpfs"]
        return [*volume, "--opt", options, self.name]

    def keeper_line(self) -> list[str]:
        """Arguments of `docker` that start the container which keeps the working folder."""
        keeper = self.run_line(self.name, base.Limits(memory=64 * 2**20, processes=4))
        return [keeper[0], "--detach", *keeper[1:], "sleep", "infinity"]

    def run_line(self, name: str, limits: base.Limits) -> list[str]:
        """Arguments of `docker` up to the image, under which a container of the sandbox runs.

        Args:
            name: Of the container.
            limits: What it may use.
        """
        line = ["run", "--rm", "--name", name, "--hostname", "sandbox", "--network", "none", "--read-only", "--init"]
        line += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", _USER, "--ipc", "private"]
        line += ["--memory", str(limits.memory), "--memory-swap", str(limits.memory), "--oom-score-adj", "1000"]
        line += ["--pids-limit", str(limits.processes + 2), "--ulimit", "core=0", "--ulimit", "nofile=256"]
        line += ["--ulimit", f"fsize={limits.disk}", "--log-driver", "none", "--tmpfs", f"{_HOME}:{_SCRATCH}"]
        for variable in (f"HOME={_HOME}", "LANG=C.UTF-8", "TZ=UTC", "PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0"):
            line += ["--env", variable]
        line += ["--env", "PYTHONUNBUFFERED=1", "--env", "PYTHONPATH=/sandbox/packages"]
        for package in self._packages:
            line += ["--volume", f"{package}:/sandbox/packages/{package.name}:ro"]
        return [*line, "--volume", f"{self.name}:{base.WORKSPACE}", "--workdir", base.WORKSPACE, self.image]

    async def run(self, command: str, *, limits: base.Limits | None = None) -> base.Result:
        """Runs `bash -c command` in the working folder; see `base.Sandbox`."""
        base.check_command(command)
        self._check()
        chosen = limits or self.limits
        name = f"{self.name}-{secrets.token_hex(4)}"
        output, clock = base.Output(chosen.output), base.Stopwatch()
        line = [*self.run_line(name, chosen), "bash", "-c", command]
        process = await _start(line)
        self._commands.add(name)
        reading = asyncio.ensure_future(_drain(process, output))
        done = False
        try:
            await asyncio.wait({reading}, timeout=chosen.seconds)
            done = reading.done() and output.total <= base.FLOOD
        finally:
            await asyncio.shield(self._end(name, process, killed=not done))
            self._commands.discard(name)
        await reading
        self._check()
        text, flooded = output.text(), output.total > base.FLOOD
        if done and process.returncode == 125 and text.startswith("docker: "):
            raise errors.SandboxError(f"Docker could not run the command: {text.strip()}")
        note = "" if done else f"it ran longer than {chosen.seconds:g} s"
        note = f"it wrote more than {base.FLOOD} bytes of output" if flooded else note
        code = process.returncode if done else None
        return base.Result(text, code, not done and not flooded, output.truncated, clock.seconds, note)

    async def put(self, files: Mapping[str, str | bytes]) -> None:
        """Writes files into the working folder; see `base.Sandbox`."""
        self._check()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, content in files.items():
                data = content.encode() if isinstance(content, str) else content
                entry = tarfile.TarInfo("/".join(base.parts_of(path)))
                entry.size, entry.mode = len(data), 0o644
                archive.addfile(entry, io.BytesIO(data))
        # Unlinking first, tar replaces links instead of writing through them.
        code, said = await self._beside(
            "tar", "--extract", "--unlink-first", "--no-same-owner", given=packed.getvalue()
        )
        if code != 0:
            raise errors.SandboxError(f"cannot write into the sandbox: {base.harmless(said).strip()}")

    async def get(self, path: str) -> bytes:
        """Reads a file of the working folder; see `base.Sandbox`."""
        self._check()
        clean = "/".join(base.parts_of(path))
        code, said = await self._beside("bash", "-c", _READ, "bash", clean, str(self.limits.disk))
        if code != 0:
            raise errors.SandboxError(f"cannot read {path[:200]!r} in the sandbox: no such regular file, or too large")
        return said

    async def close(self) -> None:
        """Stops what runs and removes everything; may be called twice."""
        was, self._open = self._open, False
        if was:
            await self._remove()

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes, whatever happened."""
        await self.close()

    def _check(self) -> None:
        if not self._open:
            raise errors.SandboxError("the sandbox is closed: open a new one")

    async def _beside(self, *words: str, given: bytes = b"") -> tuple[int, bytes]:
        line = self.run_line(f"{self.name}-{secrets.token_hex(4)}", self.limits)
        return await _docker(line[0], "--interactive", *line[1:], *words, given=given)

    async def _end(self, name: str, process: asyncio.subprocess.Process, *, killed: bool) -> None:
        if killed:
            await _docker("kill", name)
        await process.wait()

    async def _remove(self) -> None:
        for name in [*self._commands, self.name]:
            await _docker("rm", "--force", name)
        await _docker("volume", "rm", "--force", self.name)


async def _drain(process: asyncio.subprocess.Process, output: base.Output) -> None:
    """Reads until the end, or until there is so much that the container must be stopped."""
    assert process.stdout
    while data := await process.stdout.read(65536):
        output.add(data)
        if output.total > base.FLOOD:
            process.kill()


async def _start(line: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "docker",
        *line,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def _docker(*line: str, given: bytes = b"") -> tuple[int, bytes]:
    """Runs a Docker command; its exit code and output, or, if it failed, what it complained of."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("docker", *line, stdin=pipe, stdout=pipe, stderr=pipe)
    said, complained = await process.communicate(given)
    assert process.returncode is not None
    return process.returncode, said if process.returncode == 0 else complained
