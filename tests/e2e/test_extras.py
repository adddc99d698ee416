"""A command asks for the optional packages of all its stages before it loads or plays anything."""

import builtins
import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main
from typer import testing

from sonde._cli import main, needs

ROOT = Path(__file__).parents[2]
#: Makes packages impossible to import, in every way, in a Python that has this in its search path.
BLOCKER = """
import os, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""
CALLS = """
import json, sys
from typer import testing
from sonde._cli import main

said = []
for words in json.loads(sys.argv[1]):
    found = testing.CliRunner(env={"COLUMNS": "300"}).invoke(main.app, words)
    said.append([found.exit_code, found.output])
print(json.dumps([said, [name for name in ("torch", "transformers") if name in sys.modules]]))
"""
#: A call of each command that needs something, and what it is to ask for if no optional package is there.
ASKED = {
    "study 20q -m tiny-gpt2": "study",
    "study critical-steps 20q -m tiny-gpt2": "study",
    "study binding": "study",
    "study layers -m tiny-gpt2": "study",
    "study compare 20q -m tiny-gpt2 -m tiny-llama": "study",
    "programs run binding -m tiny-gpt2": "study",
    "programs seeds -m tiny-gpt2": "study",
    "trace -m tiny-gpt2": "study",
    "trace programs -m tiny-gpt2 --backend nnsight": "nnsight,study",
    "trace episode last 0": "study",
    "circuits find --task induction": "study",
    "circuits compare --task induction": "study",
    "bench leaderboard --engine ray": "ray,study",
    "bench run eap -i 3 --tracr": "study",
    "bench eval iit": "study",
    "lab measure skip:1 -m tiny-gpt2": "study",
    "lab translate -m tiny-gpt2": "study",
    "lab run -m tiny-gpt2 --planner openai --planner-model m": "openai,study",
    "lab fork x --at 0": "study",
    "lab replay x": "study",
    "lab mcp": "mcp,study",
    "play 20q -m tiny-gpt2 --engine ray": "ray",
    "runs export last --out out": "export",
}


def blocked(tmp_path, *packages):
    (tmp_path / "path").mkdir(exist_ok=True)
    (tmp_path / "path" / "sitecustomize.py").write_text(BLOCKER, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "path"), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {
        "BLOCKED": ",".join(packages),
        "PYTHONPATH": path,
        "SONDE_RUNS": str(tmp_path / "runs"),
        "COLUMNS": "300",
    }
    return {**os.environ, **settings}


def python(tmp_path, *words, packages):
    here = tmp_path / "here"
    here.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=120, cwd=here,
        env=blocked(tmp_path, *packages),
    )  # fmt: skip


def test_every_command_that_needs_packages_asks_for_all_of_them_before_anything_else(tmp_path):
    calls = [line.split() for line in ASKED]
    done = python(tmp_path, "-c", CALLS, json.dumps(calls), packages=needs.EXTRAS)
    assert done.returncode == 0, done.stderr
    said, loaded = json.loads(done.stdout)
    for (line, extra), (code, output) in zip(ASKED.items(), said, strict=True):
        assert (code, f'pip install "sonde[{extra}]"' in output) == (1, True), (line, output)
        assert len(output.splitlines()) == 1, line
    assert loaded == []
    assert list((tmp_path / "here").iterdir()) == []
    assert not (tmp_path / "runs").exists()


def test_python_dash_m_sonde_names_the_missing_package_and_itself_as_the_command_does(tmp_path):
    done = python(tmp_path, "-m", "sonde", "study", "20q", "-m", "tiny-gpt2", packages=["scipy"])
    assert done.returncode == 1
    assert done.stderr == (
        "sonde: sonde study 20q needs the package 'scipy'; install it with: pip install \"sonde[study]\"\n"
    )
    assert done.stdout == ""
    helped = python(tmp_path, "-m", "sonde", "--help", packages=["scipy"])
    assert helped.returncode == 0
    assert "Usage: sonde [OPTIONS]" in helped.stdout


def test_a_stage_that_does_without_the_packages_does_not_ask_for_them():
    assert needs.of("study 20q", {"stage": "collect"}) == ()
    assert needs.of("runs export", {"to": "json"}) == ()
    assert needs.of("play", {"engine": "local"}) == ()


def test_the_extras_that_are_named_bring_the_packages():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    brought = {name: " ".join(extras[extra]) for name, extra in needs.EXTRAS.items()}
    also = {"threadpoolctl": "scikit-learn", "sklearn": "scikit-learn"}  # which depends on it; which is its name
    assert [name for name, what in brought.items() if f"{also.get(name, name)}>=" not in what] == []


def test_every_row_is_a_command():
    def below(command, path):
        inner = getattr(command, "commands", {})
        return {path.strip()}.union(*(below(one, f"{path} {name}") for name, one in inner.items()))

    verbs = typer.main.get_command(main.app).commands
    known = set().union(*(below(verb.load(), name) for name, verb in verbs.items()))
    assert set(needs.COMMANDS) | {command for command, _ in needs.LIGHT} <= known


# --------------------------------------------------------------------------- the table holds what commands really import

USED = {
    "study 20q": "-m tiny-gpt2 --episodes 8 --steer-episodes 4 --steps 3 --layers 1,2",
    "study 20q collect": "--run mine -m tiny-gpt2 --episodes 4 --steps 2 --layers 1",
    "study critical-steps": "20q -m tiny-gpt2 --episodes 3 --layers 1 --cells 1 --rollouts 1 --max-steps 3 --max-new-tokens 4",
    "study binding": "--pairs 10 -m seed-0",
    "study layers": "-m tiny-gpt2 --texts 2 --tokens 8 --windows 2 --orders 1",
    "study compare": "20q -m tiny-gpt2 -m tiny-llama -n 4 --max-steps 2",
    "programs run": "binding -m tiny-gpt2 -n 4 --seq-lens 2 --max-new-tokens 2",
    "play": "20q -m tiny-gpt2 -n 2 --max-steps 2",
    "lab measure": "skip:1 -m tiny-gpt2 --tokens 8 --controls 1",
    "lab measure again": "skip:1 -m tiny-gpt2 -t capitals -n 4 --controls 1",
    "lab translate": "-m tiny-gpt2 --tokens 16",
    "lab tasks check": "-m tiny-gpt2 -t capitals",
    "lab depth": "-m tiny-gpt2 --words 4",
    "lab run": "-m tiny-gpt2 --budget 2 --examples 6",
    "lab shifts": "skip:1 hello -m tiny-gpt2",
    "lab chat": "--skip 1 -m tiny-gpt2 -p hello --tokens 2",
    "circuits find": "--task induction -m tiny-gpt2 --pairs 12 --method eap --edges 5",
    "bench cases": "3",
    "bench leaderboard": "--methods random --cases 3 --pairs 8",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", USED)
def test_a_command_imports_no_optional_package_that_it_did_not_ask_for(command, tmp_path, monkeypatch):
    """Only where that is not in its row; one that an option brings is imported first by what needs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SONDE_RUNS", str(tmp_path / "runs"))
    used, plain, named = set(), builtins.__import__, importlib.import_module

    def note(name, importer):
        if name.partition(".")[0] in needs.EXTRAS and (importer or "").startswith("sonde."):
            used.add(name.partition(".")[0])

    def watched(name, place=None, *rest, **more):
        note(name, (place or {}).get("__name__"))
        return plain(name, place, *rest, **more)

    def watched_by_name(name, package=None):
        note(name, sys._getframe(1).f_globals.get("__name__"))
        return named(name, package)

    monkeypatch.setattr(builtins, "__import__", watched)
    monkeypatch.setattr(importlib, "import_module", watched_by_name)
    asked = []
    monkeypatch.setattr(needs, "check", lambda command, given: asked.extend(needs.of(command, given)))
    words = [word for word in command.split() if word != "again"]
    done = testing.CliRunner(env={"COLUMNS": "200"}).invoke(main.app, [*words, *USED[command].split()])
    assert done.exit_code in (0, 1, 2), done.output  # 2: a tiny model cannot do what is asked of it
    assert "Usage:" not in done.output, done.output
    assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit), done.exception
    assert used <= set(asked), done.output
    print(command, done.exit_code, sorted(used), "of", sorted(asked), done.output[-300:])
