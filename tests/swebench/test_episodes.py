"""Episodes in an instance's own container, with all that Sonde does to episodes: recorded, changed, forked, killed, exported."""

import asyncio
import functools
import importlib.util
import json
import random
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

import sonde
from sonde import ActivationCapture, HookedTransformerLLMClient
from sonde._cli import main
from sonde.agents import mediated
from sonde.agents.code import bash_agent, commands
from sonde.agents.code import tasks as code_tasks
from sonde.agents.code.swebench import environment, instances, judge
from sonde.core import errors

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("nothing_left")
REPAIR = bash_agent.ReferenceAgent(code_tasks.load_task("roman")).commands[0]
#: What is done in an episode, whatever the model says: a clock that differs, work, and a look at it.
STEPS = ["date +%N; ls", "echo note > NOTES", REPAIR, "python -m unittest test_roman; git status --short", "rm NOTES"]


class Scripted(environment.SweBenchEnv):
    """An episode whose commands are known, so that a model of noise can play it; what is said is recorded all the same."""

    async def _done(self, command):
        return await super()._done(commands.Command(STEPS[self.step_count]))


def scripted(rows_file):
    def make():
        found = [task for task in instances.swebench_verified_tasks(rows_file) if task.repo == "sonde/roman"]
        return Scripted(found, step_limit=len(STEPS), system_prompt="Go.", check=False)

    return make


@pytest.fixture(scope="module")
def model():
    with sonde.load("tiny-llama") as loaded:
        yield loaded


@pytest.fixture
def play(model, rows_file, tmp_path):
    def run(**options):
        generation = {"max_new_tokens": 4, "context_policy": "drop_oldest_turns"}
        return sonde.play(scripted(rows_file), model, generation=generation, runs_dir=tmp_path / "runs", **options)

    return run


# --------------------------------------------------------------------------------- recorded, changed, forked, together


def test_several_episodes_at_once_are_recorded_and_changed(play):
    head = sonde.Zero(site="blocks.1.hook_attn_out")
    played = play(episodes=2, wave=4, capture="blocks.*.hook_resid_post", conditions={"": [], "zero": [head]}, run="a")
    assert played.rewards == [1.0] * 4
    plain, zero = played[0].trajectory, played[1].trajectory
    for site in ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post"):
        one, other = (trajectory.get_activation(0, site)[:, :20] for trajectory in (plain, zero))  # of the prompt
        same = torch.equal(one, other)
        assert same == (site == "blocks.0.hook_resid_post")
    verdict = plain.moments[-1].info["verdict"]
    assert verdict["official"]["resolved"]
    assert "NOTES" not in verdict["patch"]
    assert verdict["patch"] == zero.moments[-1].info["verdict"]["patch"]


@pytest.mark.parametrize("step", [0, 3, len(STEPS) - 1])
def test_an_episode_is_forked_at_any_step(play, step):
    trajectory = play(episodes=1, capture="blocks.0.hook_resid_post")[0].trajectory
    others = trajectory.fork(step, n=2, interventions=[sonde.Zero(site="blocks.1.hook_mlp_out")])
    assert [len(other) for other in others] == [len(STEPS) - step] * 2
    for other in others:
        assert other.reward == 1.0
        shown = [dict(message) for message in other.moments[0].observation.messages]
        assert shown == [dict(message) for message in trajectory.moments[step].observation.messages]
        assert other.moments[-1].info["verdict"]["patch"] == trajectory.moments[-1].info["verdict"]["patch"]
        assert [part["step"] for part in other.moments[0].info.get("retraced", [])][: step and 1] == (
            [0] if step else []
        )


def test_files_that_differ_when_an_episode_is_taken_up_are_an_error(play, monkeypatch):
    monkeypatch.setitem(sys.modules[__name__].__dict__, "STEPS", ["date +%N > clock", *STEPS[1:]])
    trajectory = play(episodes=1)[0].trajectory
    with pytest.raises(errors.EpisodeError, match="step 0 left other files"):
        trajectory.fork(2)


def test_a_process_that_a_command_leaves_is_gone_for_the_next_one(tasks):
    async def look():
        async with environment.SweBenchEnv([tasks["roman"]], check=False) as env:
            await env.reset()
            await env.step(bash_agent.answer(commands.fenced("nohup sleep 1000 >/dev/null 2>&1 & echo $! > pid")))
            now = await env.step(bash_agent.answer(commands.fenced("kill -0 $(cat pid) && echo alive; cat pid")))
            return now.observation.messages[-1]["content"]

    said = asyncio.run(look())
    assert "alive" not in said
    assert said.split()[-1].isdigit(), "files stay"


# ------------------------------------------------------------------------------------------------------------- kill -9

SCRIPT = """
import importlib.util, sys, torch
torch.set_num_threads(1)
import sonde
spec = importlib.util.spec_from_file_location("episodes", sys.argv[1])
episodes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(episodes)
sonde.play(episodes.scripted(sys.argv[2]), "tiny-llama", episodes=10, wave=5, seed=3, runs_dir=sys.argv[3], run="it",
           generation={"max_new_tokens": 4}, capture="blocks.0.hook_resid_post")
"""


def start(rows_file, folder):
    line = [sys.executable, "-c", SCRIPT, __file__, str(rows_file), str(folder)]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL)


def written(folder):
    found = sorted((folder / "it" / "episodes").glob("[0-9]*/steps.jsonl"))
    return {path: path.read_bytes() for path in found}


def whole_lines(data):
    return data[: data.rfind(b"\n") + 1]


def test_ten_episodes_killed_at_random_and_taken_up_lose_nothing(rows_file, tmp_path):
    chance, kills, steps = random.Random(5), 0, 0
    while True:
        process = start(rows_file, tmp_path)
        goal = steps + chance.randint(1, 12)
        while process.poll() is None and kills < 6:
            if sum(data.count(b"\n") for data in written(tmp_path).values()) >= goal:
                time.sleep(chance.random())
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.05)
        code = process.wait(timeout=1200)
        after = written(tmp_path)
        steps = sum(data.count(b"\n") for data in after.values())
        if code == 0:
            break
        assert code == -signal.SIGKILL
        kept = {path: whole_lines(data) for path, data in after.items()}
    assert kills >= 4
    assert all(after[path].startswith(data) for path, data in kept.items()), "finished steps stay, byte for byte"
    assert len(after) == 10
    lines = [[json.loads(line) for line in data.decode().splitlines()] for data in after.values()]
    assert [len(found) for found in lines] == [len(STEPS)] * 10
    last = [found[-1]["step"]["metadata"] for found in lines]
    assert all(step["reward"] == 1.0 and step["info"]["verdict"]["passed"] for step in last)
    told = [part for found in lines for line in found for part in line["step"]["metadata"]["info"].get("retraced", [])]
    assert {part["step"] for part in told} <= {0, 3}, "a clock and the seconds that tests took"
    assert told, "the clock of step 0 differs, and that is reported"


# ---------------------------------------------------------------------------------- the example, and other people's tools


def test_the_toolkits_first_example_runs_on_an_instance(rows_file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(instances.VARIABLE, str(rows_file))
    limited = functools.partial(sonde.SweBenchEnv, step_limit=3, max_output_tokens=5)
    swebench_env = types.SimpleNamespace(swebench_verified_tasks=sonde.swebench_verified_tasks, SweBenchEnv=limited)

    async def main():
        # Load model
        model = sonde.load("tiny-gpt2")
        client = HookedTransformerLLMClient(model=model, model_name="gpt2-small")

        # Run agent and capture activations
        tasks = swebench_env.swebench_verified_tasks()[:1]

        async with swebench_env.SweBenchEnv(tasks=tasks) as env:
            with ActivationCapture(model, "blocks.*.hook_resid_post") as capture:
                ts = await env.reset()
                while not ts.last():
                    capture.start_step()
                    action = await client(ts.observation)
                    capture.end_step()
                    ts = await env.step(action)

            # Analyze trajectory
            trajectory = capture.get_trajectory()
            print(f"Captured {len(trajectory)} steps")
            trajectory.save("./activations/episode_001")

    asyncio.run(main())
    assert capsys.readouterr().out == "Captured 3 steps\n"
    assert len(sonde.TrajectoryActivations.load("./activations/episode_001")) == 3


def test_the_command_plays_says_what_it_takes_and_exports_predictions_that_the_harness_reads(
    rows_file, tmp_path, graded
):
    from typer import testing

    call = functools.partial(testing.CliRunner(env={"COLUMNS": "300"}).invoke, main.app)
    runs = ["--runs", str(tmp_path / "runs")]
    words = [
        "play",
        "swebench:sonde/lru",
        "--tasks",
        str(rows_file),
        "-m",
        "tiny-gpt2",
        "-n",
        "1",
        "--max-new-tokens",
        "4",
    ]
    done = call([*words, *runs, "--run", "it", "-o", "step_limit=2"])
    assert done.exit_code == 0, done.output
    assert "1 containers at once, each with at most 4 GiB of memory" in done.output
    assert "1 of 1 images are here" in done.output
    out = tmp_path / "predictions.jsonl"
    assert call(["runs", "export", "it", *runs, "--to", "swebench", "--out", str(out)]).exit_code == 0
    assert json.loads(out.read_text()) == {
        "instance_id": "sonde__lru-1", "model_name_or_path": "tiny-gpt2", "model_patch": "",
    }  # fmt: skip
    read = "import sys, json; from swebench.harness import utils; print(json.dumps(utils.get_predictions_from_file(*sys.argv[1:])))"
    line = [graded, "-c", read, str(out), str(rows_file), "test"]
    found = subprocess.run(line, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.splitlines()[-1]
    assert json.loads(found) == [json.loads(out.read_text())]
    failed = call(["runs", "export", "it", *runs, "--to", "swebench", "--out", str(tmp_path / "x.csv")])
    assert "reads predictions from .json or .jsonl files" in failed.output
    missing = call(["play", "swebench:nobody/it", "--tasks", str(rows_file), "-m", "tiny-gpt2"])
    assert (missing.exit_code, "there is no task 'nobody/it'" in missing.output) == (2, True)


@pytest.mark.skipif(importlib.util.find_spec("minisweagent") is None, reason="mini-swe-agent is not installed")
def test_mini_swe_agent_works_in_its_own_docker_environment(tasks, tmp_path, monkeypatch):
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples" / "mini_swe_agent.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    async def play(said):
        async with mediated.MediatedEnvironment(
            example.repairing_instance(judge.Judge(), step_limit=6), [tasks["roman"]]
        ) as env:
            now = await env.reset()
            for text in said:
                now = await env.step(bash_agent.answer(commands.fenced(text)))
            return now

    now = asyncio.run(play(["pwd && ls", REPAIR, example.PATCH]))
    assert (now.last(), now.reward) == (True, 1.0)
    assert any("/testbed" in str(message["content"]) for message in now.observation.messages)
    now = asyncio.run(play([example.PATCH]))
    assert (now.last(), now.reward) == (True, 0.0)
