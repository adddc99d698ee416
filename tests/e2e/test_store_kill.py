"""A writer killed at any moment loses no step that it had finished, and the next one goes on where it stopped."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from sonde import store

KILLS = 30
STEPS = 10  # per episode, so that many kills meet an episode being closed or started

WORKER = f"""
import os, sys
import numpy as np
from sonde import store
from sonde.core import errors

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

run = store.Run.open(sys.argv[1])
say("ready")
number = 0
while True:
    name = f"e{{number:03d}}"
    if name not in run.episode_ids():
        writer = run.new_episode(name)
    elif run.episode(name).status == "closed":
        number += 1
        continue
    else:
        writer = run.resume_episode(name)
        say("resumed", name, writer.step_count)
    while writer.step_count < {STEPS}:
        step = writer.step_count
        values = {{site: store.Array.from_numpy(np.full((step + 1, 4096), step, "f4")) for site in ("a", "b")}}
        writer.append_step({{"n": step}}, values)
        say("ack", name, step)
    writer.close({{"reward": 1}})
    say("closed", name)
    number += 1
"""


def run_and_kill(folder, delay):
    """Lets a writer work for a while after it is ready; returns what it said before it was killed."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert worker.stdout is not None
    first = worker.stdout.readline()
    time.sleep(delay)
    os.kill(worker.pid, signal.SIGKILL)
    out, complaints = worker.communicate(timeout=60)
    assert worker.returncode == -signal.SIGKILL, complaints.decode()
    assert first == b"ready\n"
    return [line.split() for line in out.decode().splitlines()]


def check(run, promised, closed):
    assert run.verify() == []
    for episode in run.episodes():
        count = len(episode.steps)
        assert [step["n"] for step in episode.steps] == list(range(count))
        assert promised.get(episode.id, -1) < count
        if episode.id in closed:
            assert episode.status == "closed"
        for name in episode.names:
            expected = np.repeat(np.arange(count), np.arange(1, count + 1))
            assert (episode.array(name).to_numpy() == expected[:, None]).all()
    assert set(promised) <= set(run.episode_ids())


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_no_finished_step_is_lost_by_kill_9(tmp_path):
    run = store.Run.create(tmp_path, kind="kill")
    moments = random.Random(1)
    promised, closed = {}, set()
    for _ in range(KILLS):
        for line in run_and_kill(run.folder, moments.uniform(0, 0.08)):
            match line:
                case ["ack", name, step]:
                    promised[name] = int(step)
                case ["closed", name]:
                    closed.add(name)
                case ["resumed", name, count]:
                    assert promised.get(name, -1) < int(count) <= STEPS
        check(store.Run.open(run.folder), promised, closed)
    assert sum(promised.values()) > KILLS
