"""No command can read the tests that will judge it, wherever Sonde is installed."""

import asyncio
import os
import pathlib
import py_compile
import shutil
import subprocess
import sys

import pytest

from sonde.agents.code import tasks
from sonde.agents.sandbox import choosing, hidden_tests, interpreter

PACKAGE = pathlib.Path(choosing.__file__).parents[2]
MARK = "answers-of-the-hidden-tests"
TASK = {"task.json": "{}", "hidden/test_x.py": f"answer = '{MARK}'\n", "repo/x.py": ""}

# Runs on a machine whose /usr/local, /usr/src and /opt are its own.
ON_ITS_OWN_MACHINE = r"""
set -eu
mount --make-rprivate /
mount --bind "$BASE" /usr/local
mount --bind "$ROOM/site-packages" "/usr/local/lib/$VERSION/site-packages"
for place in opt:/opt src:/usr/src debian:/usr/lib/python3/dist-packages; do
    [ ! -d "${place#*:}" ] || mount --bind "$ROOM/${place%:*}" "${place#*:}"
done
exec "$@"
"""
LOOK = f"""
import asyncio, sys, sonde
from sonde.agents.sandbox import choosing
FILES = "--include=*.py --include=*.pyc --include=task.json --exclude-dir=proc --exclude-dir=dev"
COMMANDS = {{
    "names": "find / -path /proc -prune -o -name hidden -path '*/repositories/*' -print 2> /dev/null",
    "contents": f"grep -rlsF {{FILES}} {MARK} /; find / -path /proc -prune -o -path '*/app/tasks/mine/*' -print 2> /dev/null",
}}
async def main():
    async with choosing.open_sandbox("bubblewrap") as sandbox:
        print(sonde.__file__)
        print((await sandbox.run(COMMANDS[sys.argv[1]])).output, end="")
        print((await sandbox.run("python -c 'import sys; print(sys.prefix); import sonde'")).output, end="")
asyncio.run(main())
"""
NO_SONDE = "ModuleNotFoundError: No module named 'sonde'"
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = f"/usr/local/bin/{VERSION}"
OPT = "/" + "opt"
DEBIAN = f"/usr/bin/{VERSION}"
IN_ENVIRONMENT = f"lib/{VERSION}/site-packages/sonde"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """An installation as pip makes it, compiled files included, in which every hidden test holds the mark."""
    made = tmp_path_factory.mktemp("wheel") / "sonde"
    shutil.copytree(PACKAGE, made, ignore=shutil.ignore_patterns("__pycache__", "data"))
    for path in made.glob("agents/code/repositories/*/hidden/*.py"):
        path.write_text(path.read_text(encoding="utf-8") + f"\nMARK = {MARK!r}\n", encoding="utf-8")
    py_compile.compile(str(made / "agents/code/repositories/roman/hidden/test_hidden.py"), doraise=True)
    return made


@pytest.fixture
def room(tmp_path, package):
    """Where the private machine has its folders: other copies of the package in many places, and a user's own task."""
    few = [
        "src/app/build/lib",
        "src/environment/lib/python3/site-packages",
        "site-packages/vendored",
        "debian/vendored",
    ]
    for place in few:
        shutil.copytree(
            package / "agents/code/repositories/roman", tmp_path / place / "sonde/agents/code/repositories/roman"
        )
    for name, text in TASK.items():
        path = tmp_path / "src/app/tasks/mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "src/alias").symlink_to(f"/usr/local/lib/{VERSION}")
    (tmp_path / "src/tests").symlink_to("app/tasks/mine/hidden")
    for place in ("opt", "me"):
        (tmp_path / place).mkdir()
    return tmp_path


def look(room, python, searching, **environment):
    """What LOOK prints, run by a Python of the private machine."""
    given = {"ROOM": str(room), "BASE": sys.base_prefix, "VERSION": VERSION, "PATH": os.environ["PATH"]}
    line = ["unshare", "--mount", "sh", "-c", ON_ITS_OWN_MACHINE, "sh", python, "-B", "-c", LOOK, searching]
    ran = subprocess.run(line, env=given | environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give itself a /usr/local of its own")
needs_folders = pytest.mark.skipif(
    not all(pathlib.Path(path).exists() for path in (DEBIAN, OPT, "/usr/src", "/usr/lib/python3/dist-packages")),
    reason="not a Debian with this version of Python",
)


@needs_root
def test_hidden_tests_cannot_be_found_below_a_system_wide_installation(room, package):
    shutil.copytree(package, room / "site-packages/sonde")
    where, prefix, *failed = look(room, PYTHON, "names")
    assert where == f"/usr/local/{IN_ENVIRONMENT}/__init__.py"
    assert (prefix, failed[-1]) == ("/usr/local", NO_SONDE)


PLACES = {
    "site-packages": ("site-packages/sonde", "/usr/local", PYTHON, {}),
    "a source tree": ("src/app/src/sonde", "/usr/src/app/src", PYTHON, {"PYTHONPATH": "/usr/src/app/src"}),
    "Debian's own": ("debian/sonde", "/usr/lib/python3/dist-packages", DEBIAN, {}),
    "an environment": (f"opt/it/{IN_ENVIRONMENT}", f"{OPT}/it", f"{OPT}/it/bin/python", {}),
    "a user's home": (f"me/.local/{IN_ENVIRONMENT}", "@/me/.local", PYTHON, {"HOME": "@/me"}),
}


@needs_root
@needs_folders
@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_no_file_that_a_command_can_see_holds_a_hidden_test(room, package, place):
    folder, expected, python, environment = PLACES[place]
    shutil.copytree(package, room / folder)
    if place == "an environment":
        (room / "opt/it/bin").mkdir()
        (room / "opt/it/bin/python").symlink_to(PYTHON)
        (room / "opt/it/pyvenv.cfg").write_text("home = /usr/local/bin\n")
    given = {name: value.replace("@", str(room)) for name, value in environment.items()}
    where, prefix, *failed = look(room, python, "contents", **given)
    assert where.startswith(expected.replace("@", str(room)))
    assert (prefix, failed[-1]) == ("/usr" if python == DEBIAN else "/usr/local", NO_SONDE)


def test_a_package_that_is_shown_on_purpose_is_shown_without_its_tasks(package):
    async def look_inside():
        async with choosing.open_sandbox("bubblewrap", python_packages=[package]) as sandbox:
            return (await sandbox.run("python -c 'import sonde.core.errors'; find $PYTHONPATH -name hidden")).output

    assert asyncio.run(look_inside()) == ""


def test_a_task_is_covered_as_soon_as_it_is_loaded(tmp_path):
    before = hidden_tests.remembered((tmp_path,))
    folder = shutil.copytree(tasks.EMBEDDED / "roman", tmp_path / "deep" / "roman")
    assert (before, hidden_tests.remembered((tmp_path,))) == ((), ())
    tasks.load_task(folder)
    assert hidden_tests.remembered((tmp_path,)) == (folder,)


def test_only_what_an_interpreter_needs_of_its_folder_is_shown(monkeypatch, tmp_path):
    for name in ("bin", "lib/python", "envs/other/lib/python/site-packages", "Documents"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert interpreter.shown() == (tmp_path / "bin", tmp_path / "lib")
