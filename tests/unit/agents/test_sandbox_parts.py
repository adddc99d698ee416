"""The parts that sandboxes are made of: kept output, careful paths, the system-call filter, Docker's command lines."""

import ctypes
import errno
import itertools
import os
import platform
import struct

import hypothesis
import pytest
from hypothesis import strategies

from sonde.agents.sandbox import (
    base,
    bubblewrap,
    choosing,
    docker,
    docker_engine,
    filters,
    folders,
    interpreter,
    namespace,
)
from sonde.core import errors


@hypothesis.given(strategies.lists(strategies.binary(max_size=300)), strategies.integers(1, 200))
def test_output_keeps_head_and_tail_of_any_stream(chunks, limit):
    whole = b"".join(chunks)
    output = base.Output(limit)
    for chunk in chunks:
        output.add(chunk)
    assert output.total == len(whole)
    assert output.truncated == (len(whole) > limit)
    if output.truncated:
        head, tail = whole[: limit - limit // 2], whole[len(whole) - limit // 2 :]
        cut = f"\n[… {len(whole) - limit} bytes cut …]\n"
        assert output.text() == base.harmless(head) + cut + base.harmless(tail)
    else:
        assert output.text() == base.harmless(whole)


def test_output_holds_no_more_than_it_must():
    output = base.Output(1000)
    for _ in range(1000):
        output.add(b"x" * 65536)
    assert len(output._head) + len(output._tail) < 200_000
    assert output.total == 65_536_000


@hypothesis.given(strategies.binary())
def test_harmless_text_has_no_control_characters(data):
    assert not any((ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160 for char in base.harmless(data))


def test_text_that_reverses_itself_is_spelled_out():
    assert base.harmless("a\u202eb\u2066".encode()) == "a\\u202eb\\u2066"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inside").mkdir()
    opened = os.open(tmp_path / "inside", os.O_RDONLY)
    yield opened, tmp_path
    os.close(opened)


def test_links_are_neither_read_nor_written_through(folder):
    opened, path = folder
    (path / "canary").write_text("secret")
    (path / "inside" / "link").symlink_to(path / "canary")
    (path / "inside" / "up").symlink_to("..")
    for name in ("link", "up/canary"):
        with pytest.raises(errors.SandboxError, match="symbolic link"):
            folders.read(opened, name, limit=100)
    with pytest.raises(errors.SandboxError, match="symbolic link"):
        folders.write(opened, "up/canary", b"harm")
    folders.write(opened, "link", b"own")
    assert (path / "canary").read_text() == "secret"
    assert folders.read(opened, "link", limit=100) == b"own"


def test_a_pipe_is_not_waited_for(folder):
    opened, path = folder
    os.mkfifo(path / "inside" / "pipe")
    with pytest.raises(errors.SandboxError, match="regular file"):
        folders.read(opened, "pipe", limit=100)


def test_a_file_longer_than_the_limit_is_refused(folder):
    opened, _ = folder
    folders.write(opened, "file", b"12345")
    assert folders.read(opened, "file", limit=5) == b"12345"
    with pytest.raises(errors.SandboxError, match="5 bytes, at most 4"):
        folders.read(opened, "file", limit=4)


def test_a_failed_write_leaves_what_was_there(folder):
    opened, path = folder
    (path / "inside" / "full").mkdir()
    with pytest.raises(errors.SandboxError, match="folder"):
        folders.write(opened, "full", b"x")
    assert [one.name for one in (path / "inside").iterdir()] == ["full"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_filter_lands_inside_it_and_it_ends_with_allow(machine):
    program = filters.program(machine)
    assert program is not None
    steps = list(struct.iter_unpack("=HBBI", program))
    assert len(steps) < 256
    for position, (code, yes, no, _) in enumerate(steps):
        if code in (0x15, 0x35, 0x45):
            assert position + 1 + max(yes, no) < len(steps)
    assert steps[-1] == (0x06, 0, 0, 0x7FFF0000)


def test_an_unknown_machine_has_no_filter():
    assert filters.program("riscv128") is None


@pytest.mark.skipif(filters.program() is None, reason="there is no filter for this machine")
async def test_every_refused_system_call_fails_inside():
    column = list(filters._AUDIT).index(platform.machine())
    numbers = {name: pair[column] for name, pair in filters._REFUSED.items() if pair[column] is not None}
    code = f"""
import ctypes
c = ctypes.CDLL(None, use_errno=True)
for name, number in {numbers}.items():
    ctypes.set_errno(0)
    print(name, c.syscall(number, -1, -1, -1, -1, -1, -1), ctypes.get_errno())
"""
    async with choosing.open_sandbox("bubblewrap", files={"calls.py": code}) as sandbox:
        result = await sandbox.run("python calls.py")
    assert result.output.splitlines() == [f"{name} -1 {errno.EPERM}" for name in numbers]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls have one numbering here")
async def test_the_second_numbering_of_system_calls_is_refused_too():
    code = "import ctypes; c=ctypes.CDLL(None,use_errno=True); print(c.syscall(0x40000000|39), ctypes.get_errno())"
    async with choosing.open_sandbox("bubblewrap") as sandbox:
        assert (await sandbox.run(f"python -c '{code}'")).output == f"-1 {errno.EPERM}\n"
    assert ctypes.CDLL(None).syscall(39) == os.getpid()


async def test_a_full_folder_can_be_cleared_by_a_later_command():
    limits = base.Limits(seconds=20, disk=4 * 2**20)
    async with choosing.open_sandbox("bubblewrap", limits=limits) as sandbox:
        many = await sandbox.run("python -c 'for i in range(10**6): open(str(i), \"w\")'")
        assert many.note == "it made more than 1024 files"
        looked = await sandbox.run("sleep 0.3; ls | wc -l; find . -type f -delete; sleep 0.3; echo on")
        assert looked.exit_code == 0
        full = await sandbox.run("head -c 5M /dev/zero > a; head -c 5M /dev/zero > b; sleep 0.2; rm a b; echo on")
        assert full.output.endswith("on\n")


async def test_a_command_may_be_given_less_disk_than_its_sandbox():
    async with choosing.open_sandbox("bubblewrap") as sandbox:
        small = base.Limits(disk=2**20)
        result = await sandbox.run("for i in 1 2 3; do head -c 900K /dev/zero > $i; done; sleep 9", limits=small)
        assert result.note == "it used more than 1048576 bytes of disk"
        # The watch may strike before the third file is written: what matters is that more than the small limit fits now.
        after = await sandbox.run("head -c 2M /dev/zero > all; wc -c < all; rm *; echo on")
        assert (after.output, after.note) == ("2097152\non\n", "")


async def test_memory_shared_by_forks_is_counted_once():
    code = """
import os, time
data = bytearray(os.urandom(1)) * (60 << 20)
for _ in range(6):
    if os.fork() == 0:
        time.sleep(1); os._exit(0)
for _ in range(6):
    os.wait()
print("fine")
"""
    limits = base.Limits(memory=150 * 2**20)
    async with choosing.open_sandbox("bubblewrap", limits=limits, files={"fork.py": code}) as sandbox:
        result = await sandbox.run("python fork.py")
    assert (result.output, result.note) == ("fine\n", "")


def test_the_command_line_of_bubblewrap_names_every_wall():
    tools = namespace.Tools("/usr/bin/bwrap", "/usr/bin/nsenter", "/usr/bin/setpriv", disables=True)
    space = namespace.Namespace(tools, mounts=7, users=None, workspace=8, owner=12345)
    line = bubblewrap._arguments(space, "the command", base.Limits(), 9, 10)
    assert line[-1] == "the command"
    assert {"--reuid=12345", "--unshare-all", "--disable-userns", "--die-with-parent", "--new-session"} <= set(line)
    assert {"--clearenv", "--cap-drop", "--remount-ro", "--seccomp"} <= set(line)
    assert "--user=" not in " ".join(line)
    writable = [line[n + 2] for n, word in enumerate(line) if word == "--bind"]
    assert writable == [base.WORKSPACE]


IMAGE = docker_engine.Image("some:image", "sha256:abc", "", "linux/amd64")


def container(limits, layout, packages=()):
    engine = docker_engine.Engine()
    return docker.DockerSandbox(engine, IMAGE, limits=limits, layout=layout, packages=packages, network="none")


def words_after(line, option):
    return [word for before, word in itertools.pairwise(line) if before == option]


def test_the_command_line_of_docker_names_every_wall(tmp_path):
    limits = base.Limits(memory=2**28, processes=30, disk=2**20)
    line = container(limits, docker.SCRATCH, [tmp_path / "pack"]).run_line()
    text = " ".join(line)
    memory = 2**28 + 16 * 2**20
    for wall in ("--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", "--rm",
                 f"--memory {memory}", f"--memory-swap {memory}", "--pids-limit 32", "--ipc private"):  # fmt: skip
        assert wall in text
    assert "--privileged" not in text
    assert words_after(line, "--cap-add") == ["KILL", "DAC_OVERRIDE"]
    assert words_after(line, "--mount") == [f"type=bind,src={tmp_path}/pack,dst=/sandbox/packages/pack,readonly"]
    assert not {"--volume", "-v"} & set(line)
    assert any(word.startswith(base.WORKSPACE) and "size=1048576" in word for word in words_after(line, "--tmpfs"))
    assert line[line.index("sha256:abc") + 1] == "-c"


def test_an_image_with_its_own_files_gets_no_power_over_other_users_processes():
    line = container(base.Limits(), docker.INSTANCE).run_line()
    assert words_after(line, "--cap-add") == ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"]
    assert words_after(line, "--user") == ["65534:65534"]
    assert not {"--read-only", "--mount", "--tmpfs"} & set(line)


def test_containers_of_dead_processes_are_told_from_those_of_living_ones():
    here, own = docker_engine.machine(), docker_engine.owner()
    lines = [
        f"living {own}",
        f"dead {here}/{2**22 + 1}.5",
        f"reused {here}/{os.getpid()}.1",
        "elsewhere other/1.5",
        "odd ",
    ]
    assert docker_engine.stale(lines) == ["dead", "reused"]


async def test_a_docker_that_is_missing_or_silent_is_an_error_in_words(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    with pytest.raises(errors.SandboxError, match=r"no Docker engine answers|not on the PATH"):
        await choosing.open_sandbox("docker").__aenter__()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.SandboxError, match="not on the PATH"):
        await choosing.open_sandbox("docker").__aenter__()


async def test_a_closed_docker_sandbox_runs_nothing():
    sandbox = container(base.Limits(), docker.SCRATCH)
    assert isinstance(sandbox, base.Sandbox)
    for use in (sandbox.run("true"), sandbox.get("x"), sandbox.put({"x": "x"})):
        with pytest.raises(errors.SandboxError, match="closed"):
            await use
    await sandbox.close()


def test_the_interpreter_shown_is_not_the_virtual_environments():
    assert interpreter.executable().exists()
    assert not (interpreter.prefix() / "pyvenv.cfg").exists()
