"""The Docker sandbox on a real engine: what dies leaves nothing behind, and what cannot work says why."""

import asyncio
import contextlib
import os
import shutil
import stat
import sys
import time

import pytest

from sonde.agents.sandbox import base, docker
from sonde.agents.sandbox import docker_engine as engines
from sonde.core import errors
from sonde.testing import hostile

LIMITS = base.Limits(seconds=30, memory=192 * 2**20, processes=40, disk=16 * 2**20)
PATIENCE = 60


async def until(condition, seconds=PATIENCE):
    """Waits for something that must come in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.1)


def opened(engine, **options):
    """Opens a sandbox; to be awaited, then closed by `async with`."""
    options = {"limits": LIMITS, "image": engine.image, "host": engine.host, "python_packages": (), **options}
    return docker.DockerSandbox.open(**options)


def built(engine, name, *lines):
    """An image made of the base image by the lines of a Dockerfile; without a line `FROM`, that of the base image."""
    first = () if any(line.startswith("FROM") for line in lines) else (f"FROM {engine.image}",)
    text = "\n".join([*first, *lines]).encode()
    engine.docker(
        "build",
        "--quiet",
        "--network",
        "none",
        "--tag",
        name,
        "-",
        input=text,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},
    )
    return name


@pytest.fixture
def instance(docker_engine):
    """An image that brings a repository which belongs to root, as those of SWE-bench do."""
    return instance_of(docker_engine, "sonde-test-instance")


def instance_of(engine, name):
    make = "mkdir /testbed && cd /testbed && git init -q && echo x=1 > m.py && chmod 600 m.py && git add . "
    return built(engine, name, f"RUN {make} && git -c user.name=a -c user.email=a@b commit -qm one")


CHILD = """
import asyncio, sys
from sonde.agents.sandbox import docker
async def main():
    async with await docker.DockerSandbox.open(image=sys.argv[1], host=sys.argv[2] or None, python_packages=()) as sandbox:
        print(sandbox.name, flush=True)
        await sandbox.run(f"export M={sys.argv[3]}; sleep 1000 & setsid sleep 1000")
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def another_sonde(engine, mark):
    """Another process that runs a command in a sandbox; gives it and the container's name."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, engine.image, engine.host or "", mark, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout
    name = (await child.stdout.readline()).decode().strip()
    await until(lambda: len(hostile.processes_with(f"M={mark}")) >= 3)
    yield child, name
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    await child.wait()


async def test_nothing_is_left_when_sonde_is_killed(docker_engine):
    mark = f"mark{os.urandom(6).hex()}"
    async with another_sonde(docker_engine, mark) as (child, name):
        assert name in docker_engine.containers()
        child.kill()
        await child.wait()
        await until(lambda: name not in docker_engine.containers())
        # What remains are `docker` programs that were attached; they end as their container does.
        await until(lambda: not hostile.processes_with(f"M={mark}"))
    assert name not in docker_engine.docker("volume", "ls", "--quiet")


async def test_nothing_is_left_when_sonde_is_stopped_by_the_keyboard(docker_engine):
    mark = f"mark{os.urandom(6).hex()}"
    async with another_sonde(docker_engine, mark) as (child, name):
        child.send_signal(2)
        await child.wait()
        assert name not in docker_engine.containers()
        assert hostile.processes_with(f"M={mark}") == []


async def test_a_container_whose_process_is_gone_is_removed_by_the_next_sandbox(docker_engine):
    gone = f"{engines.LABEL}={engines.machine()}/{2**22 + 1}.7"
    elsewhere = f"{engines.LABEL}=another/{2**22 + 1}.7"
    left = [
        docker_engine.docker(
            "run", "--detach", "--network", "none", "--label", label, docker_engine.image, "sleep", "1000"
        )
        for label in (gone, elsewhere)
    ]
    try:
        async with await opened(docker_engine):
            known = docker_engine.docker("ps", "--all", "--quiet", "--no-trunc").split()
        assert left[0] not in known
        assert left[1] in known
    finally:
        docker_engine.docker("rm", "--force", left[1])


async def test_a_command_is_told_that_its_engine_was_killed_and_nothing_of_it_is_left(own_docker_engine):
    mark = f"mark{os.urandom(6).hex()}"
    sandbox = await opened(own_docker_engine)
    running = asyncio.ensure_future(sandbox.run(f"export M={mark}; sleep 1000 & sleep 1000"))
    await until(lambda: len(hostile.processes_with(f"M={mark}")) >= 2)
    own_docker_engine.kill()
    with pytest.raises(errors.SandboxError, match="no Docker engine answers"):
        await running
    await until(lambda: not hostile.processes_with(f"M={mark}"))
    with pytest.raises(errors.SandboxError):
        await sandbox.run("echo on")
    await sandbox.close()
    with pytest.raises(errors.SandboxError, match="no Docker engine answers"):
        await opened(own_docker_engine)
    own_docker_engine.restart()
    async with await opened(own_docker_engine) as other:
        assert (await other.run("echo on")).output == "on\n"
        assert own_docker_engine.containers() == [other.name]
    assert own_docker_engine.containers() == []


async def test_a_full_disk_is_an_error_in_words_and_can_be_cleared(small_docker_engine):
    made = "RUN mkdir /testbed"
    image = built(small_docker_engine, "sonde-test-instance", made)
    limits = base.Limits(seconds=60, disk=2**40)
    async with await opened(small_docker_engine, image=image, layout=docker.INSTANCE, limits=limits) as sandbox:
        full = await sandbox.run("cat /dev/zero > big; echo $?")
        assert full.output.endswith("No space left on device\n1\n")
        with pytest.raises(errors.SandboxError, match="full"):
            await sandbox.put({"more": bytes(2**20)})
        with pytest.raises(errors.SandboxError, match="no space left on device"):
            await opened(small_docker_engine)
        assert small_docker_engine.containers() == [sandbox.name]
        assert (await sandbox.run("rm big; echo on")).output == "on\n"
        async with await opened(small_docker_engine) as other:
            assert (await other.run("echo on")).output == "on\n"


async def test_the_clock_counts_the_command_and_not_the_engines_start(docker_engine, monkeypatch, tmp_path):
    slow = tmp_path / "docker"
    slow.write_text(f'#!/bin/sh\ncase " $* " in *" exec "*) sleep 2;; esac\nexec {shutil.which("docker")} "$@"\n')
    slow.chmod(0o755)
    async with await opened(docker_engine) as sandbox:
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        result = await sandbox.run("echo on", limits=base.Limits(seconds=1))
        assert (result.output, result.timed_out) == ("on\n", False)
        assert result.seconds < 2
        assert (await sandbox.run("sleep 30", limits=base.Limits(seconds=1))).timed_out


async def test_the_image_is_recorded_and_a_fresh_sandbox_is_made_of_the_same(docker_engine):
    instance = instance_of(docker_engine, "sonde-test-retagged")
    async with await opened(docker_engine, image=instance, layout=docker.INSTANCE) as sandbox:
        assert sandbox.image.id == docker_engine.docker("image", "inspect", "--format", "{{.Id}}", instance)
        await sandbox.run("echo y=2 >> m.py")
        patch = (await sandbox.run("git diff")).output
        docker_engine.docker("tag", docker_engine.image, instance)  # the name now means another image
        async with await sandbox.fresh() as judge:
            assert judge.image.id == sandbox.image.id
            assert (await judge.run("git status --short; cat m.py")).output == "x=1\n"
            await judge.put({"work.patch": patch})
            assert (await judge.run("git apply work.patch && cat m.py")).output == "x=1\ny=2\n"


async def test_an_images_own_files_are_worked_on_as_root_without_power_over_the_keeper(docker_engine, instance):
    async with await opened(docker_engine, image=instance, layout=docker.INSTANCE) as sandbox:
        assert await sandbox.get("m.py") == b"x=1\n"
        await sandbox.put({"m.py": b"x=\xff\n", "new/n": "1"})
        found = await sandbox.run("stat -c '%a %U' m.py; git status --short; pip --version; touch /usr/lib/x && id -u")
        assert found.output.splitlines()[:3] == ["600 root", " M m.py", "?? new/"]
        assert found.output.endswith("0\n")
        power = (
            "kill -9 1; kill -STOP 1; head -c 1 /proc/1/mem; echo x > /proc/1/mem; mount -t tmpfs x /mnt; sleep 1000 &"
        )
        await sandbox.run(power)
        mark = f"mark{os.urandom(6).hex()}"
        bomb = await sandbox.run(
            f"export M={mark}; f() {{ f & f & wait; }}; f", limits=base.Limits(seconds=1, processes=40)
        )
        assert bomb.timed_out
        assert hostile.processes_with(f"M={mark}") == []
        assert (await sandbox.run("cat new/n; ls /usr/lib/x")).output == "1/usr/lib/x\n"


async def test_too_much_written_to_an_images_own_files_ends_the_command(docker_engine, instance):
    async with await opened(docker_engine, image=instance, layout=docker.INSTANCE) as sandbox:
        result = await sandbox.run("for i in 1 2 3; do head -c 9M /dev/zero > /f$i; done; sleep 20")
        assert (result.exit_code, result.note) == (None, f"it used more than {LIMITS.disk} bytes of disk")
        assert (await sandbox.run("rm /f*; sleep 2; echo on")).output == "on\n"


async def test_a_root_agent_that_replaces_the_shell_and_will_not_end_loses_its_container(docker_engine, instance):
    async with await opened(docker_engine, image=instance, layout=docker.INSTANCE) as sandbox:
        mark = f"mark{os.urandom(6).hex()}"
        fight = "cp /bin/bash /bin/other && mv /bin/true /bin/bash; echo $BASH; sleep 1000 & sleep 1000"
        with pytest.raises(errors.SandboxError, match="a command has changed its /usr/bin/bash"):
            await sandbox.run(f"export M={mark}; {fight}", limits=base.Limits(seconds=1))
        assert hostile.processes_with(f"M={mark}") == []
        with pytest.raises(errors.SandboxError, match="closed"):
            await sandbox.run("echo on")
        assert sandbox.name not in docker_engine.containers()


async def test_a_container_that_must_be_restarted_keeps_its_files(docker_engine, instance):
    async with await opened(docker_engine, image=instance, layout=docker.INSTANCE) as sandbox:
        await sandbox.run("echo kept > kept; sleep 1000 &")
        assert (await sandbox._restart()).tasks == 1
        assert (await sandbox.run("cat kept; echo on")).output == "kept\non\n"


@pytest.mark.parametrize("layout", [docker.SCRATCH, docker.INSTANCE], ids=["scratch", "instance"])
async def test_what_cannot_be_used_as_an_image_says_why(docker_engine, layout):
    cases = {
        built(docker_engine, "sonde-test-bare", "RUN rm /usr/bin/bash"): "has no bash",
        "no-such-image-anywhere": "is not there and cannot be fetched",
    }
    if layout.own_files:
        cases[docker_engine.image] = "there is no folder /testbed in the image"
    for image, reason in cases.items():
        with pytest.raises(errors.SandboxError, match=reason):
            await opened(docker_engine, image=image, layout=layout)
    form = f"label={engines.LABEL}={engines.owner()}"
    assert docker_engine.docker("ps", "--all", "--quiet", "--filter", form) == ""


async def test_an_image_of_another_architecture_says_so(docker_engine, tmp_path):
    """A program of another machine: the base image, its bash replaced by one that no processor here can run."""
    foreign = tmp_path / "foreign.tar"
    made = docker_engine.docker("create", docker_engine.image, "true")
    docker_engine.docker("export", "--output", foreign, made)
    docker_engine.docker("rm", made)
    machine = "arm64" if os.uname().machine == "x86_64" else "amd64"
    shutil.unpack_archive(foreign, tmp_path / "root", filter="fully_trusted")
    bash = tmp_path / "root/usr/bin/bash"
    other = bytearray(bash.read_bytes())
    other[18:20] = (183 if machine == "arm64" else 62).to_bytes(2, "little")  # the field for the processor
    bash.write_bytes(other)
    assert bash.stat().st_mode & stat.S_IXUSR
    packed = shutil.make_archive(str(tmp_path / "packed"), "tar", tmp_path / "root")
    docker_engine.docker("import", packed, "sonde-test-foreign")
    with pytest.raises(errors.SandboxError, match="holds programs of another architecture than Docker's linux/"):
        await opened(docker_engine, image="sonde-test-foreign")


async def test_a_container_killed_from_outside_is_an_error_and_a_new_sandbox_works(docker_engine):
    async with await opened(docker_engine) as sandbox:
        running = asyncio.ensure_future(sandbox.run("sleep 1000"))
        await asyncio.sleep(0.5)
        docker_engine.docker("kill", sandbox.name)
        with pytest.raises(errors.SandboxError, match="the sandbox was lost"):
            await running
        with pytest.raises(errors.SandboxError):
            await sandbox.put({"x": "x"})
    async with await opened(docker_engine) as sandbox:
        assert (await sandbox.run("echo on")).output == "on\n"


async def test_files_in_memory_count_against_memory_and_the_sandbox_survives_filling_it(docker_engine):
    limits = base.Limits(seconds=30, memory=64 * 2**20, disk=256 * 2**20)
    async with await opened(docker_engine, limits=limits) as sandbox:
        result = await sandbox.run("head -c 200M /dev/zero > big; echo $?; sleep 5")
        assert result.exit_code is None
        assert result.note == f"it used more than {64 * 2**20} bytes of memory"
        assert (await sandbox.run("rm big; echo on")).output == "on\n"
