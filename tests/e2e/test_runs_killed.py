"""Searches, traces and experiments on programs that are killed after any of their writes are resumed to the same results."""

import json
import os
import subprocess
import sys

import pytest

import sonde
from sonde import store
from sonde.testing import scripted

KILLER = """
import os, runpy, signal, sys
from sonde.store import documents

left, keep = int(sys.argv.pop(1)), documents.keep

def counted(path, content):
    global left
    keep(path, content)
    left -= path.name != "times.json"
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

documents.keep = counted
runpy.run_module("sonde", run_name="__main__")
"""
TYPED = {
    "circuits": "circuits find -m tiny-llama --task induction --pairs 12 --method eap --edges 20",
    "programs": "programs run range -m tiny-gpt2 -n 2 --seq-lens 2,3 --batch 2 --max-new-tokens 2",
    "seeds": "programs seeds -m tiny-gpt2 --max-seeds 2",
    "trace episode": "trace episode played 0 --layers 2",
}
OFTEN = {"circuits": (2, 7, 13), "programs": (2, 3), "seeds": (1, 3), "trace episode": (1,)}
NEVER = 1000


def typed(folder, words, left=NEVER):
    env = {**os.environ, "SONDE_RUNS": str(folder), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    command = [sys.executable, "-c", KILLER, str(left), *words.split()]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def found(folder):
    """What a run holds but for times: its results and the documents of its stages."""

    def plain(value):
        if isinstance(value, dict):
            left_out = ("seconds", "timing", "crc32")
            return {key: plain(inner) for key, inner in value.items() if key not in left_out}
        return [plain(inner) for inner in value] if isinstance(value, list) else value

    paths = [folder / "results.json", *sorted((folder / "stages").rglob("*.json"))]
    kept = [path for path in paths if path.name != "times.json"]
    return {str(path.relative_to(folder)): plain(json.loads(path.read_text())) for path in kept}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", TYPED)
def test_a_run_that_was_killed_is_resumed_to_the_same_results(kind, tmp_path):
    if kind == "trace episode":
        with sonde.load("tiny-llama") as model:
            how = {"episodes": 1, "generation": {"max_new_tokens": 4}, "max_steps": 3}
            sonde.play(scripted.ScriptedEnvironment, model, run="played", runs_dir=tmp_path, **how)
    code, text = typed(tmp_path, f"{TYPED[kind]} --run whole")
    assert code == 0, text
    for left in OFTEN[kind]:
        words, folder = f"{TYPED[kind]} --run cut-{left}", tmp_path / f"cut-{left}"
        assert typed(tmp_path, words, left)[0] == -9, "killed"
        assert store.Run.open(folder).status == "interrupted"
        code, text = typed(tmp_path, words)
        assert code == 0, text
        assert found(folder) == found(tmp_path / "whole")
        kept = store.Run.open(folder)
        assert (kept.manifest["kind"], kept.status, kept.verify()) == (kind, "finished", [])
