"""`kill -9` at random moments of a run: finished steps stay byte for byte, and so does the rest when it is taken up."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

EPISODES = 6
SCRIPT = """
import sys, torch
torch.set_num_threads(1)
import sonde
from sonde import testing
from sonde.agents import playing
playing.play(testing.ScriptedEnvironment, "tiny-llama", episodes=6, wave=4, seed=5, runs_dir=sys.argv[1], run="it",
             capture="blocks.*.hook_resid_post")
"""


def start(folder):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], stdout=subprocess.DEVNULL)


def written(folder):
    found = [folder / "it" / "episodes" / f"{index:05d}" / "steps.jsonl" for index in range(EPISODES)]
    return {path: path.read_bytes() for path in found if path.exists()}


def contents(folder):
    found = {}
    for path in sorted((folder / "it" / "episodes").glob("[0-9]*/*")):
        if path.suffix == ".json":
            told = json.loads(path.read_text())
            found[path.relative_to(folder)] = {k: v for k, v in told.items() if k not in ("created", "closed", "crc32")}
        elif path.is_file():
            found[path.relative_to(folder)] = path.read_bytes()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_run_is_taken_up_byte_for_byte(tmp_path, seed):
    assert start(tmp_path / "whole").wait(timeout=280) == 0
    chance = random.Random(seed)
    kills = 0
    while True:
        process = start(tmp_path / "cut")
        steps = sum(data.count(b"\n") for data in written(tmp_path / "cut").values())
        goal = steps + chance.randint(1, 6)
        while process.poll() is None and kills < 4:
            now = sum(data.count(b"\n") for data in written(tmp_path / "cut").values())
            if now >= goal:
                time.sleep(chance.random() * 0.05)
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.005)
        code = process.wait(timeout=280)
        before = written(tmp_path / "cut")
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert all(
            contents(tmp_path / "whole")[path.relative_to(tmp_path / "cut")].startswith(data[: data.rfind(b"\n") + 1])
            for path, data in before.items()
        )
    assert kills >= 2
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
