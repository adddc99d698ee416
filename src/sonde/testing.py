"""A small scripted environment to try things on: real requests, real rewards, no tasks to install.

    tasks = sonde.testing.scripted_tasks()
    async with ScriptedEnvironment(tasks[:1]) as env:
        ts = await env.reset()

The user's turns of a task are fixed; the reward is a property of what the model wrote, so that interventions can move
it. Observations are snapshots: nothing that happens later changes them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

from sonde.core import errors, records

VOWELS = frozenset("aeiouAEIOU")


def vowel_share(text: str) -> float:
    """Share of letters that are vowels: a reward any text has and any intervention can move."""
    letters = [letter for letter in text if letter.isalpha()]
    return sum(letter in VOWELS for letter in letters) / len(letters) if letters else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class ScriptedTask:
    """One scripted episode.

    Attributes:
        id: Its name.
        turns: What the user says, one per step.
        system_prompt: The rules.
        score: From a response's text to the reward of its step.
        success: Whether the episode counts as one to learn from.
    """

    id: str
    turns: tuple[str, ...]
    system_prompt: str = "You are a helpful assistant. Answer in one short sentence."
    score: Callable[[str], float] = vowel_share
    success: bool = True


def scripted_tasks() -> list[ScriptedTask]:
    """Three tasks: two in the manner of code repair, one of small talk."""
    return [
        ScriptedTask(
            "fix-parser",
            (
                "The test in tests/test_parser.py fails with ValueError. What do you look at first?",
                "$ cat src/parser.py\ndef parse(text):\n    return int(text)\nWhat is wrong?",
                "$ pytest\nFAILED tests/test_parser.py::test_empty - ValueError: invalid literal\nWhat now?",
                "All tests pass. Say what you changed.",
            ),
        ),
        ScriptedTask(
            "missing-file",
            (
                "Run the script in tools/build.sh.",
                "$ bash tools/build.sh\nbash: tools/build.sh: No such file or directory\nWhat do you do?",
                "There is tools/make.sh. Go on.",
            ),
            success=False,
        ),
        ScriptedTask("small-talk", ("Name a colour.", "Name another one.", "Which one do you like better?")),
    ]


class ScriptedEnvironment:
    """Plays tasks one after the other, one episode each."""

    def __init__(self, tasks: Sequence[ScriptedTask] | None = None, *, max_output_tokens: int = 16) -> None:
        """Takes the tasks to play.

        Args:
            tasks: Tasks; `scripted_tasks()` if left out.
            max_output_tokens: What the requests ask for.

        Raises:
            ValueError: There are no tasks.
        """
        self.tasks = list(scripted_tasks() if tasks is None else tasks)
        if not self.tasks:
            raise ValueError("an environment needs at least one task")
        self.max_output_tokens = max_output_tokens
        self.task: ScriptedTask | None = None
        self._next = 0
        self._episode = 0
        self._messages: list[dict[str, Any]] = []

    def with_task(self, task: ScriptedTask) -> "ScriptedEnvironment":
        """The same environment for one task."""
        return ScriptedEnvironment([task], max_output_tokens=self.max_output_tokens)

    async def reset(self) -> records.TimeStep[records.LLMRequest]:
        """Starts the next task."""
        self.task = self.tasks[self._next % len(self.tasks)]
        self._next += 1
        self._episode += 1
        self._messages = [{"role": "user", "content": self.task.turns[0]}]
        return records.TimeStep(records.StepType.FIRST, None, None, self._observation())

    async def step(self, action: records.LLMResponse) -> records.TimeStep[records.LLMRequest]:
        """Takes the model's answer and says the next turn.

        Raises:
            RequestError: Before `reset`, or after the episode ended.
        """
        if self.task is None:
            raise errors.RequestError("call reset() before step(): no episode is under way")
        text = "".join(part.content for part in action.data)
        self._messages.append({"role": "assistant", "content": text})
        done = sum(message["role"] == "user" for message in self._messages)
        last = done >= len(self.task.turns)
        if not last:
            self._messages.append({"role": "user", "content": self.task.turns[done]})
        step = records.TimeStep(
            records.StepType.LAST if last else records.StepType.MID,
            self.task.score(text),
            0.0 if last else 1.0,
            self._observation(),
        )
        self.task = None if last else self.task
        return step

    async def close(self) -> None:
        """Ends the episode."""
        self.task = None

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        await self.close()

    def _observation(self) -> records.LLMRequest:
        assert self.task is not None
        episode = f"{self.task.id}/{id(self)}/{self._episode}"
        return records.LLMRequest(
            messages=tuple(MappingProxyType(dict(message)) for message in self._messages),
            system_prompt=self.task.system_prompt,
            max_output_tokens=self.max_output_tokens,
            metadata=MappingProxyType({"task_id": self.task.id, "episode_id": episode}),
        )
