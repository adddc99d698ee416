"""A command's memory is kept within its limit by the kernel, wherever a control group can be had."""

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys

import pytest

from sonde.agents.sandbox import base, choosing, control_groups
from sonde.core import errors

MEGABYTE = 2**20
LIMITS = base.Limits(seconds=20, memory=96 * MEGABYTE, processes=40, disk=16 * MEGABYTE)
TOO_MUCH = f"it used more than {LIMITS.memory} bytes of memory"


def place_here():
    try:
        return control_groups.find(), ""
    except errors.SandboxError as error:
        return None, str(error)


PLACE, REASON = place_here()
grouped = pytest.mark.skipif(PLACE is None, reason=f"no control group: {REASON}")

# What each holds is in no process's resident set for longer than a moment.
SHARED_MAPPING = """
import mmap
size, step = 250 << 20, 1 << 20
held = mmap.mmap(-1, size)
for start in range(0, size, step):
    held.seek(start); held.write(b"x" * step)
    held.madvise(mmap.MADV_DONTNEED, start, step)
print("ESCAPED", open("/proc/self/statm").read())
"""
SOCKETS = """
import os, socket, time
def pair():
    if {local}:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]
into, out = os.pipe()
for _ in range(30):
    if os.fork() == 0:
        held, kept = 0, []
        while len(kept) < 200:
            kept += pair()
            kept[-1].setblocking(False)
            try:
                while True: held += kept[-1].send(bytes(1 << 16))
            except OSError: pass
        os.write(out, b"%d\\n" % held)
        time.sleep(9)
lines = os.fdopen(into)
held = sum(int(lines.readline()) for _ in range(30))
print("ESCAPED" if held > 250 << 20 else "the kernel kept it small", held)
"""
HELD = {"shared mapping": SHARED_MAPPING, "local": SOCKETS.format(local=1), "network": SOCKETS.format(local=0)}


@pytest.fixture
async def sandbox():
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS) as opened:
        yield opened


@pytest.fixture
def groups(monkeypatch):
    """Lists the groups that this test has made, and no other: tests run side by side."""
    mine = f"tested-{secrets.token_hex(4)}-"
    monkeypatch.setattr(control_groups, "_PREFIX", mine)
    return lambda: [path for folder in PLACE.folders for path in folder.rglob(f"{mine}*")]


@grouped
@pytest.mark.parametrize("kind", HELD)
async def test_memory_in_nobodys_page_table_is_counted(sandbox, kind):
    await sandbox.put({"hold.py": HELD[kind]})
    result = await sandbox.run("python hold.py")
    assert "ESCAPED" not in result.output
    assert (result.exit_code, result.note) == (None, TOO_MUCH)


@grouped
async def test_who_outlives_the_process_that_the_kernel_killed_is_stopped_too(sandbox):
    await sandbox.put({"hold.py": SHARED_MAPPING})
    for after in ("echo survived", "sleep 1000"):
        result = await sandbox.run(f"(python hold.py) > /dev/null 2>&1; {after}")
        assert (result.exit_code, result.timed_out, result.note) == (None, False, TOO_MUCH)


@grouped
async def test_the_peak_is_what_was_used(sandbox):
    await sandbox.put({"use.py": "import sys; data = bytearray(b'x') * (int(sys.argv[1]) << 20)"})
    little, much = [(await sandbox.run(f"python use.py {size}")).peak_memory for size in (1, 61)]
    assert 58 * MEGABYTE < much - little < 62 * MEGABYTE
    assert little < 24 * MEGABYTE


@grouped
async def test_commands_at_once_have_a_limit_each(sandbox):
    await sandbox.put({"hold.py": SHARED_MAPPING, "use.py": "x = bytearray(b'x') * (60 << 20)\nprint('fine')"})
    use = "python use.py"
    results = await asyncio.gather(*map(sandbox.run, (use, "python hold.py", use, use)))
    assert [result.note for result in results] == ["", TOO_MUCH, "", ""]
    assert [result.output for result in results] == ["fine\n", "", "fine\n", "fine\n"]


@grouped
async def test_threads_and_processes_are_counted_together(sandbox):
    code = """
import subprocess, threading
wait = threading.Event()
try:
    while True: threading.Thread(target=wait.wait, daemon=True).start()
except RuntimeError: print(threading.active_count())
"""
    result = await sandbox.run(f"sleep 99 & sleep 99 & python -c '{code}'", limits=base.Limits(processes=10))
    assert (int(result.output), result.exit_code) == (7, 0)  # a shell, two sleepers and these


@grouped
async def test_files_of_a_command_count_as_its_memory_and_not_as_that_of_the_next():
    limits = base.Limits(seconds=20, memory=32 * MEGABYTE, disk=64 * MEGABYTE)
    async with choosing.open_sandbox("bubblewrap", limits=limits) as sandbox:
        for name in "ab":
            assert (await sandbox.run(f"head -c 25M /dev/zero > {name}")).exit_code == 0
        await sandbox.run("rm a b")
        result = await sandbox.run("head -c 60M /dev/zero > a")
    assert result.note == f"it used more than {limits.memory} bytes of memory"


@grouped
async def test_reading_more_than_the_limit_is_allowed(tmp_path):
    (tmp_path / "large").write_bytes(bytes(200 * MEGABYTE))
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS, python_packages=[tmp_path / "large"]) as sandbox:
        result = await sandbox.run("cat $PYTHONPATH/large | wc -c")
    assert (result.output.strip(), result.note) == (str(200 * MEGABYTE), "")


@grouped
def test_a_limit_around_sonde_holds_and_is_named(groups):
    code = f"""
import asyncio
from sonde.agents.sandbox import choosing
async def main():
    async with choosing.open_sandbox("bubblewrap", files={{"hold.py": {SHARED_MAPPING!r}}}) as sandbox:
        print((await sandbox.run("python hold.py")).note)
asyncio.run(main())
"""
    around = control_groups.Group(PLACE, base.Limits(memory=100 * MEGABYTE))
    try:
        paths = [f"{name}={os.environ.get(name, '')}" for name in ("PATH", "PYTHONPATH")]
        line = [*around.enter(), "env", *paths, sys.executable, "-c", code]
        ran = subprocess.run(line, capture_output=True, text=True, check=False)
    finally:
        around.close()
    assert ran.stderr == ""
    assert ran.stdout == "it was killed because the memory of the machine, or of a group around Sonde, was full\n"
    assert groups() == []


@grouped
async def test_groups_go_with_their_commands(sandbox, groups):
    for command in ("true", "sleep 99 &", "setsid sleep 99 & sleep 99"):
        await sandbox.run(command, limits=base.Limits(seconds=0.3))
        assert groups() == []
    for turns in range(15):
        task = asyncio.ensure_future(sandbox.run("sleep 99"))
        await asyncio.sleep(0.002 * turns)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert groups() == []


@grouped
def test_a_group_left_by_a_killed_process_is_removed_and_no_other(groups):
    code = f"""
import os
from sonde.agents.sandbox import base, control_groups
control_groups._PREFIX = {control_groups._PREFIX!r}
group = control_groups.Group(control_groups.find(), base.Limits())
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    left = groups()
    assert len(left) == len(PLACE.folders)
    used = control_groups.Group(PLACE, base.Limits())
    control_groups.find()
    assert len(groups()) == len(PLACE.folders)
    assert not set(groups()) & set(left)
    used.close()
    assert groups() == []


@grouped
async def test_a_group_that_cannot_be_made_is_an_error_and_nothing_runs(sandbox, tmp_path):
    sandbox._place = control_groups.Place(PLACE.version, tmp_path / "none", tmp_path / "none")
    with pytest.raises(errors.SandboxError, match="cannot make a control group in "):
        await sandbox.run("true")


async def test_without_a_group_processes_are_watched_and_that_is_said(monkeypatch):
    def refuse():
        raise errors.SandboxError("there is none, says the test")

    monkeypatch.setattr(control_groups, "find", refuse)
    hog = "import os\nos.fork(); os.fork()\nx = bytearray(b'x') * (40 << 20)\nimport time; time.sleep(99)"
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS, files={"hog.py": hog}) as sandbox:
        assert sandbox.memory_kept_by.startswith("Sonde, ")
        assert sandbox.memory_kept_by.endswith("there is none, says the test")
        result = await sandbox.run("python hog.py")
    assert (result.exit_code, result.note) == (None, TOO_MUCH)
    assert result.peak_memory > LIMITS.memory


@grouped
async def test_limits_beyond_what_the_kernel_takes_are_the_most_it_takes(sandbox):
    limits = base.Limits(memory=10**30, processes=10**9)
    assert (await sandbox.run("echo on", limits=limits)).output == "on\n"


@grouped
async def test_with_a_group_that_is_said(sandbox):
    assert sandbox.memory_kept_by == f"the kernel, by a control group for each command (version {PLACE.version})"


def tree(folder, passes_on="cpu memory pids", **files):
    """Folders as version 2 of the kernel's interface has them, for what this machine's version cannot show."""
    own = folder / "app.slice" / "terminal.scope"
    own.mkdir(parents=True)
    (own.parent / "cgroup.subtree_control").write_text(passes_on)
    for name, text in {"cgroup.subtree_control": "", "memory.max": "max\n", "memory.high": "max\n", **files}.items():
        (own / name).write_text(text)
    return own


def test_in_version_2_a_group_is_made_beside_that_of_sonde(tmp_path):
    own = tree(tmp_path)
    place = control_groups.beside(own, top=tmp_path)
    assert place.folders == (own.parent,)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"memory.max": "1000\n"}, "memory.max of .*terminal.scope is 1000, which would not hold"),
        ({"memory.high": "1000\n"}, "memory.high of .*terminal.scope is 1000, which would not hold"),
        ({"passes_on": "cpu pids"}, "cannot be limited in or beside"),
    ],
)
def test_in_version_2_no_group_is_made_where_a_limit_would_be_left_or_none_can_be_set(tmp_path, files, reason):
    with pytest.raises(errors.SandboxError, match=reason):
        control_groups.beside(tree(tmp_path, **files), top=tmp_path)


def test_in_version_2_the_first_group_to_be_seen_has_nothing_beside_it(tmp_path):
    own = tree(tmp_path)
    with pytest.raises(errors.SandboxError, match="cannot be limited"):
        control_groups.beside(own, top=own)
