"""Sandboxes made of a Docker container: one for each sandbox, with a `docker exec` for each command.

1. The container's first process is the keeper (see `docker_keeper`), which runs nothing of an agent's.
2. A command is a shell started beside it, as another user and without any privilege. When it ends, or is made to, the
   keeper kills everything else in the container: the kernel signals the whole process namespace at once, nothing outruns
   it, and the kernel's count of the container's tasks must then say that the keeper is alone.
3. No network, no capabilities for commands, no privileges to gain, Docker's own filter of system calls; limits on memory and
   processes by control groups. Nothing of the machine is shown but the Python packages that the caller wants, read-only.
4. When Sonde ends, however it ends, so does the keeper, and with it the container, which removes itself. Should the
   engine have been killed too, the next sandbox to be opened removes it. There are no volumes and no networks to leave.

A `Layout` says whose files are worked on. `SCRATCH`, for ordinary sandboxes: an empty folder in memory, of limited size,
over the image's system, which is read-only; it and what it holds count against `Limits.memory` too. `INSTANCE`, for images
that bring a repository and its environment: the image's own files, all writable, commands run as root with the four
capabilities that ownership of files needs. There the keeper has no power over the commands, so they are killed by a shell
of their own user; if that fails, the whole container is restarted, its files kept, provided that the keeper's own program
is what it was; if not, the sandbox is closed. `Limits.disk` is then checked once a second.

The image must have bash, tar and coreutils and, for agents that write Python, Python. Costs, on two idle cores: 0.4 s to
open, 80 ms for a command that does nothing (a bare `docker exec`: 65), 0.1 s to close. A change of limits from one command
to the next costs 20 ms.
"""

import asyncio
import contextlib
import re
import secrets
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from sonde.agents.sandbox import (
    base,
    docker_command,
    docker_engine,
    docker_files,
    docker_keeper,
    docker_layout,
    interpreter,
)
from sonde.core import errors

IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
TRANSFER = 600.0
"""Seconds that reading or writing files may take."""

_OWN = 16 * 2**20
"""Bytes beyond the limit for what is not the command's: keeper, shells, the kernel's own records of processes."""

_FEWEST = 16
"""Tasks a container must be allowed: Docker itself needs some inside to start a command."""

_CLOSED = "the sandbox was closed"
_PATIENCE = 10.0
"""Seconds in which killed processes must be gone."""

_KEEPERS_OWN = re.compile(
    r"^(?:.*/(?:bash|ld[-.][^/]*|lib(?:c|tinfo|dl|readline)[-.][^/]*)|/(?:bin|lib|lib64))$", re.MULTILINE
)


Layout = docker_layout.Layout
SCRATCH, INSTANCE = docker_layout.SCRATCH, docker_layout.INSTANCE


class DockerSandbox:
    """A sandbox made of a container; made by `open`."""

    def __init__(
        self, engine: docker_engine.Engine, image: docker_engine.Image, *, limits: base.Limits, layout: Layout,
        packages: Sequence[Path], network: str,
    ) -> None:  # fmt: skip
        """Takes the settings; nothing is started yet."""
        self.limits = limits
        self.layout = layout
        self.image = image
        self.name = f"sonde-{secrets.token_hex(6)}"
        self.engine = engine
        self.memory_kept_by = "the kernel, by a control group that Docker makes"
        self._packages = tuple(packages)
        self._network = network
        self._keeper: docker_keeper.Keeper | None = None
        self._closed = False
        self._allowed, self._room = (limits.memory, limits.processes), 0
        self._jobs: set[docker_command.Job] = set()
        self._work: set[asyncio.Task[Any]] = set()
        self._turn, self._ending, self._ends = asyncio.Lock(), asyncio.Lock(), 0

    @classmethod
    async def open(
        cls,
        *,
        limits: base.Limits | None = None,
        image: str = IMAGE,
        layout: Layout = SCRATCH,
        python_packages: Sequence[Path] | None = None,
        network: str = "none",
        host: str | None = None,
    ) -> "DockerSandbox":
        """Makes a sandbox and proves that it works.

        Args:
            limits: For all its commands; `disk` is the size of its working folder.
            image: What the container is made from: a name, or an `Image.id`; fetched if it is not there.
            layout: `SCRATCH` or `INSTANCE`, or one of your own.
            python_packages: See `BubblewrapSandbox.open`; by default pytest's, none for an image's own files. The
                engine must run on this machine, or be given `()`.
            network: Of the engine; the default is none at all.
            host: Address of the engine; by default as `docker` finds it.

        Raises:
            SandboxError: There is no Docker, its engine does not answer, or the image cannot be had or used.
        """
        engine = docker_engine.Engine(host)
        platform = await engine.platform()
        await engine.remove_stale()
        chosen = () if layout.own_files and python_packages is None else python_packages
        packages = await asyncio.to_thread(interpreter.chosen, chosen)
        sandbox = cls(
            engine, await engine.image(image), limits=limits or base.Limits(), layout=layout, packages=packages,
            network=network,
        )  # fmt: skip
        opening = asyncio.ensure_future(sandbox._start(platform))
        try:
            await asyncio.shield(opening)
        except BaseException:
            with contextlib.suppress(errors.SandboxError):
                await opening
            await sandbox.close()
            raise
        return sandbox

    async def fresh(self) -> "DockerSandbox":
        """Opens another sandbox from the very same image, with the same settings; to judge in, for one."""
        return await type(self).open(
            limits=self.limits, image=self.image.id, layout=self.layout, python_packages=self._packages,
            network=self._network, host=self.engine.host,
        )  # fmt: skip

    def run_line(self) -> list[str]:
        """Arguments of `docker` that start the container, its keeper attached."""
        line = ["run", "--rm", "--interactive", "--sig-proxy=false", "--name", self.name, "--log-driver", "none"]
        line += ["--label", f"{docker_engine.LABEL}={docker_engine.owner()}", "--network", self._network]
        line += [] if self._network == "host" else ["--hostname", "sandbox"]
        line += [*self._allowance(), *docker_layout.words(self.layout, self.limits)]
        for package in self._packages:
            line += ["--mount", f"type=bind,src={package},dst=/sandbox/packages/{package.name},readonly"]
        return [*line, self.image.id, *docker_keeper.WORDS]

    async def run(self, command: str, *, limits: base.Limits | None = None) -> base.Result:
        """Runs `bash -c command` in the working folder; commands asked for at once run one after the other.

        See `base.Sandbox`. `limits.disk` bounds single files only: the working folder has the size it was opened with.
        """
        base.check_command(command)
        chosen = limits or self.limits
        size = self._own_size if self.layout.own_files else None
        job = docker_command.Job(self.engine, self._opened(), limits=chosen, size=size)
        self._jobs.add(job)
        work = self._keep(self._run(job, command, chosen))
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
        self._opened()
        if not files:
            return
        given = await asyncio.to_thread(docker_files.packed, files)
        answer = await self._beside(*docker_files.put_words(self.layout.folder), given=given)
        if answer.code != 0:
            raise docker_files.refused(
                "write", next(iter(files)) if len(files) == 1 else f"{len(files)} files", answer.said
            )

    async def get(self, path: str) -> bytes:
        """Reads a file of the working folder; see `base.Sandbox`."""
        self._opened()
        answer = await self._beside(*docker_files.get_words(self.layout.folder, path, self.limits.disk))
        if answer.code != 0:
            raise docker_files.refused("read", path, base.harmless(answer.complaint))
        return answer.output

    async def close(self) -> None:
        """Stops what runs and removes everything; may be called twice."""
        self._closed = True
        for job in self._jobs:
            job.stop(_CLOSED)
        if self._work:
            await asyncio.wait(self._work)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.close()
            with contextlib.suppress(errors.SandboxError):  # an engine that hangs; the keeper ends by itself
                await self.engine.remove(self.name)

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes, whatever happened."""
        await self.close()

    def _opened(self) -> docker_keeper.Keeper:
        if self._closed or self._keeper is None:
            raise errors.SandboxError("the sandbox is closed: open a new one")
        return self._keeper

    def _keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts work that goes on to its end, even if whoever asked for it does not wait; closing waits for it."""
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _start(self, platform: str) -> None:
        """Starts the container and tries a command in it."""
        keeper = docker_keeper.Keeper(await self.engine.start(*self.run_line(), given=asyncio.subprocess.PIPE))
        self._keeper = keeper
        try:
            counts = await keeper.ask("look")
        except docker_keeper.Gone:
            raise errors.SandboxError(self._unstarted(await keeper.last_words(), platform)) from None
        if counts.killed < 0:
            self.memory_kept_by = "nobody: Docker has no control group for memory here"
        trial = await self.run("exit 7", limits=self.limits)
        if trial.exit_code != 7:
            raise errors.SandboxError(
                f"a trial command in image {self.image.name!r} failed: {trial.note or trial.output}"
            )

    def _unstarted(self, said: str, platform: str) -> str:
        if "exec format" in said or (self.image.platform != platform and "platform" in said):
            kind = f"another architecture than Docker's {platform}"
            return f"image {self.image.name!r} ({self.image.platform}) holds programs of {kind}: {said}"
        if "bash" in said and ("not found" in said or "no such file" in said):
            return f"image {self.image.name!r} has no bash, which a sandbox needs: {said}"
        return f"Docker could not start image {self.image.name!r}: {said or 'it does not say why'}"

    def _allowance(self) -> list[str]:
        memory, processes = self._allowed
        limit = str(memory + _OWN + self._room)
        return ["--memory", limit, "--memory-swap", limit, "--pids-limit", str(max(processes, _FEWEST) + 2)]

    async def _run(self, job: docker_command.Job, command: str, limits: base.Limits) -> base.Result:
        async with self._turn:
            self._opened()
            if (wanted := (limits.memory, limits.processes)) != self._allowed:
                self._allowed = wanted
                answer = await self.engine.call("update", *self._allowance(), self.name)
                if answer.code != 0:
                    self._allowed = (0, 0)
                    raise errors.SandboxError(f"Docker could not set the limits of the command: {answer.said}")
            try:
                return await job.run(lambda mark: self._line(command, mark, limits), self._end)
            except docker_keeper.Gone as error:
                await self._give_up(await self._why_gone(error))

    def _line(self, command: str, mark: str, limits: base.Limits) -> list[str]:
        folder, strict = self.layout.folder, not self.layout.own_files
        return self._exec_line(*docker_command.words(command, mark, limits, folder=folder, strict=strict))

    def _exec_line(self, *words: str) -> list[str]:
        return ["exec", "--user", self.layout.user, "--workdir", "/", self.name, *words]

    async def _beside(self, *words: str, given: bytes = b"") -> docker_engine.Answer:
        """Runs a helper inside; again if it was killed along with a command that ended meanwhile."""
        line = self._exec_line(*words)
        while True:
            async with self._ending:
                ends = self._ends
            self._opened()
            answer = await self.engine.call(line[0], "--interactive", *line[1:], given=given, deadline=TRANSFER)
            if answer.code == 0 or ends == self._ends:
                return answer

    async def _end(self) -> docker_keeper.Counts:
        """Kills everything but the keeper, and waits until it is alone."""
        async with self._ending:
            self._ends += 1
            assert self._keeper is not None
            keeper, own, clock = self._keeper, self.layout.own_files, base.Stopwatch()
            while (counts := await keeper.ask("look" if own else "end")).tasks > 1:
                if clock.seconds > _PATIENCE:
                    return await self._restart()
                if own:
                    await self._kill_as_the_command()
                await asyncio.sleep(0.005)
            if not own:
                kept = await keeper.ask("clean /tmp /dev/shm")
                await self._make_room(kept.files)
            return counts

    async def _make_room(self, files: int) -> None:
        """Raises the limit on memory once files fill half of it, or no command could start to remove them."""
        if files > self._allowed[0] // 2 and not self._room:
            self._room = self.limits.disk
            await self.engine.call("update", *self._allowance(), self.name)

    async def _kill_as_the_command(self) -> None:
        """Whether it works, the keeper's count says; the shell may be one that the agent has put there."""
        with contextlib.suppress(errors.SandboxError):
            await self.engine.call(*self._exec_line("bash", "-c", "kill -9 -1"), deadline=_PATIENCE / 4)

    async def _restart(self) -> docker_keeper.Counts:
        """Ends the whole container, which keeps its own files, and starts it again.

        Raises:
            SandboxError: There are no such files, or the keeper's program is not what it was.
        """
        assert self._keeper is not None
        if not self.layout.own_files:
            await self._give_up("what a command started cannot be ended")
        await self._check_program()
        answer = await self.engine.call("restart", "-t", "0", self.name)
        await self._check_program()
        if answer.code != 0:
            await self._give_up(f"Docker could not restart the container: {answer.said}")
        await self._keeper.close()
        attached = await self.engine.start("attach", "--sig-proxy=false", self.name, given=asyncio.subprocess.PIPE)
        self._keeper = docker_keeper.Keeper(attached)
        return await self._keeper.ask("look")

    async def _check_program(self) -> None:
        changed = await self.engine.call("diff", self.name)
        paths = "\n".join(line.partition(" ")[2] for line in changed.output.decode(errors="replace").splitlines())
        if (found := _KEEPERS_OWN.search(paths)) or changed.code != 0:
            what = f"a command has changed its {found[0]}" if found else changed.said
            await self._give_up(f"the container must be restarted, and {what}")

    async def _give_up(self, why: str) -> NoReturn:
        self._closed = True
        with contextlib.suppress(errors.SandboxError):
            await self.engine.remove(self.name)
        raise errors.SandboxError(f"{why}: the sandbox is closed, open a new one")

    async def _why_gone(self, error: Exception) -> str:
        try:
            await self.engine.platform()
        except errors.SandboxError as dead:
            return f"the sandbox was lost while a command ran: {dead}"
        return f"the sandbox was lost while a command ran, killed from outside or for want of memory: {error}"

    async def _own_size(self) -> int:
        with contextlib.suppress(errors.SandboxError):
            words = ("container", "inspect", "--size", "--format", "{{.SizeRw}}", self.name)
            answer = await self.engine.call(*words)
            if answer.code == 0 and answer.output.strip().isdigit():
                return int(answer.output)
        return 0
