"""The Docker engine, reached through the program `docker`: calls with a deadline, images, and containers left behind.

Whatever `docker` itself finds is used: `DOCKER_HOST`, a context, or Podman under that name. Each call starts that program
once, some 20 ms.

Every container carries a label that names the process it belongs to: machine, number and start time. When a
sandbox is opened, containers of this machine whose process is gone are removed. Those of other machines are left alone.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from sonde.agents.sandbox import base
from sonde.core import errors

LABEL = "sonde.owner"
DEADLINE = 60.0
"""Seconds in which the engine must answer."""

PULL = 3600.0
"""Seconds for fetching an image."""


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """What containers are made from.

    Attributes:
        name: As it was asked for.
        id: Digest of its configuration, `sha256:…`; names this very image, whatever becomes of its tags.
        digest: `name@sha256:…` as its registry knows it; empty for one built or imported here.
        platform: Such as `linux/amd64`.
    """

    name: str
    id: str
    digest: str
    platform: str


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a call of `docker` gave: its exit code, standard output and standard error."""

    code: int
    output: bytes
    complaint: bytes

    @property
    def said(self) -> str:
        """What it complained of, or said, as harmless text."""
        return base.harmless(self.complaint or self.output).strip()


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """A Docker engine.

    Attributes:
        host: Such as `unix:///run/other.sock`; None: as `docker` finds it.
    """

    host: str | None = None

    def line(self, *words: str) -> list[str]:
        """A whole command line for the engine."""
        return ["docker", *([] if self.host is None else ["--host", self.host]), *words]

    async def start(self, *words: str, given: int = asyncio.subprocess.DEVNULL) -> asyncio.subprocess.Process:
        """Starts `docker` in a session of its own, so that a terminal's Ctrl-C does not reach it."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *self.line(*words), stdin=given, stdout=pipe, stderr=pipe, start_new_session=True
        )

    async def call(self, *words: str, given: bytes = b"", deadline: float = DEADLINE) -> Answer:
        """Runs `docker` to its end.

        Raises:
            SandboxError: It takes longer than the deadline.
        """
        process = await self.start(*words, given=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(deadline):
                output, complaint = await process.communicate(given)
        except TimeoutError:
            raise errors.SandboxError(
                f"the Docker engine did not answer `docker {words[0]}` within {deadline:g} s: look at the engine"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        assert process.returncode is not None
        return Answer(process.returncode, output, complaint)

    async def platform(self) -> str:
        """What the engine runs on, such as `linux/amd64`.

        Raises:
            SandboxError: There is no `docker`, or no engine answers it.
        """
        if shutil.which("docker") is None:
            raise errors.SandboxError(
                "Docker (the program `docker`) is not on the PATH: install it and start its engine"
            )
        answer = await self.call("version", "--format", "{{json .}}")
        if answer.code != 0:
            said = base.harmless(answer.complaint).strip() or "it does not say why"
            raise errors.SandboxError(f"no Docker engine answers: {said}; start Docker")
        try:
            facts = json.loads(answer.output)
            server = facts.get("Server") or facts["Client"]  # Podman without a service has no server
            return server.get("OsArch") or f"{server['Os']}/{server['Arch']}"
        except (ValueError, LookupError, AttributeError) as error:
            raise errors.SandboxError(f"`docker version` gave no facts: {answer.said[:200]}") from error

    async def image(self, name: str) -> Image:
        """An image, fetched if it is not there.

        Raises:
            SandboxError: It cannot be had.
        """
        found = await self.call("image", "inspect", name)
        if found.code != 0:
            pulled = await self.call("pull", "--quiet", name, deadline=PULL)
            if pulled.code != 0:
                raise errors.SandboxError(f"image {name!r} is not there and cannot be fetched: {pulled.said}")
            found = await self.call("image", "inspect", name)
        try:
            facts = json.loads(found.output)[0]
            digests = facts.get("RepoDigests") or [""]
            return Image(name, facts["Id"], digests[0], f"{facts['Os']}/{facts['Architecture']}")
        except (ValueError, LookupError, TypeError) as error:
            raise errors.SandboxError(f"`docker image inspect {name}` gave no facts: {found.said[:200]}") from error

    async def remove(self, *names: str) -> None:
        """Removes containers, running or not; those that are gone already do not matter."""
        if not names or (await self.call("rm", "--force", "--volumes", *names)).code == 0:
            return
        for name in names:  # one that is about to go by itself is refused
            for _ in range(100):
                if (await self.call("container", "inspect", name)).code != 0:
                    break
                await asyncio.sleep(0.1)

    async def remove_stale(self) -> None:
        """Removes containers whose process on this machine is gone."""
        form = '{{.ID}} {{.Label "' + LABEL + '"}}'
        listed = await self.call("ps", "--all", "--no-trunc", "--filter", f"label={LABEL}", "--format", form)
        await self.remove(*stale(listed.output.decode(errors="replace").splitlines()))


def stale(listed: Sequence[str]) -> list[str]:
    """The containers whose process is gone, of lines with a container's number and its label."""
    found = []
    for line in listed:
        container, _, owner = line.partition(" ")
        where, _, process = owner.rpartition("/")
        number, _, began = process.partition(".")
        if where == machine() and number.isdigit() and began != started(int(number)):
            found.append(container)
    return found


def owner() -> str:
    """The label of this process: machine, number and start time."""
    return f"{machine()}/{os.getpid()}.{started(os.getpid())}"


@functools.cache
def machine() -> str:
    """Names the set of processes in which process numbers mean something: a running kernel and a namespace of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux
        return socket.gethostname()


def started(number: int) -> str:
    """When a process began, in the kernel's own clock ticks; empty if there is none or it is a corpse."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self").exists() else _alive(number)
    return "" if fields[0] in "ZX" else fields[19]


def _alive(number: int) -> str:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
