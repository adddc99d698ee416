"""A machine that notices harm: listeners, canaries, secrets, processes, files and mounts, compared before and after.

    with hostile.Machine(folder) as machine:
        await hostile.contained(sandbox, attack, machine)

Linux only. The machine is the one that Sonde runs on; a sandbox elsewhere passes more easily than it should.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from sonde.agents.sandbox import base
from sonde.testing import attacks
from sonde.testing import stage as testing_stage

_MEMORY, _DISK, _OUTPUT = 128 * 2**20, 8 * 2**20, 4000
LIMITS = base.Limits(seconds=5, memory=_MEMORY, processes=32, output=_OUTPUT, disk=_DISK)
"""What sandboxes for attacks are opened with."""

_BY_HOLDS = {
    "timed out": dataclasses.replace(LIMITS, seconds=0.7),
    "kept small": dataclasses.replace(LIMITS, seconds=0.7),
    "stopped": dataclasses.replace(LIMITS, seconds=60),  # for a busy machine
    "limited": dataclasses.replace(LIMITS, seconds=60),
}
_PLACES = ("/", "/tmp", "/etc", "/usr", "/usr/bin", "/dev", "/lib")  # noqa: S108
_WATCHED = ("/etc/passwd", "/etc/hosts", "/usr/bin/env", "/bin/bash")
_PACKAGE = Path(attacks.__file__).parents[3]


class Machine:
    """What an attack could reach, and whether it did."""

    def __init__(self, folder: Path) -> None:
        """Arms the machine.

        Args:
            folder: An empty one in the machine's own temporary folder, as another program would have it.
        """
        self.folder = folder
        self.secret = secrets.token_hex(8)
        self.canary = folder / f"canary-{secrets.token_hex(4)}"
        self.canary.write_text(self.secret)
        self.canary.chmod(0o666)
        abstract = f"sonde-{secrets.token_hex(4)}"
        self.listeners = _listeners(folder / "socket", abstract)
        self.words = {
            "PORT": self.listeners[0].getsockname()[1],
            "UDP": self.listeners[1].getsockname()[1],
            "SOCKET": folder / "socket",
            "ABSTRACT": abstract,
            "HOST": own_address(),
            "HOSTNAME": socket.gethostname(),
            "PID": os.getpid(),
            "SECRET": self.secret,
            "CANARY": self.canary,
            "CANARYNAME": self.canary.name,
            "FOLDER": folder,
            "PROJECT": _PACKAGE,
        }
        os.environ["SONDE_HOSTILE_SECRET"] = self.secret
        self.before = self.state()

    def state(self) -> dict[str, Any]:
        """Everything that must be the same afterwards."""
        watched = [*map(Path, _WATCHED), Path(attacks.__file__), Path(sys.executable), Path(os.__file__), self.canary]
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        return {
            "contents": {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in watched},
            "modes": [Path(path).stat().st_mode for path in ("/", "/etc", "/usr", "/usr/bin/env", self.canary)],
            "folder": sorted(map(str, self.folder.iterdir())),
            "hostname": socket.gethostname(),
            "mounts": [line for line in mounts if base.WORKSPACE in line or "newroot" in line],
            "core_pattern": Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8"),
        }

    def armed(self, text: str, mark: str) -> str:
        """A text with the machine's facts in it."""
        for word, value in {**self.words, "MARK": mark}.items():
            text = text.replace(f"@{word}@", str(value))
        return text

    def check(self, mark: str) -> None:
        """Looks for harm.

        Raises:
            Broken: There is some.
        """
        now = self.state()
        if changed := [name for name in now if now[name] != self.before[name]]:
            raise testing_stage.Broken(f"a command has changed the machine: {', '.join(changed)}")
        reached = [_reached(listener) for listener in self.listeners]
        if any(reached):
            raise testing_stage.Broken("a command has reached a listener of the machine")
        if left := processes_with(mark):
            raise testing_stage.Broken(f"processes of a command are left: {left}")
        places = [*map(Path, _PLACES), _PACKAGE, _PACKAGE.parent, self.folder]
        if found := [str(path) for place in places for path in place.glob(f"*{mark}*")]:
            raise testing_stage.Broken(f"files of a command are left: {found}")

    def close(self) -> None:
        """Disarms."""
        os.environ.pop("SONDE_HOSTILE_SECRET", None)
        for listener in self.listeners:
            listener.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disarms."""
        self.close()


async def contained(
    sandbox: base.Sandbox, attack: attacks.Attack, machine: Machine, *, container: bool = False
) -> None:
    """Tries an attack, and looks what is left of it.

    Args:
        sandbox: Opened with `LIMITS`; one may serve for all attacks, so that what one breaks the next finds broken.
        attack: What to try.
        machine: What it may reach.
        container: Whether the sandbox has a whole system for itself; see `Attack.in_container`.

    Raises:
        Broken: It is not contained.
    """
    mark = f"harm{secrets.token_hex(6)}"
    holds = (container and attack.in_container) or attack.holds
    limits = _BY_HOLDS.get(holds, LIMITS)
    command = f"export HARM={mark}\n{machine.armed(attack.command, mark)}"
    running = asyncio.ensure_future(sandbox.run(command, limits=limits))
    if attack.kind in ("fork bomb", "memory"):
        processes, memory = await _most_used(mark, running)
        if processes > limits.processes + 3 or memory >= 2**30:
            raise testing_stage.Broken(f"it had {processes} processes and {memory} bytes of memory at once")
    result = await running
    machine.check(mark)
    if machine.secret in result.output:
        raise testing_stage.Broken("it could read a secret of the machine")
    if wrong := _wrong(result, holds):
        raise testing_stage.Broken(f"{wrong}: {result}")
    patient = _BY_HOLDS["stopped"]
    after = await sandbox.run("find . -mindepth 1 -delete; ls -A; echo on", limits=patient)
    if after.output != "on\n":
        raise testing_stage.Broken(f"the sandbox does not go on afterwards: {after}")


def _wrong(result: base.Result, holds: str) -> str:
    """What is wrong with a result, in words."""
    refused = result.output.endswith("REFUSED\n")
    ended = (result.exit_code, result.timed_out)
    kept = {
        "refused": refused,
        "limited": refused or result.note.endswith("bytes of memory"),
        "stopped": ended == (None, False) and result.note.startswith("it "),
        "timed out": ended == (None, True),
        "cut": result.truncated,
        "bounded": result.exit_code != 0,
    }
    if not kept.get(holds, True) or (holds in ("refused", "limited") and "ESCAPED" in result.output):
        return f"not {holds}"
    if len(result.output.encode()) >= 6 * LIMITS.output + 200:  # a control byte is spelled with up to six
        return "too much output was kept"
    if not all(char in "\n\t" or " " <= char < "\x7f" or char >= "\xa0" for char in result.output):
        return "control characters came through"
    return ""


def own_address() -> str:
    """This machine's own address on its network; the loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((".".join(map(str, (192, 0, 2, 1))), 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


def processes_with(mark: str) -> list[int]:
    """The machine's processes that carry a mark in their command line or environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "cmdline").read_bytes() + b"\0" + (folder / "environ").read_bytes()
            if mark.encode() in text:
                found.append(int(folder.name))
    return found


async def _most_used(mark: str, task: asyncio.Future[Any]) -> tuple[int, int]:
    """The most processes, and the most bytes resident in them, that carried the mark while a task ran."""
    processes = memory = 0
    while not task.done():
        found = await asyncio.to_thread(processes_with, mark)
        processes, memory = max(processes, len(found)), max(memory, sum(map(_resident, found)))
        await asyncio.wait([task], timeout=0.05)
    return processes, memory


def _resident(number: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{number}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _listeners(path: Path, abstract: str) -> Sequence[socket.socket]:
    everywhere = "0.0.0.0"  # noqa: S104  # where harm is to be noticed
    found = [socket.create_server((everywhere, 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]
    found += [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    found[1].bind((everywhere, 0))
    found[2].bind(str(path))
    found[3].bind(f"\0{abstract}")
    for listener in found[2:]:
        listener.listen()
    for listener in found:
        listener.setblocking(False)
    return found


def _reached(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(1)
        else:
            listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True
