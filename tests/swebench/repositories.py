"""Instances in SWE-bench's form, made from embedded code tasks: a repository with history, a fault, and its own image.

    rows = made(folder, base="sonde-test-base")

1. The task's files are committed on top of an earlier history; the commit is the same on every machine.
2. The hidden tests come as a test patch: into a file that is there (`roman`, `ledger-transfer`) or a new one (`lru`).
3. Which tests fail and pass is found by running them here, before and after the repair.
4. They run as in SWE-bench's repositories: by pytest, whose names a parser cuts at a blank (`roman`) or not (`lru`), or
   by unittest as in Django (`ledger-transfer`), where a skipped test that must go on passing is kept.
5. The judging script is of the official form. The image holds what it needs: a stub of conda and the real pip, which
   without a network cannot build `roman` and `ledger-transfer`, and can build `lru`, whose build backend is its own.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sonde.agents.code import tasks

OPT = "/" + "opt"
RUNNERS = {
    "roman": ("parse_log_pytest", "pytest -rA"),
    "lru": ("parse_log_pytest_v2", "pytest -rA"),
    "ledger-transfer": ("parse_log_django", "python -m unittest -v"),
}
NAMES = ("roman", "lru", "ledger-transfer")
EARLIER = {"README.md": "# A small library\n", "data/marks.bin": bytes(range(256))}
OLD_TEST = '''"""Tests that were always there."""

import unittest

import pytest


@pytest.mark.parametrize("words", ["two words", "three more words"])
def test_words(words):
    assert words.split()


def test_plain():
    assert 1 + 1 == 2
'''
OLD_CASES = '''"""Tests that were always there."""

import unittest


class OldTest(unittest.TestCase):
    @unittest.skip("needs a printer")
    def test_printer(self):
        raise AssertionError("there is no printer")

    def test_plain(self):
        self.assertEqual(1 + 1, 2)
'''
SETUPTOOLS = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n[project]\nname = "it"\nversion = "1"\n'
OWN_BACKEND = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["build_tools"]\n\n[project]\nname = "it"\nversion = "1"\n'
BACKEND = '''"""Builds a wheel that points at this folder."""

import os
import zipfile


def build_editable(folder, config=None, metadata=None):
    name = "it-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("it.pth", os.getcwd())
        wheel.writestr("it-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: it\\nVersion: 1\\n")
        wheel.writestr("it-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: it\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("it-1.dist-info/RECORD", "")
    return name


build_wheel = build_editable
'''
DOCKERFILE = f"""FROM {{base}}
COPY pip {{packages}}/pip
COPY activate {OPT}/miniconda3/bin/activate
COPY testbed /testbed
RUN ln -sf /usr/bin/python3 /usr/local/bin/python && \\
    ln -sf /usr/bin/pytest-3 /usr/local/bin/pytest && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && \\
    echo /testbed > {{packages}}/testbed.pth && chown -R root:root /testbed && chmod -R 777 /testbed && cd /testbed && \\
    git config --global user.email setup@example.com && git config --global user.name Setup && \\
    {{prepare}} && git commit -q --allow-empty -am Prepared
WORKDIR /testbed/
"""
PACKAGES = "/usr/local/lib/python3.11/dist-packages"
SCRIPT = f"""#!/bin/bash
set -uxo pipefail
source {OPT}/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff {{commit}}
source {OPT}/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
{{reset}}
git apply -v - <<'EOF_0123456789ab'
{{test_patch}}
EOF_0123456789ab
: '>>>>> Start Test Output'
{{runner}} {{files}}
: '>>>>> End Test Output'
{{reset}}
"""


def made(base, *, names=NAMES, docker=("docker",)):
    """Rows of the instances, whose images are built if they are not there."""
    return [_instance(name, base, docker) for name in names]


def _instance(name, base, docker):
    task, parser, runner = tasks.load_task(name), *RUNNERS[name]
    new = name == "lru"
    file = "tests/test_new.py" if new else "tests/test_old.py"
    files, repaired, tested = _states(task, file, new)
    with tempfile.TemporaryDirectory() as place:
        repo = Path(place) / "testbed"
        commit = _committed(repo, files)
        patch, test_patch = (_difference(repo, files, state) for state in (repaired, tested))
        fails, passes = _verdicts(repo, (files | tested, files | tested | repaired), file, parser)
        _write(repo, files)
        image = f"sonde-test-swe-{name}:{_digest(files, base)}"
        _image(
            Path(place),
            image,
            base,
            docker,
            prepare="sed -i s/small/little/ README.md" if name == "ledger-transfer" else "true",
        )
    reset = f"rm -f {file}" if new else f"git checkout {commit} {file}"
    script = SCRIPT.format(commit=commit, reset=reset, test_patch=test_patch, files=file, runner=runner)
    return {
        "instance_id": f"sonde__{name}-1", "repo": f"sonde/{name}", "version": "1.0", "base_commit": commit,
        "problem_statement": f"{task.title}\n\n{task.issue}", "patch": patch, "test_patch": test_patch, "image": image,
        "FAIL_TO_PASS": fails, "PASS_TO_PASS": passes, "eval_script": script, "eval_type": "pass_and_fail",
        "log_parser": parser,
    }  # fmt: skip


KEPT = ("PASSED", "ok", "skipped")


def _states(task, file, new):
    """The files at the base commit, those that the repair changes, and those that the tests' patch changes."""
    files = {**EARLIER, **task.repo, ".gitignore": "*.pyc\n__pycache__/\n.pytest_cache/\nbuild/\n"}
    old = OLD_CASES if task.id == "ledger-transfer" else OLD_TEST
    files |= {"tests/test_old.py": old, "setup.cfg": "[tool:pytest]\naddopts =\n"}
    files |= (
        {"pyproject.toml": OWN_BACKEND, "build_tools/backend.py": BACKEND} if new else {"pyproject.toml": SETUPTOOLS}
    )
    (hidden,) = task.hidden.values()
    tested = {file: f"{old}\n\n{hidden.split('import unittest', 1)[1].lstrip()}"}
    repaired = dict(task.reference)
    if task.id == "ledger-transfer":  # whose own repair touches a file that configures tests
        repaired["setup.cfg"] = "[tool:pytest]\naddopts =\nxfail_strict = true\n"
    return files, repaired, tested


def _verdicts(repo, states, file, parser):
    """The tests that fail before and pass after, and those that pass, or are skipped, both times; cut as SWE-bench has them."""
    first, second = (_run(repo, state, file, parser) for state in states)
    passing = [name for name, verdict in second.items() if verdict in KEPT]
    kept = [name for name in passing if first.get(name) in KEPT]
    cut = [name.partition(" ")[0] if "[" in name else name for name in kept]
    return [name for name in passing if name not in kept], cut


def _run(repo, files, file, parser):
    _write(repo, files)
    django = parser == "parse_log_django"
    line = (
        ["-m", "unittest", "-v", file]
        if django
        else ["-m", "pytest", "-rA", "-p", "no:cacheprovider", "-c", "setup.cfg", file]
    )
    said = subprocess.run(
        [sys.executable, *line], cwd=repo, env=_environment() | {"PYTHONPATH": str(repo), "COLUMNS": "80"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    shutil.rmtree(repo / "tests" / "__pycache__", ignore_errors=True)
    if django:
        return dict(re.findall(r"^(\w+ \(.+?\))(?:\n.+?)? \.\.\. (ok|FAIL|ERROR|skipped)", said.stderr, re.MULTILINE))
    return {
        name: verdict for verdict, name in re.findall(r"^(PASSED|FAILED) (.+?)(?: - .*)?$", said.stdout, re.MULTILINE)
    }


def _committed(repo, files):
    """Makes the repository with two commits; the second has the files."""
    _write(repo, EARLIER)
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "The beginning"]):
        _git(repo, *command)
    _write(repo, files)
    _git(repo, "add", "-A")
    _git(repo, "commit", "-q", "-m", "A library with a fault")
    return _git(repo, "rev-parse", "HEAD").strip()


def _difference(repo, files, changed):
    _write(repo, files | changed)
    _git(repo, "add", "-A")
    patch = _git(repo, "diff", "--cached", "HEAD")
    _git(repo, "reset", "-q", "--hard")
    _git(repo, "clean", "-qfdx")
    return patch


def _git(repo, *words):
    line = ["git", "-C", str(repo), "-c", "user.name=Ann", "-c", "user.email=ann@example.com", *words]
    return subprocess.run(line, env=_environment(), capture_output=True, text=True, check=True).stdout


def _environment():
    fixed = {"GIT_AUTHOR_DATE": "2024-05-05T12:00:00Z", "GIT_COMMITTER_DATE": "2024-05-05T12:00:00Z"}
    return {**os.environ, **fixed, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def _write(repo, files):
    for path, content in files.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_bytes(content if isinstance(content, bytes) else content.encode())


def _digest(files, base):
    told = repr((sorted(files.items()), base, DOCKERFILE, 3))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _image(place, image, base, docker, *, prepare):
    if subprocess.run([*docker, "image", "inspect", image], capture_output=True, check=False).returncode == 0:
        return
    (place / "activate").write_text("conda() { :; }\n")
    dockerfile = DOCKERFILE.format(base=base, packages=PACKAGES, prepare=prepare).encode()
    pip = Path(importlib.util.find_spec("pip").origin).parent
    shutil.copytree(pip, place / "pip", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "Dockerfile").write_bytes(dockerfile)
    line = [*docker, "build", "--quiet", "--network", "none", "--tag", image, str(place)]
    done = subprocess.run(line, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cannot build {image}: {done.stderr.decode()[-2000:]}")
