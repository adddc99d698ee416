"""`kill -9` in every stage of a study: the same command goes on, and the results are those of a run that nobody killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

PATIENCE = 600
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
#: By command: its words, others that are refused under the same name, and by stage what is there when it is killed.
STUDIES = {
    "critical-steps": (
        "20q -m tiny-llama -n 4 --layers 0,2 --rollouts 3 --heads 1 --max-steps 3 --max-new-tokens 6",
        "20q -m tiny-llama -n 4 --layers 0,2 --rollouts 4 --heads 1 --max-steps 3 --max-new-tokens 6",
        ("played/episodes/*/steps.jsonl", "stages/means.safetensors", "stages/screen/00001.json",
         "stages/rollouts/00002.json", "stages/head-means.safetensors", "stages/heads/00000.json", "results.json"),
    ),
    "compare": (
        "20q -m tiny-llama -m tiny-gpt2 -n 4 --max-steps 3",
        "20q -m tiny-llama -m tiny-gpt2 -n 5 --max-steps 3",
        ("games/model-0/episodes/*/steps.jsonl", "stages/models/00000.json", "games/model-1/episodes/*/steps.jsonl",
         "games/model-1/results.json"),
    ),
}  # fmt: skip


def start(folder, *words):
    command = [sys.executable, "-m", "sonde", *words, "--runs", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)


def ended(process):
    out, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, " ".join(out.split())


def untimed(folder):
    told = json.loads((folder / "results.json").read_bytes())
    told.pop("timing")
    return json.dumps(told)


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
@pytest.mark.parametrize("study", STUDIES)
def test_a_study_that_is_killed_in_every_stage_comes_out_the_same(study, tmp_path):
    words, other, places = STUDIES[study]
    typed = ("study", study, *words.split(), "--run", "it")
    code, text = ended(start(tmp_path / "whole", *typed))
    assert code == 0, text
    folder, kills = tmp_path / "cut" / "it", 0
    for place in places:
        process = start(tmp_path / "cut", *typed)
        while process.poll() is None and not any(folder.glob(place)):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        ended(process)
        kills += process.returncode == -signal.SIGKILL
    assert kills >= len(places) - 1, "the last one may be over before it is killed"
    code, text = ended(start(tmp_path / "cut", *typed))
    assert code == 0, text
    assert untimed(folder) == untimed(tmp_path / "whole" / "it")
    code, text = ended(start(tmp_path / "cut", "study", study, *other.split(), "--run", "it"))
    assert code == 2
    assert "run it was started with other settings" in text
    assert study in ended(start(tmp_path / "cut", "runs", "ls"))[1]
    code, text = ended(start(tmp_path / "cut", "runs", "verify", "it"))
    assert code == 0, text
