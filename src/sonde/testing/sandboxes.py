"""The contract of every sandbox: files in and out, limits, attacks, and nothing left behind.

    await testing.assert_sandbox_conforms(choosing.choose("bubblewrap"))

Any object with the methods of `Sandbox` can be checked; it need not inherit from Sonde. Inside, bash, coreutils and
Python (as `python`) are needed. Half a minute without the attacks, some two minutes more with them. Linux only.
"""

import asyncio
import dataclasses
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from sonde.agents.sandbox import base
from sonde.core import errors
from sonde.testing import attacks, conformance, hostile
from sonde.testing import stage as testing_stage

Broken, Skipped = testing_stage.Broken, testing_stage.Skipped
Factory = Callable[..., AbstractAsyncContextManager[Any]]
LIMITS = base.Limits(seconds=30, memory=192 * 2**20, processes=40, disk=16 * 2**20)
PATIENCE = 30.0
"""Seconds in which what was left behind must be gone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """What a check works with; the fields are the arguments of `check_sandbox`."""

    factory: Factory
    left: Callable[[], Collection[str]] | None
    container: bool
    attacks: bool

    @asynccontextmanager
    async def opened(self, limits: base.Limits = LIMITS) -> AsyncIterator[base.Sandbox]:
        """A fresh sandbox."""
        async with self.factory(limits=limits) as sandbox:
            yield sandbox


async def output(stage: Stage) -> None:
    """A command gives both its outputs in their order, and its exit code, a signal's too."""
    async with stage.opened() as sandbox:
        result = await sandbox.run("echo out; echo err >&2; echo again; exit 3")
        _same((result.output, result.exit_code), ("out\nerr\nagain\n", 3), "of two outputs and `exit 3`")
        _same((result.timed_out, result.truncated, result.note), (False, False, ""), "of a command that just ends")
        _same((await sandbox.run("kill -TERM $$")).exit_code, 128 + 15, "of a command that a signal ends")
        _same((await sandbox.run("no-such-program")).exit_code, 127, "of a program that is not there")


async def harmless_text(stage: Stage) -> None:
    """Output is text that does nothing to a terminal, whatever bytes a command writes."""
    async with stage.opened() as sandbox:
        _same((await sandbox.run("echo 'naïve 猫 🦉'")).output, "naïve 猫 🦉\n", "of UTF-8")
        _same((await sandbox.run(r"printf 'a\xff\xfeb'")).output, "a\ufffd\ufffdb", "of bytes that are no UTF-8")
        result = await sandbox.run(r"printf 'x\033[2Jy\007\000\r\nz\t.\n'")
        _same(result.output, "x\\x1b[2Jy\\x07\\x00\nz\t.\n", "of control characters")


async def files(stage: Stage) -> None:
    """Files go in and out byte for byte; one that is replaced keeps its permissions and other names their content."""
    every, large = bytes(range(256)), os.urandom(3 * 2**20)
    async with stage.opened() as sandbox:
        await sandbox.put({"a.py": "print('é')\n", "deep/er/b.bin": every, "./c": "", "large": large})
        _same((await sandbox.run("python a.py; ls c; wc -c < large")).output, f"é\nc\n{len(large)}\n", "of files put")
        _same([await sandbox.get("deep//er/b.bin"), await sandbox.get("large")] == [every, large], True, "of files got")
        await sandbox.run("printf 'echo 1' > run.sh; chmod 755 run.sh; ln run.sh other")
        await sandbox.put({"run.sh": b"#!/bin/sh\necho 2\n"})
        _same((await sandbox.run("./run.sh; cat other")).output, "2\necho 1", "of a replaced file and its other name")


async def paths(stage: Stage) -> None:
    """Paths that leave the working folder or lead through links are refused; what cannot be read says why."""
    async with stage.opened() as sandbox:
        for path in ("/etc/passwd", "../x", "a/../../x", "", ".", "a\0b", ".."):
            await _refused(sandbox.get(path), f"get({path!r})")
            await _refused(sandbox.put({path: "x"}), f"put({path!r})")
        await sandbox.run("mkdir folder; echo x > file; ln -s /etc link; ln -s file soft; mkfifo pipe")
        for path in ("none", "folder", "file/x", "link/passwd", "soft", "pipe"):
            await _refused(sandbox.get(path), f"get({path!r})")
        for path in ("folder", "file/x", "link/x", "n" * 300):
            await _refused(sandbox.put({path: "x"}), f"put({path!r})")


async def what_stays(stage: Stage) -> None:
    """Files in the working folder stay for the next command; a shell's state, scratch files and secrets do not get in."""
    os.environ["SONDE_CONTRACT_SECRET"] = secret = secrets.token_hex(8)
    try:
        async with stage.opened() as sandbox:
            made = "mkdir -p a && cd a && echo 1 > file && X=1; echo 1 > /tmp/x; echo 1 > /dev/shm/x"
            await sandbox.run(made)
            after = await sandbox.run("cat a/file; echo ${X-none}; ls -A /tmp /dev/shm; env")
    finally:
        del os.environ["SONDE_CONTRACT_SECRET"]
    if not after.output.startswith("1\nnone\n/dev/shm:\n\n/tmp:\n") or secret in after.output:
        raise Broken(f"the next command sees {after.output!r}")


async def commands(stage: Stage) -> None:
    """What cannot be a command is refused and the sandbox goes on; the longest one runs."""
    async with stage.opened() as sandbox:
        for command in ("echo a\0b", "echo " + "x" * 2**20, "echo \ud800"):
            await _refused(sandbox.run(command), f"run({command[:20]!r})")
        text = "y" * (base.MAX_COMMAND - 20)
        _same((await sandbox.run(f"x={text}; echo ${{#x}}")).output, f"{len(text)}\n", "of the longest command")


async def time_limit(stage: Stage) -> None:
    """A command that takes too long is ended, with what it started, and says so; what it wrote is kept."""
    mark = _mark()
    async with stage.opened() as sandbox:
        command = f"echo begun; export M={mark}; setsid sleep 1000 & trap '' TERM; sleep 1000"
        result = await sandbox.run(command, limits=dataclasses.replace(LIMITS, seconds=0.7))
        _same((result.output, result.exit_code, result.timed_out), ("begun\n", None, True), "of a command too long")
        _same(result.note, "it ran longer than 0.7 s", "as its note")
        _same(hostile.processes_with(mark), [], "as processes left of it")
        _same((await sandbox.run("echo on")).output, "on\n", "of the next command")


async def memory_limit(stage: Stage) -> None:
    """A command cannot have more memory than its limit, by one process or by many; the sandbox goes on."""
    grab = (
        "python -c 'import mmap,time\nm = mmap.mmap(-1, {0})\nfor i in range(0, {0}, 4096): m[i] = 1\ntime.sleep({1})'"
    )
    async with stage.opened() as sandbox:
        for command in (grab.format(1 << 30, 0), f"for i in 1 2 3 4 5 6; do {grab.format(60 << 20, 20)} & done; wait"):
            result = await sandbox.run(command)
            if result.exit_code == 0 or result.timed_out:
                raise Broken(f"a command got more than {LIMITS.memory} bytes of memory: {result}")
        small = dataclasses.replace(LIMITS, memory=64 * 2**20)
        result = await sandbox.run(grab.format(100 << 20, 0), limits=small)
        if result.exit_code == 0:
            raise Broken(f"a command got more than the {small.memory} bytes of its own limit: {result}")
        _same(
            (await sandbox.run(f"{grab.format(80 << 20, 0)}; echo on")).output, "on\n", "of the next, within its limit"
        )


async def process_limit(stage: Stage) -> None:
    """A command cannot have more processes than its limit."""
    fork = "import os,time\nn = 0\nwhile n < 500:\n try: pid = os.fork()\n except OSError: break\n if pid == 0: time.sleep(99)\n n += 1\nprint(n)"
    async with stage.opened() as sandbox:
        await sandbox.put({"fork.py": fork})
        result = await sandbox.run("python fork.py")
        if not result.output.strip().isdigit() or not 1 <= int(result.output) <= LIMITS.processes:
            raise Broken(f"of {LIMITS.processes} processes a command could start {result}")


async def disk_limit(stage: Stage) -> None:
    """The working folder cannot hold more than its limit, from within or from without; then it can be cleared."""
    async with stage.opened() as sandbox:
        await _refused(sandbox.put({"big": bytes(LIMITS.disk + 1)}), "put() of more than the disk holds", "full")
        await sandbox.put({"small": "still fits"})
        result = await sandbox.run("for i in 1 2 3; do head -c 9M /dev/zero > f$i || exit 9; done")
        _same(result.exit_code in (9, None), True, f"(refused) of 27 MB on a disk of 16: {result.output!r}")
        _same((await sandbox.run("rm f*; cat small")).output, "still fits", "after clearing")


async def output_limit(stage: Stage) -> None:
    """Long output keeps its beginning and its end; endless output ends the command."""
    async with stage.opened() as sandbox:
        result = await sandbox.run("seq 100000", limits=dataclasses.replace(LIMITS, output=1000))
        _same((result.truncated, result.exit_code, len(result.output) < 1100), (True, 0, True), "of long output")
        _same((result.output[:4], result.output[-7:]), ("1\n2\n", "100000\n"), "as beginning and end")
        flood = await sandbox.run(f"head -c {100 * 10**6} /dev/zero | tr '\\0' x; sleep 1000")
        _same((flood.exit_code, flood.timed_out, flood.truncated), (None, False, True), "of 100 MB of output")
        _same((await sandbox.run("echo on")).output, "on\n", "of the next command")


async def background(stage: Stage) -> None:
    """What a command leaves running ends with it, however it detached itself, and does not hold the call."""
    async with stage.opened() as sandbox:
        for detached in attacks.ATTACKS:
            if detached.kind == "background":
                mark = _mark()
                result = await sandbox.run(f"export M={mark}\n{detached.command}\necho started")
                _same(result.output.endswith("started\n"), True, f"(started) of {detached.command!r}")
                _same(hostile.processes_with(mark), [], f"as processes left of {detached.command!r}")


async def cancelling(stage: Stage) -> None:
    """Cancelling whoever waits for a command ends the command, at any moment; the sandbox goes on."""
    mark = _mark()
    async with stage.opened() as sandbox:
        for pause in (0, 0.005, 0.02, 0.05, 0.1, 0.3):
            task = asyncio.ensure_future(sandbox.run(f"export M={mark}; sleep 1000 & sleep 1000"))
            await asyncio.sleep(pause)
            task.cancel()
            await asyncio.wait([task])
            _same((task.cancelled(), hostile.processes_with(mark)), (True, []), "of a command whose caller left")
        _same((await sandbox.run("echo on")).output, "on\n", "of the next command")


async def closing(stage: Stage) -> None:
    """Closing ends what runs and says so; closed twice or used afterwards, it does no harm and says why."""
    mark = _mark()
    async with stage.opened() as sandbox:
        task = asyncio.ensure_future(sandbox.run(f"export M={mark}; sleep 1000 & touch up; sleep 1000"))
        while not hostile.processes_with(mark):  # noqa: ASYNC110 a fact of the machine
            await asyncio.sleep(0.01)
        await sandbox.close()
        await _refused(task, "the command that ran", "closed")
        _same(hostile.processes_with(mark), [], "as processes left of it")
        await sandbox.close()
        await _refused(sandbox.run("true"), "what is asked of a closed sandbox", "closed")
        await _refused(sandbox.get("x"), "reading from a closed sandbox", "closed")
        await _refused(sandbox.put({"x": "x"}), "writing into a closed sandbox", "closed")


async def apart(stage: Stage) -> None:
    """Two sandboxes see nothing of each other: files, processes, ports."""
    async with stage.opened() as one, stage.opened() as two:
        await one.put({"mine": "1"})
        server = "python -m http.server 8123 --bind 127.0.0.1"
        serving = asyncio.ensure_future(one.run(server, limits=dataclasses.replace(LIMITS, seconds=3)))
        look = "ls -A; sleep 1; (echo > /dev/tcp/127.0.0.1/8123) 2>&1; grep -l '[h]ttp.server' /proc/[0-9]*/cmdline"
        seen = (await two.run(look)).output
        await serving
    if "mine" in seen or "Connection refused" not in seen or "cmdline" in seen:
        raise Broken(f"one sandbox sees of another: {seen!r}")


async def nothing_left(stage: Stage) -> None:
    """Nothing is left on the machine when a sandbox was closed, after an error in its block too."""
    if stage.left is None:
        raise Skipped("what it would leave behind is not known: pass `left`")
    before = set(stage.left())
    async with stage.opened() as sandbox:
        if set(stage.left()) == before:
            raise Broken("`left` does not see an open sandbox")
        await sandbox.run("sleep 1000 &")
    try:
        async with stage.opened() as sandbox:
            await sandbox.run("true")
            raise KeyError
    except KeyError:
        pass
    for _ in range(int(PATIENCE / 0.1)):
        if set(stage.left()) <= before:
            return
        await asyncio.sleep(0.1)
    raise Broken(f"left behind: {sorted(set(stage.left()) - before)}")


async def contains(stage: Stage) -> None:
    """Every hostile command of the list is contained, and the sandbox goes on."""
    if not stage.attacks:
        raise Skipped("not asked for")
    found = []
    with tempfile.TemporaryDirectory() as folder, hostile.Machine(Path(folder)) as machine:
        async with stage.opened(hostile.LIMITS) as sandbox:
            for attack in attacks.ATTACKS:
                try:
                    await hostile.contained(sandbox, attack, machine, container=stage.container)
                except Broken as harm:
                    found.append(f"{attack.command[:80]!r} is not contained: {harm}")
    if found:
        raise Broken("; ".join(found))


_CHECKS: dict[str, Callable[[Stage], Awaitable[None]]] = {
    check.__name__: check
    for check in (
        output, harmless_text, files, paths, what_stays, commands, time_limit, memory_limit, process_limit, disk_limit,
        output_limit, background, cancelling, closing, apart, nothing_left, contains,
    )
}  # fmt: skip
#: What each check is about, by its name.
SANDBOX_CHECKS: dict[str, str] = {name: (check.__doc__ or "").strip() for name, check in _CHECKS.items()}


async def check_sandbox(
    factory: Factory,
    *,
    left: Callable[[], Collection[str]] | None = None,
    container: bool = False,
    attacks: bool = False,
    patience: float = 300.0,
) -> conformance.Report:
    """Puts a kind of sandbox through every check.

    Args:
        factory: Gives an asynchronous context manager that opens a sandbox; called with `limits`.
        left: Names what of its sandboxes is on the machine now, such as containers; without it `nothing_left` is skipped.
        container: Whether it has a whole system for itself, with which a command may do more; see `Attack.in_container`.
        attacks: Whether to try the whole list of hostile commands.
        patience: Seconds that a check may take before it counts as hanging; ten times as many for the attacks.
    """
    stage, verdicts = Stage(factory, left, container, attacks), []
    for name, check in _CHECKS.items():
        allowed = patience * (10 if check is contains else 1)
        verdicts.append(await conformance.judged(name, SANDBOX_CHECKS[name], check(stage), allowed))
    return conformance.Report(tuple(verdicts))


async def assert_sandbox_conforms(factory: Factory, **options: Any) -> None:
    """Puts a kind of sandbox through every check and lists what is broken; options as for `check_sandbox`.

    Raises:
        AssertionError: A promise is broken.
    """
    conformance.assert_kept(await check_sandbox(factory, **options))


def _mark() -> str:
    return f"mark{secrets.token_hex(8)}"


def _same(got: Any, wanted: Any, what: str) -> None:
    if got != wanted:
        raise Broken(f"expected {wanted!r} {what}, got {got!r}")


async def _refused(work: Awaitable[Any], what: str, word: str = "") -> None:
    try:
        await work
    except errors.SandboxError as error:
        if word not in str(error):
            raise Broken(f"{what} is refused without the word {word!r}: {error}") from None
        return
    raise Broken(f"{what} must be refused")
