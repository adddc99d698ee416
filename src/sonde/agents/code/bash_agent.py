"""Who repairs? An agent loop around any client, and two clients whose result is known beforehand.

    async with choosing.open_sandbox(files=task.repo) as sandbox:
        transcript = await BashAgent(client, sandbox, step_limit=20).run(task.issue)

`ReferenceAgent` makes the known repair and submits, `NoOpAgent` submits at once: an environment that is right rewards
every episode of the first and none of the second. A step costs one request and one command.
"""

import dataclasses
import shlex

from sonde.agents import reading
from sonde.agents.code import commands, environment, tasks
from sonde.agents.sandbox import base
from sonde.core import records


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One message of an agent and what came of it.

    Attributes:
        message: What the model wrote.
        command: What was run, or None.
        result: What it did, or None.
    """

    message: str
    command: str | None
    result: base.Result | None


@dataclasses.dataclass(frozen=True, slots=True)
class Transcript:
    """The work of an agent on one task.

    Attributes:
        messages: The conversation, system prompt left out.
        turns: One per message of the agent.
        submitted: Whether it ended the work itself, before the step limit.
    """

    messages: tuple[dict[str, str], ...]
    turns: tuple[Turn, ...]
    submitted: bool


class BashAgent:
    """Lets a model work in a sandbox, one fenced command per message."""

    def __init__(
        self,
        client: records.LLMClient,
        sandbox: base.Sandbox,
        *,
        step_limit: int = 30,
        system_prompt: str = environment.SYSTEM_PROMPT,
        max_output_tokens: int | None = None,
    ) -> None:
        """Takes the model and the place to work.

        Args:
            client: Answers the requests.
            sandbox: Runs the commands; it stays open, so that its files can be looked at afterwards.
            step_limit: Messages at most.
            system_prompt: The rules.
            max_output_tokens: What the requests ask for.
        """
        if step_limit < 1:
            raise ValueError(f"step_limit must be at least 1, got {step_limit}")
        self.client = client
        self.sandbox = sandbox
        self.step_limit = step_limit
        self.system_prompt = system_prompt
        self.max_output_tokens = max_output_tokens

    async def run(self, task_text: str) -> Transcript:
        """Works until the model submits or the step limit is reached."""
        messages = [{"role": "user", "content": task_text}]
        turns: list[Turn] = []
        for _ in range(self.step_limit):
            response = await self.client(
                records.LLMRequest(
                    messages=tuple(dict(message) for message in messages),
                    system_prompt=self.system_prompt,
                    max_output_tokens=self.max_output_tokens,
                )
            )
            text = reading.text_of(response)
            command = commands.read(text)
            messages.append({"role": "assistant", "content": text})
            if command.submits:
                turns.append(Turn(text, command.text, None))
                return Transcript(tuple(messages), tuple(turns), True)
            result = await self.sandbox.run(command.text) if command.text else None
            turns.append(Turn(text, command.text or None, result))
            said = commands.shown(result) if result is not None else command.problem
            messages.append({"role": "user", "content": said})
        return Transcript(tuple(messages), tuple(turns), False)


class ReferenceAgent:
    """A client that makes a task's known repair, one file per message, and submits."""

    def __init__(self, task: tasks.CodeTask) -> None:
        """Knows the task's reference."""
        self.commands = [*(written(path, text) for path, text in task.reference.items()), commands.SUBMIT]

    async def __call__(self, request: records.LLMRequest) -> records.LLMResponse:
        """The next command: which one follows from the conversation alone."""
        said = sum(message["role"] == "assistant" for message in request.messages)
        return answer(commands.fenced(self.commands[min(said, len(self.commands) - 1)]))


class NoOpAgent:
    """A client that submits at once."""

    async def __call__(self, request: records.LLMRequest) -> records.LLMResponse:
        """Submits."""
        return answer(commands.fenced(commands.SUBMIT))


def answer(text: str) -> records.LLMResponse:
    """A response that no model made."""
    return records.LLMResponse(data=[records.TextData(text)], usage=records.Usage(0, 0))


def written(path: str, text: str) -> str:
    """The shell command that writes a file."""
    end = "END_OF_FILE"
    while end in text:
        end += "_"
    text = text if text.endswith("\n") else text + "\n"
    return f"cat > {shlex.quote(path)} <<'{end}'\n{text}{end}"
