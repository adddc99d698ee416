"""The language and the compiler against the original: tracr, in an environment of its own that this file makes."""

import json
import os
import pathlib
import subprocess
import sys
import venv

import pytest

from sonde.bench import cases

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
HOME = ROOT / ".cache" / "tracr"
PACKAGES = ("tracr-pypi==1.0.0", "jax==0.7.1")
COUNT = 3
REFUSED = {13, 19, 21, 113}  # tracr has no defaults for categories


@pytest.fixture(scope="module")
def python():
    """An interpreter that has tracr."""
    found = HOME / "bin" / "python"
    ready = HOME / "ready"
    if not ready.exists():
        venv.create(HOME, with_pip=True, clear=True)
        command = [found, "-m", "pip", "install", "--quiet", *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
        if done.returncode:
            pytest.skip(f"tracr cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
        ready.touch()
    return found


@pytest.fixture(scope="module")
def theirs(python):
    command = [python, pathlib.Path(__file__).with_name("tracr_oracle.py"), str(COUNT)]
    room = {"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu", "PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, env=room)
    assert done.returncode == 0, done.stderr[-2000:]
    return {int(number): said for number, said in json.loads(done.stdout).items()}


def same(said, expected):
    """Equal words and missing values, and numbers that are nearly equal."""
    return len(said) == len(expected) and all(
        one == other if one is None or isinstance(one, str) else one == pytest.approx(other, abs=1e-3)
        for one, other in zip(said, expected, strict=True)
    )


def test_tracr_is_not_in_the_environment_of_sonde():
    assert "tracr" not in sys.modules


def test_the_interpreter_of_tracr_says_the_same_of_every_program(theirs):
    assert tuple(theirs) == cases.ids()
    for number, said in theirs.items():
        for tokens, expected in said["interpreted"]:
            assert same(cases.get(number).evaluate(tokens), expected), (number, tokens)


def test_the_models_that_tracr_compiles_say_the_same(theirs):
    compiled = {number: theirs[number]["compiled"] for number in cases.ids("core")}
    assert {number for number, said in compiled.items() if isinstance(said, str)} == REFUSED
    for number in compiled.keys() - REFUSED:
        inputs, expected = zip(*compiled[number], strict=True)
        for tokens, ours, answer in zip(inputs, cases.get(number).compiled().run(inputs), expected, strict=True):
            assert same(ours, answer), (number, tokens)
