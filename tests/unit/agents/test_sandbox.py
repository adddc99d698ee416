"""What an ordinary command gets, and how a sandbox is opened, used and closed."""

import asyncio
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from sonde.agents.sandbox import base, bubblewrap, choosing, filters, interpreter
from sonde.core import errors


def system_python():
    """A Python of the machine's own, at least as new as Sonde needs."""
    found = pathlib.Path("/usr/bin/python3")
    check = [str(found), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return found if found.exists() and subprocess.run(check, check=False).returncode == 0 else None


SYSTEM_PYTHON = system_python()
LIMITS = base.Limits(seconds=20, memory=256 * 2**20, processes=40, disk=16 * 2**20)


@pytest.fixture
async def sandbox():
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS) as opened:
        yield opened


def processes_with(mark):
    """Numbers of the machine's processes whose command line holds a text."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def descriptors():
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


async def until(condition):
    """Waits for something that must come; the suite's own time limit ends the wait if it does not."""
    while not condition():  # noqa: ASYNC110 the condition is a fact of the machine
        await asyncio.sleep(0.01)


async def test_a_command_gives_its_output_and_exit_code(sandbox):
    result = await sandbox.run("echo out; echo err >&2; echo again; exit 3")
    assert result.output == "out\nerr\nagain\n"
    assert (result.exit_code, result.timed_out, result.truncated, result.note) == (3, False, False, "")
    assert result.seconds > 0


async def test_a_command_that_a_signal_ends_has_the_shells_exit_code(sandbox):
    assert (await sandbox.run("kill -TERM $$")).exit_code == 128 + 15


async def test_a_command_that_does_not_exist_says_so(sandbox):
    result = await sandbox.run("no-such-program --flag")
    assert result.exit_code == 127
    assert "no-such-program" in result.output


async def test_unicode_goes_in_and_comes_out(sandbox):
    assert (await sandbox.run("echo 'naïve 猫 🦉' | tee 'Ω file'; cat Ω*")).output == "naïve 猫 🦉\n" * 2


async def test_undecodable_bytes_are_replaced(sandbox):
    assert (await sandbox.run(r"printf 'a\xff\xfeb'")).output == "a\ufffd\ufffdb"


async def test_terminal_sequences_are_spelled_out(sandbox):
    result = await sandbox.run(r"printf 'x\033[2Jy\007\b\000\r\nz\t.\n'")
    assert result.output == "x\\x1b[2Jy\\x07\\x08\\x00\nz\t.\n"


async def test_commands_start_in_the_working_folder_and_files_stay(sandbox):
    await sandbox.run("mkdir -p a/b && cd a/b && echo 1 > file && export X=1 && Y=2")
    result = await sandbox.run("pwd; cat a/b/file; echo ${X-none}${Y-none}")
    assert result.output == f"{base.WORKSPACE}\n1\nnonenone\n"


async def test_scratch_folders_do_not_stay(sandbox):
    assert (await sandbox.run("echo 1 > /tmp/x && echo 1 > /dev/shm/x && echo made")).output == "made\n"
    assert (await sandbox.run("ls -A /tmp /dev/shm")).output == "/dev/shm:\n\n/tmp:\n"


async def test_the_environment_is_small_and_fixed(sandbox, monkeypatch):
    monkeypatch.setenv("SONDE_TEST_TOKEN", "not for agents")
    names = {line.partition("=")[0] for line in (await sandbox.run("env")).output.splitlines()}
    assert names <= {*bubblewrap._ENVIRONMENT, "PWD", "SHLVL", "_"}


async def test_the_command_is_nobody_special(sandbox):
    result = await sandbox.run("id -u; hostname; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status")
    words = result.output.split()
    assert words[:2] == ["1000", "sandbox"]
    status = dict(zip(words[2::2], words[3::2], strict=True))
    assert int(status["CapEff:"], 16) == int(status["CapBnd:"], 16) == 0
    assert (status["NoNewPrivs:"], status["Seccomp:"]) == ("1", "2" if filters.program() else "0")


async def test_the_first_process_inside_is_under_the_filter_too_and_shows_no_environment(sandbox):
    result = await sandbox.run("grep ^Seccomp: /proc/1/status; tr '\\0' '\\n' < /proc/1/environ")
    assert result.output.split() == ["Seccomp:", "2" if filters.program() else "0"]


async def test_a_command_inherits_three_descriptors(sandbox):
    assert (await sandbox.run("for fd in /proc/$$/fd/*; do echo ${fd##*/}; done")).output.split()[:3] == ["0", "1", "2"]
    code = "import os; print(*sorted(os.listdir('/proc/self/fd')))"
    assert (await sandbox.run(f'python -c "{code}"')).output.split() == ["0", "1", "2", "3"]  # 3: the folder itself


async def test_python_inside_is_the_one_that_runs_sonde(sandbox):
    result = await sandbox.run("python -c 'import sys; print(*sys.version_info[:3])'; python3 -c 'import ssl, sqlite3'")
    assert result.output.split() == [str(part) for part in sys.version_info[:3]]
    assert result.exit_code == 0


async def test_pytest_runs_inside(sandbox):
    await sandbox.put({"test_x.py": "def test_a(): pass\ndef test_b(tmp_path): assert tmp_path.exists() is False\n"})
    result = await sandbox.run("python -m pytest -q -p no:cacheprovider")
    assert "1 failed, 1 passed" in result.output
    assert (await sandbox.run("ls -A")).output == "test_x.py\n"


async def test_other_packages_can_be_shown(tmp_path):
    (tmp_path / "shown.py").write_text("value = 5")
    async with choosing.open_sandbox("bubblewrap", python_packages=[tmp_path / "shown.py"]) as sandbox:
        result = await sandbox.run("python -c 'import shown; print(shown.value)'; ls $PYTHONPATH")
    assert result.output == "5\nshown.py\n"


def test_the_packages_of_a_distribution_include_what_it_requires():
    names = {path.name for path in interpreter.packages("pytest", "no-such-distribution")}
    assert {"pytest", "_pytest", "pluggy", "iniconfig"} <= names
    assert not names & {"bin", "..", "__pycache__"}


async def test_files_are_put_at_opening_and_read_back():
    files = {"a.py": "print('é')\n", "deep/er/b.bin": bytes(range(256)), "./c": ""}
    async with choosing.open_sandbox(files=files) as sandbox:
        assert isinstance(sandbox, base.Sandbox)
        assert (await sandbox.run("python a.py; ls c")).output == "é\nc\n"
        assert await sandbox.get("deep//er/b.bin") == bytes(range(256))
        assert (await sandbox.run("echo more >> deep/er/b.bin && rm -r deep && echo gone")).output == "gone\n"


async def test_putting_replaces_and_keeps_permissions(sandbox):
    await sandbox.put({"run.sh": "echo 1"})
    await sandbox.run("chmod 755 run.sh; ln run.sh other")
    await sandbox.put({"run.sh": b"#!/bin/sh\necho 2\n"})
    assert (await sandbox.run("./run.sh; cat other")).output == "2\necho 1"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "/", "a\0b", "..", "a/.."])
async def test_paths_that_leave_the_working_folder_are_refused(sandbox, path):
    with pytest.raises(errors.SandboxError, match="inside the working folder"):
        await sandbox.get(path)
    with pytest.raises(errors.SandboxError, match="inside the working folder"):
        await sandbox.put({path: "x"})


async def test_what_cannot_be_read_or_written_is_an_error_in_words(sandbox):
    await sandbox.run("mkdir folder; echo x > file")
    for path, reason in {"none": "No such file", "folder": "regular file", "file/x": "no folder"}.items():
        with pytest.raises(errors.SandboxError, match=reason):
            await sandbox.get(path)
    for path, reason in {"folder": "folder", "file/x": "no folder", "n" * 300: "too long"}.items():
        with pytest.raises(errors.SandboxError, match=reason):
            await sandbox.put({path: "x"})
    with pytest.raises(errors.SandboxError, match="full"):
        await sandbox.put({"big": bytes(LIMITS.disk + 1)})
    await sandbox.put({"small": "still fits"})


@pytest.mark.parametrize(
    ("command", "reason"),
    [("echo a\0b", "NUL"), ("echo " + "x" * 2**20, "bytes"), ("echo \ud800", "UTF-8")],
)
async def test_what_cannot_be_a_command_is_refused_and_the_sandbox_goes_on(sandbox, command, reason):
    with pytest.raises(errors.SandboxError, match=reason):
        await sandbox.run(command)
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_the_longest_command_runs(sandbox):
    text = "y" * (base.MAX_COMMAND - 20)
    result = await sandbox.run(f"x={text}; echo ${{#x}}")
    assert result.output == f"{len(text)}\n"


async def test_long_output_keeps_its_beginning_and_its_end(sandbox):
    result = await sandbox.run("seq 100000", limits=base.Limits(output=1000))
    assert result.truncated
    assert result.exit_code == 0
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("99999\n100000\n")
    assert "bytes cut" in result.output
    assert len(result.output) < 1100


async def test_a_command_that_takes_too_long_is_stopped(sandbox):
    result = await sandbox.run("echo begun; sleep 1000", limits=base.Limits(seconds=0.5))
    assert result.timed_out
    assert (result.output, result.exit_code, result.note) == ("begun\n", None, "it ran longer than 0.5 s")


async def test_a_background_process_neither_survives_nor_holds_the_call(sandbox):
    mark = f"987.{os.getpid()}"
    result = await sandbox.run(f"sleep {mark} & (setsid sleep {mark} >/dev/null 2>&1 <&1 &) ; echo started")
    assert (result.output, result.exit_code) == ("started\n", 0)
    assert processes_with(mark) == []


async def test_cancelling_the_caller_kills_the_command(sandbox):
    mark = f"986.{os.getpid()}"
    task = asyncio.ensure_future(sandbox.run(f"sleep {mark} & sleep {mark}"))
    await until(lambda: len(processes_with(mark)) >= 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(mark) == []
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_cancelling_at_any_moment_leaves_nothing(sandbox):
    mark = f"985.{os.getpid()}"
    for turns in range(40):
        task = asyncio.ensure_future(sandbox.run(f"sleep {mark}"))
        for _ in range(turns):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert processes_with(mark) == []


async def test_closing_stops_what_runs_and_says_so():
    mark = f"984.{os.getpid()}"
    async with choosing.open_sandbox("bubblewrap") as sandbox:
        task = asyncio.ensure_future(sandbox.run(f"sleep {mark}"))
        await until(lambda: processes_with(mark))
        await sandbox.close()
        with pytest.raises(errors.SandboxError, match="closed while"):
            await task
        assert processes_with(mark) == []
        await sandbox.close()
        for use in (sandbox.run("true"), sandbox.get("x"), sandbox.put({"x": "x"})):
            with pytest.raises(errors.SandboxError, match="closed"):
                await use


async def test_the_event_loop_goes_on_while_a_command_runs(sandbox):
    ticks = 0
    task = asyncio.ensure_future(sandbox.run("yes | head -c 20000000 | md5sum; sleep 0.3"))
    while not task.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert task.result().exit_code == 0
    assert ticks > 10


async def test_opening_and_closing_leaves_no_descriptors():
    async def once():
        async with choosing.open_sandbox("bubblewrap") as sandbox:
            await sandbox.put({"a": "1"})
            await sandbox.get("a")
            await sandbox.run("sleep 5", limits=base.Limits(seconds=0.1))
        await asyncio.sleep(0)  # pipes are closed by the loop's next turn

    await once()
    before = descriptors()
    for _ in range(3):
        await once()
    await until(lambda: descriptors() <= before)


async def test_two_sandboxes_do_not_meet():
    async with choosing.open_sandbox("bubblewrap") as one, choosing.open_sandbox("bubblewrap") as two:
        await one.put({"mine": "1"})
        server = asyncio.ensure_future(
            one.run("python -m http.server 8123 --bind 127.0.0.1", limits=base.Limits(seconds=2))
        )
        other = await two.run("ls -A; sleep 0.5; (echo > /dev/tcp/127.0.0.1/8123) 2>&1; ps -e | wc -l")
        assert "Connection refused" in other.output
        assert int(other.output.split()[-1]) <= 5  # a heading, the first process, the shell, ps and wc
        assert "mine" not in other.output
        assert (await server).timed_out


async def test_commands_of_one_sandbox_may_run_at_once(sandbox):
    waiting = asyncio.ensure_future(sandbox.run("until [ -e go ]; do sleep 0.05; done; echo went"))
    await sandbox.run("touch go")
    assert (await waiting).output == "went\n"


async def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="'memory' must be positive and finite, got 0"):
        base.Limits(memory=0)
    with pytest.raises(ValueError, match="'seconds' must be positive and finite, got inf"):
        base.Limits(seconds=float("inf"))


async def test_a_sandbox_ends_with_the_process_that_made_it():
    mark = f"983.{os.getpid()}"
    code = f"""
import asyncio
from sonde.agents.sandbox import choosing
async def main():
    async with choosing.open_sandbox("bubblewrap") as sandbox:
        await sandbox.run("sleep {mark} & setsid sleep {mark}")
asyncio.run(main())
"""
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    # The process itself holds the mark in its own command line, and so does the shell inside.
    await until(lambda: len(processes_with(mark)) >= 4)
    killed.kill()
    await killed.wait()
    await until(lambda: processes_with(mark) == [])


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
@pytest.mark.skipif(SYSTEM_PYTHON is None, reason="no other Python 3.11 that an ordinary user could start")
def test_an_ordinary_user_can_open_a_sandbox():
    code = """
import asyncio
from sonde.agents.sandbox import base, choosing
async def main():
    async with choosing.open_sandbox("bubblewrap", limits=base.Limits(seconds=9, processes=9, disk=2**20)) as sandbox:
        await sandbox.put({"a/b": "put "})
        print((await sandbox.run("cat a/b; id -u; echo more > a/b; unshare -U true 2> /dev/null || echo refused")).output)
        print(await sandbox.get("a/b"), (await sandbox.run("while :; do sleep 9 & done")).exit_code)
        print((await sandbox.run("head -c 2M /dev/zero > a/b; ls /home /var")).exit_code)
asyncio.run(main())
"""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder).chmod(0o755)
        shutil.copytree(pathlib.Path(choosing.__file__).parents[3], f"{folder}/src", ignore=lambda *_: {"__pycache__"})
        line = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups", str(SYSTEM_PYTHON), "-B", "-c", code]
        ran = subprocess.run(line, env={"PYTHONPATH": f"{folder}/src", "PATH": os.environ["PATH"]},
                             cwd=folder, capture_output=True, text=True, check=False)  # fmt: skip
    assert ran.stdout.split() == ["put", "1000", "refused", "b'more\\n'", "None", "2"]
    assert ran.stderr == "" or ran.stderr.startswith(
        "The memory of sandboxed commands is kept within its limit by Sonde, "
    )
    assert len(ran.stderr.splitlines()) <= 1


async def test_without_bubblewrap_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.SandboxError, match="apt install bubblewrap"):
        await choosing.choose("bubblewrap")().__aenter__()
    with pytest.raises(errors.SandboxError) as caught:
        await choosing.open_sandbox("auto").__aenter__()
    assert "apt install bubblewrap" in str(caught.value)
    assert "Docker" in str(caught.value)
    assert "not run without one" in str(caught.value)


async def test_a_bubblewrap_that_may_not_work_is_an_error_in_its_own_words(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(errors.SandboxError, match="No permissions to create new namespace"):
        await choosing.open_sandbox("bubblewrap").__aenter__()


async def test_an_unknown_kind_is_refused():
    with pytest.raises(errors.SandboxError, match="did you mean 'bubblewrap'"):
        choosing.choose("bublewrap")
