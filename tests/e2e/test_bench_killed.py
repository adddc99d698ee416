"""Commands of `sonde bench` that are killed again and again end with what they find when they are left alone."""

import itertools
import json
import subprocess
import sys

import pytest

#: The command line, in a process that kills itself before it puts the n-th file into its place; trainings are short.
KILLED = """
import os, signal, sys

from sonde._cli import main
from sonde.bench import recipes, suite, training
from sonde.store import disk

left, real = int(sys.argv[1]), disk.replacing

def replacing(path):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(path)

disk.replacing, training.SAVE_SECONDS, suite.TRIES = replacing, 0.0, suite.TRIES[:2]
recipes.Recipe.steps = property(lambda recipe: 4 * recipe.epochs)
main.app(sys.argv[2:])
"""
COMMANDS = {
    "leaderboard": "leaderboard --tracr --cases 3,11 --methods exact-node --pairs 4",
    "bench-run": "run acdc --interp-bench -i 3 --pairs 10 --out out",
    "bench-eval": "eval iit --interp-bench -i 3 --rows 20",
    "bench-train": "train iit -i 3 --seeds 0,1 --epochs 1 --batch-size 16 --pool 2",
    "bench-core": "train core --only 3 --seeds 0 --epochs 1 --batch-size 16",
}
#: What is never the same twice, or is about it.
DIFFERENT = ("manifest.json", "seals.json", "times.json", "report.html")


def typed(folder, kill_at, *words):
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(kill_at), *words], cwd=folder, capture_output=True, text=True, check=False
    )


def plain(value):
    """Without what may differ."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if key not in ("seconds", "timing", "crc32")}
    return [plain(one) for one in value] if isinstance(value, list) else value


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in DIFFERENT]
    return {
        path.relative_to(folder).as_posix(): plain(json.loads(path.read_bytes()))
        if path.suffix == ".json"
        else path.read_bytes()
        for path in files
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_that_is_killed_again_and_again_ends_as_one_that_is_not(kind, tmp_path):
    words = ["bench", *COMMANDS[kind].split(), "--run", "it"]
    for at in itertools.count(2, 5):
        done = typed(tmp_path, at, *words, "--runs", "killed")
        if done.returncode >= 0:
            break
    assert done.returncode == 0, done.stderr
    assert at > 2, "it was killed"
    assert typed(tmp_path, 0, *words, "--runs", "whole").returncode == 0
    assert contents(tmp_path / "killed" / "it") == contents(tmp_path / "whole" / "it")
    told = typed(tmp_path, 0, "runs", "verify", "--runs", "killed").stdout
    assert told == "it: whole\n"
    assert kind in typed(tmp_path, 0, "runs", "ls", "--runs", "killed").stdout
    other = typed(tmp_path, 0, *[{"4": "5", "10": "11", "20": "21", "16": "17"}.get(word, word) for word in words], "--runs", "killed")  # fmt: skip
    assert other.returncode == 2
    assert "was started with other settings" in other.stderr
