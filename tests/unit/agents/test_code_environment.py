"""An episode of code repair: what is seen, what ends it, and what does not win it."""

import asyncio
import dataclasses

import pytest

import sonde
from sonde import testing
from sonde.agents.code import bash_agent, commands, environment, tasks
from sonde.agents.sandbox import base, choosing
from sonde.core import errors

ROMAN = tasks.load_task("roman")
BASKET = tasks.load_task("shared-basket")
REFERENCE = ROMAN.reference["roman.py"]


def says(command):
    return bash_agent.answer(commands.fenced(command))


def info_of(now):
    return now.observation.metadata["info"]


async def submitted(task, *actions):
    """The last step of an episode in which the agent runs commands and submits."""
    async with environment.CodeEnvironment([task]) as env:
        await env.reset()
        for action in actions:
            assert (await env.step(says(action))).reward == 0.0
        return await env.step(says("submit"))


async def test_the_agent_sees_the_issue_and_what_its_commands_say():
    async with environment.CodeEnvironment([ROMAN], max_output_tokens=99) as env:
        now = await env.reset()
        assert now.first()
        assert "```bash" in now.observation.system_prompt
        assert now.observation.max_output_tokens == 99
        assert ROMAN.issue in now.observation.messages[0]["content"]
        now = await env.step(says("ls; exit 3"))
        assert now.observation.messages[-1]["content"] == "[Exit code 3]\nroman.py\ntest_roman.py"
        told = {"command": "ls; exit 3", "exit_code": 3, "timed_out": False, "verdict": None}
        shown = "[Exit code 3]\nroman.py\ntest_roman.py"
        assert dict(info_of(now)) == {**told, "shown": shown, "tree": info_of(now)["tree"]}
        assert len(info_of(now)["tree"]) == 64
        before = now.observation.messages
        now = await env.step(says("python -m unittest 2>&1 | tail -1"))
        assert "FAILED" in now.observation.messages[-1]["content"]
        assert len(before) == 3


async def test_a_message_without_a_command_is_told_the_form_and_costs_a_step():
    async with environment.CodeEnvironment([ROMAN], step_limit=2) as env:
        await env.reset()
        now = await env.step(bash_agent.answer("I would like some tea."))
        assert "```bash" in now.observation.messages[-1]["content"]
        assert (info_of(now)["command"], env.step_count) == (None, 1)
        assert (await env.step(bash_agent.answer("\0" * 50))).last()


async def test_a_command_that_takes_too_long_is_stopped():
    async with environment.CodeEnvironment([ROMAN], limits=base.Limits(seconds=2.0)) as env:
        await env.reset()
        now = await env.step(says("sleep 60"))
        assert info_of(now)["timed_out"]
        assert info_of(now)["exit_code"] is None
        assert "Stopped after" in now.observation.messages[-1]["content"]
        assert "roman.py" in (await env.step(says("ls"))).observation.messages[-1]["content"]


async def test_at_the_step_limit_the_repository_is_judged_as_it_is():
    async with environment.CodeEnvironment([ROMAN], step_limit=2) as env:
        await env.reset()
        await env.step(says(bash_agent.written("roman.py", REFERENCE)))
        now = await env.step(says("ls"))
        assert (now.last(), now.reward, now.discount) == (True, 1.0, 1.0)
        assert info_of(now)["verdict"]["passed"]
        with pytest.raises(errors.EpisodeError, match="reset"):
            await env.step(says("ls"))


async def test_a_submission_is_final_and_says_what_was_right():
    now = await submitted(ROMAN, "sed -i 's/in text)/in text.upper())/' roman.py")
    assert (now.last(), now.reward, now.discount) == (True, 0.0, 0.0)
    verdict = info_of(now)["verdict"]
    assert (verdict["passed"], verdict["right"], verdict["checks"], verdict["loaded"]) == (False, 1, 3, True)
    assert "MCMXCIV" not in now.observation.messages[-1]["content"]


EVERYTHING = """class Everything(str):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = str.__hash__
def read(text): return Everything()
def write(number): return Everything()
"""
NEUTRAL = """import unittest
for name in dir(unittest.TestCase):
    if name.startswith("assert"):
        setattr(unittest.TestCase, name, lambda *a, **k: None)
unittest.TestResult.wasSuccessful = lambda self: True
def read(text): return 0
def write(number): return ""
"""
FORGED = """import gc, json, os, sys
def read(text):
    marker = sys.argv[1] if len(sys.argv) > 1 else ""
    for fd in range(3, 20):
        for place in range(10):
            try: os.write(fd, f"{marker} {json.dumps([place, True])}\\n".encode())
            except OSError: break
    return True
write = read
"""
CHEATS = {
    "says that all went well at import": [bash_agent.written("roman.py", 'print("OK\\nRan 3 tests")\n')],
    "leaves with status 0 at import": [bash_agent.written("roman.py", "import sys\nprint('OK')\nsys.exit(0)\n")],
    "kills the interpreter at import": [bash_agent.written("roman.py", "import os\nos._exit(0)\n")],
    "returns what equals everything": [bash_agent.written("roman.py", EVERYTHING)],
    "takes the assertions out of unittest": [bash_agent.written("roman.py", NEUTRAL)],
    "forges the report": [bash_agent.written("roman.py", FORGED)],
    "brings its own unittest": [
        "mkdir unittest && echo 'print(\"OK\"); import sys; sys.exit(0)' > unittest/__init__.py",
        "cp unittest/__init__.py unittest.py; cp unittest.py json.py; cp unittest.py ast.py",
    ],
    "brings start-up files": [
        "for f in sitecustomize usercustomize conftest; do echo 'import os; os._exit(0)' > $f.py; done",
        "echo 'import os; os._exit(0)' > evil.pth; mkdir -p .judge-x; cp *.pth *.py .judge-x/",
    ],
    "brings tests of its own": ["mkdir hidden; echo 'x = 1' > hidden/test_hidden.py; echo 'x = 1' > test_hidden.py"],
    "changes the visible tests": [bash_agent.written("test_roman.py", "")],
    "fills the disk": ["head -c 400M /dev/zero > big; true"],
    "leaves no repository": ["rm -rf ./* ; rm -rf .[a-z]*"],
    "never ends": [bash_agent.written("roman.py", "while True: pass\n")],
    "floods the output": [bash_agent.written("roman.py", "import os\nos.write(1, b'OK' * 10**7)\n")],
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_an_agent_does_not_win_if_it(cheat):
    async with environment.CodeEnvironment([ROMAN], limits=base.Limits(seconds=5.0, disk=64 * 2**20)) as env:
        await env.reset()
        for action in CHEATS[cheat]:
            await env.step(says(action))
        now = await env.step(says("submit"))
        assert (now.last(), now.reward) == (True, 0.0)
        assert not info_of(now)["verdict"]["passed"]


@pytest.mark.parametrize("cheat", ["brings its own unittest", "brings start-up files"])
async def test_a_true_repair_wins_whatever_lies_beside_it(cheat):
    now = await submitted(ROMAN, *CHEATS[cheat], bash_agent.written("roman.py", REFERENCE))
    assert now.reward == 1.0


async def test_the_agent_cannot_find_the_hidden_tests():
    async with environment.CodeEnvironment([ROMAN]) as env:
        await env.reset()
        now = await env.step(
            says("find . -name '*hidden*' -o -name '.judge*'; ls -A | wc -l; grep -r MCMXCIV . | wc -l")
        )
        assert now.observation.messages[-1]["content"] == "[Exit code 0]\n2\n0"


async def test_every_episode_has_a_sandbox_of_its_own_and_reset_closes_the_old_one():
    opened = []

    class Recorded:
        def __init__(self, **options):
            self.inner = choosing.open_sandbox(**options)

        async def __aenter__(self):
            opened.append(await self.inner.__aenter__())
            return opened[-1]

        async def __aexit__(self, *error):
            return await self.inner.__aexit__(*error)

    env = environment.CodeEnvironment([ROMAN], sandbox=Recorded, check=False)
    await env.reset()
    await env.step(says("touch mark"))
    now = await env.reset()
    assert len(opened) == 2
    with pytest.raises(errors.SandboxError, match="closed"):
        await opened[0].run("true")
    now = await env.step(says("ls"))
    assert "mark" not in now.observation.messages[-1]["content"]
    await env.close()
    await env.close()
    with pytest.raises(errors.SandboxError, match="closed"):
        await opened[1].run("true")


async def test_reset_in_the_middle_of_a_command_ends_it():
    async with environment.CodeEnvironment([ROMAN, BASKET]) as env:
        await env.reset()
        step = asyncio.ensure_future(env.step(says("sleep 60")))
        await asyncio.sleep(0.2)
        now = await env.reset()
        assert now.observation.metadata["task_id"] == BASKET.id
        with pytest.raises(errors.EpisodeError, match="reset or closed"):
            await step


PASSING = {**ROMAN.repo, "test_roman.py": "import unittest\nclass T(unittest.TestCase):\n  def test_x(self): pass\n"}
FAULTS = {
    "no visible test fails": {"repo": PASSING},
    "hidden tests cannot be imported": {"hidden": {"t.py": "import nowhere\n" + ROMAN.hidden["test_hidden.py"]}},
    "hidden tests pass before the repair": {"repo": {**ROMAN.repo, "roman.py": REFERENCE}, "hidden": ROMAN.hidden},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_task_that_cannot_be_played_is_named_at_reset(fault):
    task = dataclasses.replace(ROMAN, id="broken", **FAULTS[fault])
    if "pass before" in fault:  # the visible test fails for another reason
        task = dataclasses.replace(task, repo={**task.repo, "test_other.py": "import nowhere"})
    async with environment.CodeEnvironment([task]) as env:
        with pytest.raises(errors.EpisodeError, match="task 'broken'") as caught:
            await env.reset()
    assert fault in str(caught.value)


def test_nonsense_settings_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        environment.CodeEnvironment(step_limit=0)
    with pytest.raises(TypeError, match="unknown options"):
        environment.CodeEnvironment(steps=3)
    with pytest.raises(errors.SandboxError, match="no sandbox 'bubblewarp'"):
        environment.CodeEnvironment(sandbox="bubblewarp")
    assert len(environment.CodeEnvironment().tasks) == len(tasks.load_tasks())


async def test_the_agent_loop_works_outside_an_environment():
    async with choosing.open_sandbox(files=dict(ROMAN.repo)) as sandbox:
        transcript = await bash_agent.BashAgent(bash_agent.ReferenceAgent(ROMAN), sandbox).run(ROMAN.issue)
        assert (await sandbox.get("roman.py")).decode() == REFERENCE
    assert transcript.submitted
    assert [turn.command == "submit" for turn in transcript.turns] == [False, True]
    assert [message["role"] for message in transcript.messages] == ["user", "assistant", "user", "assistant"]


async def test_the_agent_loop_ends_at_its_step_limit():
    class Talker:
        async def __call__(self, request):
            return bash_agent.answer("Hm.")

    async with choosing.open_sandbox() as sandbox:
        transcript = await bash_agent.BashAgent(Talker(), sandbox, step_limit=3).run("Do something.")
    assert (transcript.submitted, len(transcript.turns)) == (False, 3)
    assert all(turn.command is None and turn.result is None for turn in transcript.turns)


async def played(*commands):
    """The steps of an episode in which the agent runs commands and submits."""
    client = testing.ScriptedClient([f"Now:\n```bash\n{command}\n```" for command in (*commands, "submit")])
    trajectory = await sonde.run_episode(environment.CodeEnvironment([ROMAN]), client)
    return trajectory.moments


async def test_an_episode_is_taken_up_by_its_commands_and_what_differs_is_reported():
    moments = await played("ls", "date +%N > .git; cat .git", bash_agent.written("roman.py", REFERENCE))
    async with environment.CodeEnvironment([ROMAN]) as env:
        now = await env.retrace(moments[:3])
        assert [dict(one) for one in now.observation.messages] == [dict(one) for one in moments[3].observation.messages]
        assert env.step_count == 3
        now = await env.step(says("submit"))
        assert now.reward == 1.0
        (different,) = info_of(now)["retraced"]
        assert (different["step"], different["shown"] != moments[1].info["shown"]) == (1, True)


async def test_an_episode_whose_files_differ_is_not_taken_up():
    moments = await played("ls", "date +%N > clock")
    async with environment.CodeEnvironment([ROMAN]) as env:
        with pytest.raises(errors.EpisodeError, match="step 1 left other files"):
            await env.retrace(moments[:2])
        with pytest.raises(errors.EpisodeError, match="shows something else at step 0"):
            await env.with_task(ROMAN).with_tasks([BASKET]).retrace(moments[:1])
