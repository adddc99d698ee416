"""Which sandbox can this machine offer? Bubblewrap if it works here, else Docker if an engine answers, else none.

Never none silently: without a sandbox there is an error that says what to install, and no command is run.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from sonde.agents.sandbox import base, bubblewrap, docker, namespace
from sonde.core import errors

KINDS = ("auto", "bubblewrap", "docker")
Factory = Callable[..., AbstractAsyncContextManager[base.Sandbox]]


def choose(kind: str = "auto") -> Factory:
    """What opens sandboxes of a kind: `open_sandbox` with its first argument settled.

    Args:
        kind: One of `KINDS`.

    Raises:
        SandboxError: There is no such kind.
    """
    if kind not in KINDS:
        raise errors.SandboxError(f"no sandbox {kind!r}, there are {', '.join(KINDS)}{errors.suggest(kind, KINDS)}")
    return functools.partial(open_sandbox, kind)


@contextlib.asynccontextmanager
async def open_sandbox(
    kind: str = "auto",
    *,
    limits: base.Limits | None = None,
    files: Mapping[str, str | bytes] | None = None,
    python_packages: Sequence[Path] | None = None,
    image: str = docker.IMAGE,
) -> AsyncIterator[base.Sandbox]:
    """Opens a sandbox, and closes it when the block ends.

    Args:
        kind: `"bubblewrap"`, `"docker"`, or `"auto"`: the first of them that works here.
        limits: For all its commands, unless one is given its own.
        files: What to put into the working folder, by relative path.
        python_packages: What Python inside can import, see `BubblewrapSandbox.open`; by default pytest.
        image: What Docker makes its container from; bubblewrap shows the programs of this machine.

    Raises:
        SandboxError: There is no such kind, or none works here; says why and what to install.
    """
    choose(kind)
    sandbox = await _open(kind, limits, python_packages, image)
    async with sandbox:
        await sandbox.put(files or {})
        yield sandbox


async def _open(kind: str, limits: base.Limits | None, packages: Sequence[Path] | None, image: str) -> base.Sandbox:
    reasons = []
    if kind in ("auto", "bubblewrap"):
        try:
            return await bubblewrap.BubblewrapSandbox.open(limits=limits, python_packages=packages)
        except errors.SandboxError as error:
            if kind == "bubblewrap":
                raise
            reasons.append(str(error))
    try:
        return await docker.DockerSandbox.open(limits=limits, image=image, python_packages=packages)
    except errors.SandboxError as error:
        if kind == "docker":
            raise
        reasons.append(str(error))
    raise errors.SandboxError(
        f"no sandbox works on this machine, and commands are not run without one. {'. '.join(reasons)}. "
        f"Bubblewrap: {namespace.INSTALL}"
    )
