"""A recording killed at any moment: every step that had ended is there, whole, for any other process."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

import sonde
from sonde import store

KILLS = 6
RESID = "blocks.*.hook_resid_post"
PATTERN = "blocks.2.attn.hook_pattern"

# One process loads the model and forks a recorder for each kill, so that the test pays for loading once.
NURSERY = f"""
import asyncio, os, sys
import torch
import sonde
from sonde import testing

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

torch.set_num_threads(1)
model = sonde.load("tiny-gpt2")
task = testing.ScriptedTask("long", tuple(f"Turn {{n}}." for n in range(60)))

async def record(folder):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=4)
    env = testing.ScriptedEnvironment([task], max_output_tokens=4)
    with sonde.ActivationCapture(model, ["{RESID}", "{PATTERN}"], folder=folder) as capture:
        now = await env.reset()
        step = 0
        while not now.last():
            capture.start_step()
            action = await client(now.observation)
            capture.end_step()
            say("ack", step, *action.token_ids)
            capture.record_step_metadata({{"step": step}})
            now = await env.step(action)
            step += 1

for number in range({KILLS}):
    child = os.fork()
    if not child:
        asyncio.run(record(f"{{sys.argv[1]}}/{{number}}"))
        os._exit(0)
    say("child", child)
    os.waitpid(child, 0)
    say("gone")
"""


def killed(nursery, delay):
    """Kills one recorder after a while; returns the tokens of the steps it had finished."""
    finished, victim = [], None
    for line in nursery.stdout:
        word, *rest = line.split()
        if word == "child":
            victim = int(rest[0])
        elif word == "ack":
            finished.append(tuple(map(int, rest[1:])))
            if len(finished) == 1:
                time.sleep(delay)
                os.kill(victim, signal.SIGKILL)
        elif word == "gone":
            break
    return finished


@pytest.mark.timeout(120)
def test_every_finished_step_survives_a_kill_and_is_as_an_undisturbed_run_has_it(tmp_path):
    chance = random.Random(7)
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(tmp_path)], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    ) as nursery:
        acknowledged = [killed(nursery, chance.uniform(0.0, 0.25)) for _ in range(KILLS)]
    assert nursery.returncode == 0
    assert len({len(steps) for steps in acknowledged}) > 1, "the kills should fall at different moments"
    with sonde.load("tiny-gpt2") as model:
        for number, finished in enumerate(acknowledged):
            folder = tmp_path / str(number)
            assert store.verify_episode(folder) == []
            trajectory = sonde.TrajectoryActivations.load(folder)
            assert len(finished) <= len(trajectory) <= len(finished) + 1
            assert [trajectory.generated(step) for step in range(len(finished))] == finished
            last = len(trajectory) - 1
            _, cache = model.run_with_cache(trajectory.tokens(last), [RESID, PATTERN])
            for name, value in cache.items():
                assert torch.allclose(trajectory.get_activation(last, name), value, atol=1e-4)
            assert trajectory.step_metadata[: last - 1] == [{"step": step} for step in range(last - 1)]
