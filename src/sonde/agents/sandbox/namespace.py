"""What does a sandboxed command see of the machine? A mount namespace made for it, with a disk of its own.

A first bubblewrap builds the file system that commands will see and then ends: the namespace lives on in two
descriptors of this process. Each command enters it and gets, from a second bubblewrap, namespaces of its own in which
even that view is read-only, but for the working folder. So between commands there is no process, on the machine's disk
there is no folder, and when this process ends, however it ends, nothing is left.

    /usr /bin /lib…       the system, read-only; of /etc what the linker needs, and made-up users
    <base prefix>         the Python that runs Sonde, read-only (see `interpreter`)
    (empty folders)       over everything in these that could hold hidden tests (see `hidden_tests`)
    /sandbox              links to it, and the packages shown to it
    /workspace            a file system in memory of limited size: the working folder

Whoever is root here is not root there: commands then run under a user number that nothing else has.
"""

import asyncio
import dataclasses
import functools
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from sonde.agents.sandbox import base, folders, hidden_tests, interpreter
from sonde.core import errors

UID = 1000
"""Who the command is, as it sees it."""

INSTALL = "install it with `apt install bubblewrap` (or dnf, pacman, apk), or start Docker"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_MADE_UP = {
    "etc/passwd": f"agent:x:{UID}:{UID}::/tmp:/bin/bash\nnobody:x:65534:65534::/nonexistent:/bin/false\n",
    "etc/group": f"agent:x:{UID}:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost sandbox\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_SYS_ADMIN, _SETUID, _SETGID = 21, 7, 6


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """Programs of the machine that build a sandbox, by their paths.

    Attributes:
        bwrap: Bubblewrap.
        nsenter: From util-linux, as is the next.
        setpriv: Changes the user.
        disables: Whether this bubblewrap can forbid further user namespaces (0.8 can); if not, `filters` alone does.
    """

    bwrap: str
    nsenter: str
    setpriv: str
    disables: bool


@dataclasses.dataclass(slots=True)
class Namespace:
    """A file system for commands, held by descriptors.

    Attributes:
        tools: What it was made with.
        mounts: Descriptor of the mount namespace.
        users: Descriptor of the user namespace that owns it; None if it is this process's own.
        workspace: Descriptor of the working folder.
        owner: User number of the files in it, if not this process's own.
    """

    tools: Tools
    mounts: int
    users: int | None
    workspace: int
    owner: int | None

    def enter(self) -> list[str]:
        """The beginning of a command line that continues inside, as the sandbox's user."""
        here = f"/proc/{os.getpid()}/fd"
        line = [self.tools.nsenter, f"--mount={here}/{self.mounts}"]
        if self.users is not None:
            line += [f"--user={here}/{self.users}", "--preserve-credentials"]
        line.append("--")
        if self.owner is not None:
            line += [self.tools.setpriv, f"--reuid={self.owner}", f"--regid={self.owner}", "--clear-groups", "--"]
        return line

    def close(self) -> None:
        """Lets go; with the last command inside gone, the kernel removes the rest."""
        for one in (self.mounts, self.users, self.workspace):
            if one is not None:
                os.close(one)


def find_tools() -> Tools:
    """Looks for the programs.

    Raises:
        SandboxError: One is missing; says how to install it.
    """
    found = {name: shutil.which(name) for name in ("bwrap", "nsenter", "setpriv")}
    if found["bwrap"] is None:
        raise errors.SandboxError(f"bubblewrap (the program `bwrap`) is not on the PATH: {INSTALL}")
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise errors.SandboxError(f"not on the PATH: {', '.join(missing)}; install them with `apt install util-linux`")
    paths = {name: str(path) for name, path in found.items()}
    return Tools(**paths, disables="--disable-userns" in _usage(paths["bwrap"]))


@functools.cache
def _usage(program: str) -> str:
    return subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout


async def make(*, disk: int, packages: Sequence[Path]) -> Namespace:
    """Builds the file system.

    Args:
        disk: Bytes of the working folder.
        packages: Python packages to show, see `interpreter`.

    Raises:
        SandboxError: Bubblewrap is missing or not allowed to work here; says what it said.
    """
    tools = await asyncio.to_thread(find_tools)
    privileged = _has_capabilities(_SYS_ADMIN, _SETUID, _SETGID)
    view = await asyncio.to_thread(_view, tools, packages)
    line = [tools.bwrap, "--die-with-parent", *([] if privileged else ["--unshare-user"])]
    line += [*view, "--perms", "0755", "--size", str(disk), "--tmpfs", base.WORKSPACE]
    # Its number is the same here and there: the process namespace is this one's.
    line += ["--", "/bin/sh", "-c", "echo $$; read -r end"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*line, stdin=pipe, stdout=pipe, stderr=pipe, env={}, umask=0o022)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = await process.stdout.readline()
        if not said.strip().isdigit():
            reason = base.harmless(await process.stderr.read()).strip() or "it said nothing"
            raise errors.SandboxError(
                f"bubblewrap cannot make a sandbox here: {reason}; if user namespaces are switched off, as in many "
                f"containers, switch them on, or start Docker"
            )
        return _hold(int(said), tools, privileged)
    finally:
        process.stdin.close()
        await asyncio.shield(process.communicate())


def _view(tools: Tools, packages: Sequence[Path]) -> list[str]:
    """Arguments that show everything but the working folder; /proc and /dev are for the bubblewraps that follow."""
    line = [*system_mounts(tools), "--dir", "/tmp", "--dir", "/etc"]  # noqa: S108
    line += ["--bind", "/proc", "/proc", "--dev-bind", "/dev", "/dev"]
    for path in _SETTINGS:
        line += ["--ro-bind-try", path, path]
    for folder in ("/sandbox", "/sandbox/bin", "/sandbox/packages"):
        line += ["--perms", "0755", "--dir", folder]
    for name in ("python", "python3"):
        line += ["--symlink", str(interpreter.executable()), f"/sandbox/bin/{name}"]
    for package in packages:
        line += ["--ro-bind", str(package), f"/sandbox/packages/{package.name}"]
    line += prefix_mounts()
    for path in _covered(packages):
        line += ["--perms", "0755", "--tmpfs", str(path)]
    return line


def _covered(packages: Sequence[Path]) -> Iterator[Path]:
    """What no command may look into, as it sees it."""
    system = tuple(path for path in map(Path, _SYSTEM) if path.is_dir() and not path.is_symlink())
    machine = hidden_tests.remembered(system + _prefix_shown(), interpreter.installed())
    yield from (path for path in machine if path.is_dir())  # some may have gone since
    for package in packages:
        for path in hidden_tests.search((package,)):
            yield Path("/sandbox/packages", package.name, path.relative_to(package))


def system_mounts(tools: Tools) -> Iterator[str]:
    """Arguments that show the system's programs and libraries at their own paths."""
    for path in _SYSTEM:
        if Path(path).is_symlink():
            yield from ("--symlink", str(Path(path).readlink()), path)
        elif Path(path).is_dir():
            yield from ("--ro-bind", path, path)
    if not tools.bwrap.startswith(_SYSTEM):
        yield from ("--ro-bind", tools.bwrap, tools.bwrap)


def prefix_mounts() -> Iterator[str]:
    """Arguments that show the interpreter at its own path, unless it is part of the system."""
    for path in _prefix_shown():
        for folder in reversed(path.parents[:-1]):
            yield from ("--perms", "0755", "--dir", str(folder))
        yield from ("--ro-bind", str(path), str(path))


def _prefix_shown() -> tuple[Path, ...]:
    return tuple(path for path in interpreter.shown() if not any(map(path.is_relative_to, _SYSTEM)))


def _hold(pid: int, tools: Tools, privileged: bool) -> Namespace:
    root = f"/proc/{pid}/root"
    # High, so that no account has it, and by chance, so that two sandboxes do not share what the kernel counts by user.
    owner = 1_879_048_192 + secrets.randbelow(2**24) if privileged else None
    held: list[int] = []
    try:
        held.append(os.open(root + base.WORKSPACE, os.O_RDONLY | os.O_DIRECTORY))
        held.append(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY))
        users = None if privileged else os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        if users is not None:
            held.append(users)
        if owner is not None:
            os.fchown(held[0], owner, owner)
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        held.append(top)
        for path, text in _MADE_UP.items():
            folders.write(top, path, text.encode())
    except BaseException:
        for one in held:
            os.close(one)
        raise
    os.close(top)
    return Namespace(tools, held[1], users, held[0], owner)


def _has_capabilities(*numbers: int) -> bool:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return os.geteuid() == 0 and all(effective >> number & 1 for number in numbers)
