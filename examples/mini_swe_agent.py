"""An agent from elsewhere, unmodified, looked into: PyPI's `mini-swe-agent` repairs an embedded task or a SWE-bench instance.

pip install mini-swe-agent
python examples/mini_swe_agent.py --model smollm2-135m-instruct --task roman --out out/mini
python examples/mini_swe_agent.py --model smollm2-135m-instruct --swebench verified.jsonl --task pallets__flask-5014

Its agent class takes a model and an environment. The model here asks a mediated client, so that every request of the
agent becomes a step. For an embedded task the environment here runs its commands in a sandbox; for an instance it is
mini-swe-agent's own Docker environment, and the patch that it submits is judged. To save the weight of packages that are not
used here: pip install --no-deps mini-swe-agent && pip install python-dotenv
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import sonde
from sonde.agents import mediated
from sonde.agents.code import commands, judging, tasks
from sonde.agents.code.swebench import instances
from sonde.agents.code.swebench import judge as judges
from sonde.agents.sandbox import choosing

# Importing the package greets, and makes a folder for its settings: quietly, and not among the user's own.
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", tempfile.mkdtemp())
try:
    from minisweagent import exceptions
    from minisweagent.agents import default
    from minisweagent.environments import docker
except ImportError:
    sys.exit("this example needs the package mini-swe-agent: pip install mini-swe-agent")

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SYSTEM = "You repair a small Python repository. Write exactly one command in a ```bash block in every message."
PATCH = f"{DONE} && git add -A && git diff --cached HEAD"
INSTANCE = "Solve this issue:\n\n{{task}}\n\nWhen you are done, run: "


class Model:
    """What mini-swe-agent takes for a model: it asks whoever steps the environment."""

    config = None

    def __init__(self, client):
        self.client = client

    def query(self, messages, **options):
        asked = [{"role": message["role"], "content": message["content"]} for message in messages]
        response = self.client.call(sonde.LLMRequest(messages=asked))
        command = commands.read(response.text)
        said = {"role": "assistant", "content": response.text, "extra": {"actions": [{"command": command.text}]}}
        if not command.text:
            raise exceptions.FormatError(said, {"role": "user", "content": command.problem})
        return said

    def format_message(self, **fields):
        return fields

    def format_observation_messages(self, message, outputs, template_vars=None):
        return [{"role": "user", "content": output.get("shown") or seen(output)} for output in outputs]

    def get_template_vars(self, **fields):
        return fields

    def serialize(self):
        return {}


def seen(output):
    """What the agent sees of an output of mini-swe-agent's own environment."""
    return f"[Exit code {output['returncode']}]\n{output['output']}{output['exception_info']}"[:10_000]


class Shell:
    """What mini-swe-agent takes for an environment: commands run in a sandbox of Sonde."""

    config = None

    def __init__(self, client, sandbox):
        self.client, self.sandbox = client, sandbox

    def execute(self, action, cwd=""):
        result = self.client.wait(self.sandbox.run(action["command"]))
        first = result.output.strip().split("\n")[0]
        if result.exit_code == 0 and first == DONE.removeprefix("echo "):
            raise exceptions.Submitted({"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}})
        return {"output": result.output, "returncode": result.exit_code, "shown": commands.shown(result)}

    def get_template_vars(self, **fields):
        return fields

    def serialize(self):
        return {}


def run_agent(client, shell, issue, step_limit, done):
    """Runs mini-swe-agent until it submits; what it hands in."""
    limits = {"step_limit": step_limit, "cost_limit": 0.0, "max_consecutive_format_errors": 0}
    texts = {"system_template": SYSTEM, "instance_template": INSTANCE + done}
    return default.DefaultAgent(Model(client), shell, **texts, **limits).run(issue).get("submission", "")


def repairing(step_limit):
    """An agent for MediatedEnvironment: mini-swe-agent works, hidden tests give the reward."""

    def work(client, sandbox, issue):
        return run_agent(client, Shell(client, sandbox), issue, step_limit, DONE)

    async def repair(client, task):
        async with choosing.open_sandbox(files=dict(task.repo)) as sandbox:
            await mediated.in_thread(work, client, sandbox, task.issue)
            verdict = await judging.judge(sandbox, task)
            return float(verdict.passed)

    return repair


def repairing_instance(judge, step_limit):
    """The same for SWE-bench's instances, in mini-swe-agent's own Docker environment; the patch it submits is judged."""

    def work(client, task):
        settings = ["--rm", "--network", "none"]
        shell = docker.DockerEnvironment(image=judge.image_of(task), cwd="/testbed", run_args=settings)
        try:
            return run_agent(client, shell, task.problem_statement, step_limit, PATCH)
        finally:
            subprocess.run(["docker", "rm", "--force", shell.container_id], capture_output=True, check=False)
            shell.container_id = None

    async def repair(client, task):
        verdict = await judge.judge(task, await mediated.in_thread(work, client, task))
        return float(verdict.passed)

    return repair


def chosen(options):
    """The agent and its task."""
    if options.swebench is None:
        return repairing(options.steps), tasks.load_task(options.task)
    found = {task.id: task for task in instances.swebench_verified_tasks(options.swebench)}
    return repairing_instance(judges.Judge(), options.steps), found[options.task]


async def main(options):
    model = sonde.load(options.model)
    client = sonde.HookedTransformerLLMClient(
        model, max_new_tokens=options.tokens, generation_kwargs={"temperature": 0.7}, context_policy="drop_oldest_turns"
    )
    capture = sonde.ActivationCapture(model, "blocks.*.hook_resid_post", positions="last_prompt")
    agent, task = chosen(options)
    env = mediated.MediatedEnvironment(agent, [task])
    lines = []
    async with env:
        with capture:
            now = await env.reset()
            while not now.last():
                capture.start_step()
                action = await client(now.observation)
                capture.end_step()
                now = await env.step(action)
                lines.append({"step": action.step, "text": action.text, "reward": now.reward})
                print(f"step {action.step}: {action.usage.prompt_tokens} prompt tokens: {action.text[:70]!r}")
    trajectory = capture.get_trajectory()
    model.close()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "steps.json").write_text(json.dumps(lines, indent=1))
    print(
        f"{len(trajectory)} steps of mini-swe-agent recorded at {len(trajectory.site_names)} sites, reward {now.reward}"
    )
    print(f"what it said: {options.out / 'steps.json'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-gpt2", help="tiny-gpt2 (random weights) or smollm2-135m-instruct")
    parser.add_argument("--task", default="roman")
    parser.add_argument("--swebench", help="a file or folder of SWE-bench's tasks, or a dataset; --task is then an id")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("out/mini"))
    asyncio.run(main(parser.parse_args()))
