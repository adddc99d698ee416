"""One fenced block, one command; every other message gets an explanation and nothing is run."""

import hypothesis
import pytest
from hypothesis import strategies

from sonde.agents.code import commands
from sonde.agents.sandbox import base


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("```bash\nls\n```", "ls"),
        ("I look.\n\n```bash\nls -l\npwd\n```\nThat is all.", "ls -l\npwd"),
        ("```sh\nls\n```", "ls"),
        ("````bash\ncat <<'E'\n```\nE\n````", "cat <<'E'\n```\nE"),
        ("```python\nprint(1)\n```\n```bash\nls\n```", "ls"),
    ],
)
def test_the_block_is_the_command(message, text):
    assert commands.read(message) == commands.Command(text)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("", "no command"),
        ("ls", "no command"),
        ("```python\nprint(1)\n```", "no command"),
        ("```bash\nls\n```\n```bash\npwd\n```", "2 commands"),
        ("```bash\nls", "not closed"),
        ("```bash\n  \n```", "is empty"),
        ("```bash\nls\0\n```", "NUL byte"),
        ("```bash\n\ud800\n```", "cannot be run"),
        (f"```bash\n{'x' * 200_000}\n```", "at most"),
    ],
)
def test_any_other_message_is_told_the_form(message, said):
    command = commands.read(message)
    assert command.text == ""
    assert said in command.problem
    assert "```bash" in command.problem


@pytest.mark.parametrize(
    ("command", "submits"), [("submit", True), (" submit \n", True), ("submit now", False), ("ls\nsubmit", False)]
)
def test_only_a_block_that_says_nothing_else_submits(command, submits):
    assert commands.read(commands.fenced(command)).submits is submits


@hypothesis.given(strategies.text(alphabet="`abhs \n\t$", min_size=1))
def test_a_fenced_command_is_read_back(command):
    found = commands.read(commands.fenced(command))
    assert found.text == (command if command.strip() else "")


@hypothesis.given(strategies.text())
def test_no_message_is_too_strange_to_read(message):
    found = commands.read(message)
    assert bool(found.text) != bool(found.problem)


def test_the_agent_is_told_how_a_command_ended():
    assert commands.shown(base.Result("out\n", 1, False, False, 0.1)) == "[Exit code 1]\nout"
    assert "output cut" in commands.shown(base.Result("out", 0, False, True, 0.1))
    assert commands.shown(base.Result("", None, True, False, 30.0, "too long")) == "[Stopped after 30 s: too long]"
    assert commands.shown(base.Result("", None, False, False, 1.0, "no memory")) == "[Stopped: no memory]"
