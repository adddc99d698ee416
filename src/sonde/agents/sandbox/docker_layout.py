"""How a Docker sandbox's container is laid out: whose files are worked on, and with which walls around them."""

import dataclasses

from sonde.agents.sandbox import base

_SCRATCH = 64 * 2**20
"""Bytes of /tmp and of /dev/shm, each, at most."""

_NO_SHARED_MEMORY = ("kernel.shmmni=0", "kernel.msgmni=0", "kernel.sem=0 0 0 0", "fs.mqueue.queues_max=0")
_ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONPATH": "/sandbox/packages",
    "PYTHONUNBUFFERED": "1",
    "TZ": "UTC",
    "USER": "agent",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Whose files are worked on, and by whom.

    Attributes:
        folder: The working folder; paths of `put` and `get` are relative to it.
        user: Number and group that commands run as.
        own_files: Whether the image's own files are worked on, all of them writable.
    """

    folder: str = base.WORKSPACE
    user: str = "1000:1000"
    own_files: bool = False


SCRATCH = Layout()
"""An empty folder in memory over a read-only system."""

INSTANCE = Layout(folder="/testbed", user="0:0", own_files=True)
"""The repository that an image brings, and its environment, as root."""


def words(layout: Layout, limits: base.Limits) -> list[str]:
    """Options of `docker run` that put up the walls.

    Args:
        layout: Whose files.
        limits: `disk` is the size of a working folder in memory.
    """
    line = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ipc", "private"]
    line += ["--ulimit", "core=0", "--ulimit", "nofile=4096", "--workdir", "/", "--entrypoint", "bash"]
    if layout.own_files:
        capabilities, user = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"), "65534:65534"
    else:
        capabilities, user = ("KILL", "DAC_OVERRIDE"), "0:0"
        scratch = min(limits.disk, _SCRATCH)
        files = f"rw,exec,nosuid,nodev,nr_inodes={max(1000, limits.disk // 4096)}"
        line += ["--read-only", "--shm-size", str(scratch)]
        line += ["--tmpfs", f"/tmp:{files},mode=1777,size={scratch}"]  # noqa: S108
        owner, _, group = layout.user.partition(":")
        line += [
            "--tmpfs",
            f"{layout.folder}:{files},mode=755,size={limits.disk},uid={owner},gid={group or owner}",
        ]
        line += [word for setting in _NO_SHARED_MEMORY for word in ("--sysctl", setting)]
        line += [word for pair in _ENVIRONMENT.items() for word in ("--env", "=".join(pair))]
    line += ["--user", user, *(word for one in capabilities for word in ("--cap-add", one))]
    return line
