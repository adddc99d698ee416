"""PyPI's mini-swe-agent, unmodified, plays an embedded task through the mediated client."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.agents import mediated
from sonde.agents.code import bash_agent, commands, tasks

EXAMPLE = Path(__file__).parents[2] / "examples" / "mini_swe_agent.py"
TASK = tasks.load_task("ledger-transfer")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("minisweagent") is None or importlib.util.find_spec("dotenv") is None,
    reason="mini-swe-agent is not installed: pip install --no-deps mini-swe-agent && pip install python-dotenv",
)


@pytest.fixture
def example(tmp_path, monkeypatch):
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    spec = importlib.util.spec_from_file_location("mini_swe_agent_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def play(example, said, step_limit=10):
    """The last step of an episode with the given commands, and the observations."""
    env = mediated.MediatedEnvironment(example.repairing(step_limit), [TASK])
    seen = []
    async with env:
        now = await env.reset()
        for text in said:
            seen.append(now.observation)
            now = await env.step(bash_agent.answer(text))
            if now.last():
                break
    return now, seen


async def test_the_reference_commands_earn_the_reward(example):
    repair = bash_agent.ReferenceAgent(TASK).commands[:-1]
    now, seen = await play(example, map(commands.fenced, ["ls bank", *repair, example.DONE]))
    assert (now.last(), now.reward) == (True, 1.0)
    assert len(seen) == len(repair) + 2
    assert [message["role"] for message in seen[0].messages] == ["system", "user"]
    assert TASK.issue in seen[0].messages[1]["content"]
    assert seen[1].messages[-1]["content"] == "[Exit code 0]\n__init__.py\naccount.py\nerrors.py\nledger.py"


async def test_doing_nothing_earns_nothing(example):
    now, _ = await play(example, [commands.fenced(example.DONE)])
    assert (now.last(), now.reward) == (True, 0.0)


async def test_a_message_without_a_command_is_told_so_and_the_agents_own_step_limit_holds(example):
    now, seen = await play(example, ["Hm."] * 9, step_limit=2)
    assert (now.last(), now.reward, len(seen)) == (True, 0.0, 2)
    assert "no command" in seen[1].messages[-1]["content"]


async def test_closing_in_the_middle_of_a_command_ends_the_agent(example):
    import asyncio

    env = mediated.MediatedEnvironment(example.repairing(5), [TASK])
    await env.reset()
    step = asyncio.ensure_future(env.step(bash_agent.answer(commands.fenced("sleep 25"))))
    await asyncio.sleep(0.5)
    await env.close()
    with pytest.raises(Exception, match="reset or closed"):
        await step


def test_the_example_runs_on_a_tiny_model(tmp_path):
    line = [sys.executable, "-W", "error", str(EXAMPLE), "--model", "tiny-gpt2", "--steps", "2", "--out", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "2 steps of mini-swe-agent recorded" in done.stdout
    assert str(tmp_path) in done.stdout
