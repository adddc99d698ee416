"""A small scripted environment to try things on: real requests, real rewards, no tasks to install.

    tasks = sonde.testing.scripted_tasks()
    async with ScriptedEnvironment(tasks[:1]) as env:
        ts = await env.reset()

The user's turns of a task are fixed; the reward is a property of what the model wrote, so that interventions can move
it. Observations are snapshots: nothing that happens later changes them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde.agents import environment, reading
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


class ScriptedEnvironment(environment.TaskEnvironment[ScriptedTask]):
    """Plays tasks one after the other, one episode each."""

    def __init__(
        self, tasks: Sequence[ScriptedTask] | None = None, *, max_output_tokens: int = 16, seed: int | None = None
    ) -> None:
        """Takes the tasks to play.

        Args:
            tasks: Tasks; `scripted_tasks()` if left out.
            max_output_tokens: What the requests ask for.
            seed: Fixes the order of the tasks; None: as given.

        Raises:
            ValueError: There are no tasks.
        """
        super().__init__(scripted_tasks() if tasks is None else tasks, seed=seed)
        self.max_output_tokens = max_output_tokens
        self._messages: list[dict[str, Any]] = []

    def snapshot(self) -> dict[str, Any]:
        """The episode under way as JSON data: its task, and what the model wrote so far.

        Raises:
            EpisodeError: No episode is under way.
        """
        if self.task is None or self._over:
            raise errors.EpisodeError("no episode is under way: call reset() before snapshot()")
        return {
            "task_id": self.task.id,
            "episode": self._episode,
            "replies": [reading.text_of(action) for action in self.actions],
        }

    async def restore(self, snapshot: Mapping[str, Any]) -> records.TimeStep[records.LLMRequest]:
        """Goes on from a snapshot; returns what was to be seen when it was taken.

        Raises:
            EpisodeError: The snapshot is of a task that this environment has not, or does not fit it.
        """
        task = await self._take_up(snapshot["task_id"])
        self.seek(snapshot["episode"])
        replies = list(snapshot["replies"])
        if len(replies) >= len(task.turns):
            raise errors.EpisodeError(f"{len(replies)} replies in the snapshot, but {task.id!r} ends after them")
        now = records.TimeStep(records.StepType.FIRST, None, None, await self._start(task))
        for text in replies:
            now = await self.step(records.LLMResponse(data=(records.TextData(text),), usage=records.Usage(0, 0)))
        return now

    async def _start(self, task: ScriptedTask) -> records.LLMRequest:
        self._messages = [{"role": "user", "content": task.turns[0]}]
        return self._observation()

    async def _act(self, action: records.LLMResponse) -> environment.Outcome:
        assert self.task is not None
        text = reading.text_of(action)
        self._messages.append({"role": "assistant", "content": text})
        said = self.step_count + 1
        last = said >= len(self.task.turns)
        if not last:
            self._messages.append({"role": "user", "content": self.task.turns[said]})
        return environment.Outcome(self._observation(), self.task.score(text), done=last)

    def _fresh(self) -> None:
        self._messages = []

    def _observation(self) -> records.LLMRequest:
        assert self.task is not None
        return self.ask(self._messages, system_prompt=self.task.system_prompt, max_output_tokens=self.max_output_tokens)
