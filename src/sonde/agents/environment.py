"""What every environment of Sonde is built on: tasks, seeded choice, snapshots of what was seen, clean interruption.

A subclass says how an episode starts and how it answers an action; this class keeps the order of calls, counts steps,
cancels what runs when the episode is reset or closed, and hands out observations that nothing can change later.

    class Echo(TaskEnvironment):
        async def _start(self, task): return self.ask([{"role": "user", "content": task.text}])
        async def _act(self, action): return Outcome(self.ask([...]), reward=0.0, done=True)
"""

import abc
import asyncio
import collections
import copy
import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from sonde.core import errors, records

_episodes = itertools.count()


@runtime_checkable
class Task(Protocol):
    """Anything with an id."""

    @property
    def id(self) -> str:
        """Unique among the tasks of an environment."""
        ...


TaskT = TypeVar("TaskT", bound=Task)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an action.

    Attributes:
        observation: The next request; after the last action, the final state of the conversation.
        reward: For this action.
        done: Whether the episode is over.
        truncated: Over because a limit was reached, not because of how it went: the discount is then 1.
    """

    observation: records.LLMRequest
    reward: float
    done: bool = False
    truncated: bool = False


class TaskEnvironment(abc.ABC, Generic[TaskT]):
    """Plays tasks, one episode at a time, in an order that the seed fixes."""

    def __init__(self, tasks: Sequence[TaskT], *, seed: int | None = None) -> None:
        """Takes the tasks.

        Args:
            tasks: At least one, with different ids.
            seed: Fixes the order of the tasks, a new shuffle for each pass; None: as given.

        Raises:
            ValueError: No tasks, or two with one id.
        """
        self.tasks = list(tasks)
        if not self.tasks:
            raise ValueError("an environment needs at least one task: the selection is empty")
        repeated = [name for name, count in collections.Counter(self.task_ids).items() if count > 1]
        if repeated:
            raise ValueError(f"task ids must differ, got more than once: {repeated[:3]}")
        self.seed = seed
        self.task: TaskT | None = None
        self.step_count = 0
        self.actions: list[records.LLMResponse] = []
        self._episode = 0
        self._episode_id = ""
        self._over = True
        self._running: asyncio.Task[Any] | None = None

    @property
    def task_ids(self) -> list[str]:
        """The ids of all tasks, in the order given."""
        return [task.id for task in self.tasks]

    def task_of(self, episode: int) -> TaskT:
        """The task that the `episode`-th episode plays, by the seed alone."""
        turn, index = divmod(episode, len(self.tasks))
        if self.seed is None:
            return self.tasks[index]
        return random.Random(f"{self.seed}/{turn}").sample(self.tasks, len(self.tasks))[index]

    def seek(self, episode: int) -> None:
        """Makes the next `reset` start the `episode`-th episode."""
        if episode < 0:
            raise ValueError(f"episodes count from 0, got {episode}")
        self._episode = episode

    def with_tasks(self, tasks: Sequence[TaskT]) -> Self:
        """A new environment like this one for other tasks."""
        # A shallow copy keeps the settings; what belongs to an episode is made anew.
        other = copy.copy(self)
        TaskEnvironment.__init__(other, tasks, seed=self.seed)
        other._fresh()
        return other

    def with_task(self, task: TaskT | str) -> Self:
        """A new environment like this one for one task, given itself or by its id.

        Raises:
            ValueError: There is no such task.
        """
        if isinstance(task, str):
            found = next((one for one in self.tasks if one.id == task), None)
            if found is None:
                raise ValueError(f"no task {task!r}{errors.suggest(task, self.task_ids)}")
            task = found
        return self.with_tasks([task])

    async def reset(self) -> records.TimeStep[records.LLMRequest]:
        """Starts the next episode; whatever was running is cancelled first."""
        await self._cancel()
        task = self.task_of(self._episode)
        self._episode += 1
        self._begin(task)
        observation = await self._guarded(self._start(task))
        return records.TimeStep(records.StepType.FIRST, None, None, observation)

    async def step(self, action: records.LLMResponse) -> records.TimeStep[records.LLMRequest]:
        """Takes one action.

        Raises:
            EpisodeError: No episode is under way, or it was reset or closed meanwhile.
        """
        if self.task is None or self._over:
            raise errors.EpisodeError("no episode is under way: call reset() before step(), and again after the last")
        if self._running is not None:
            raise errors.EpisodeError("another step is under way: await it first")
        outcome: Outcome = await self._guarded(self._act(action))
        self.step_count += 1
        self.actions.append(action)
        self._over = outcome.done
        return records.TimeStep(
            records.StepType.LAST if outcome.done else records.StepType.MID,
            outcome.reward,
            0.0 if outcome.done and not outcome.truncated else 1.0,
            outcome.observation,
        )

    async def close(self) -> None:
        """Ends the episode and frees what it holds; may be called at any time, and twice."""
        await self._cancel()
        self.task, self._over = None, True

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes, whatever happened."""
        await self.close()

    def ask(
        self, messages: Sequence[Mapping[str, Any]], *, info: Mapping[str, Any] | None = None, **settings: Any
    ) -> records.LLMRequest:
        """An observation: a snapshot of the messages, with the task's and the episode's id.

        Args:
            messages: The whole conversation.
            info: What the environment has to say about the last action, such as a verdict and its reason.
            **settings: Further fields of the request.
        """
        assert self.task is not None
        metadata = {"task_id": self.task.id, "episode_id": self._episode_id, "info": _frozen(dict(info or {}))}
        return records.LLMRequest(
            messages=tuple(_frozen(message) for message in messages), metadata=MappingProxyType(metadata), **settings
        )

    @abc.abstractmethod
    async def _start(self, task: TaskT) -> records.LLMRequest:
        """Begins an episode of a task."""

    @abc.abstractmethod
    async def _act(self, action: records.LLMResponse) -> Outcome:
        """Takes one action of the episode under way."""

    def _begin(self, task: TaskT) -> None:
        """Makes a task the one that is played, under an episode id of its own."""
        self.task, self._episode_id = task, f"{task.id}/{next(_episodes)}"
        self.step_count, self.actions, self._over = 0, [], False

    async def _take_up(self, task_id: str) -> TaskT:
        """For `restore`: begins the task of a snapshot, with nothing done yet.

        Raises:
            EpisodeError: It is not here.
        """
        task = next((one for one in self.tasks if one.id == task_id), None)
        if task is None:
            near = errors.suggest(task_id, self.task_ids)
            raise errors.EpisodeError(f"the snapshot is of task {task_id!r}, which this environment has not{near}")
        await self._cancel()
        self._begin(task)
        return task

    async def _stop(self) -> None:
        """Frees what an episode holds: processes, folders, connections. Called before each reset and at close."""

    def _fresh(self) -> None:
        """Makes anew what belongs to an episode, after the settings were copied by `with_task`."""

    async def _cancel(self) -> None:
        running = self._running
        if running is not None and running is not asyncio.current_task():
            running.cancel()
            await asyncio.wait([running])
        self._running = None
        await self._stop()

    async def _guarded(self, work: Any) -> Any:
        """Runs something that a reset or close may cancel; whoever awaits it learns that in words."""
        running = self._running = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.cancelled():  # the caller was cancelled, so the work must be too
                running.cancel()
                await asyncio.wait([running])
                raise
            raise errors.EpisodeError("the episode was reset or closed while this step was under way") from None
        finally:
            if self._running is running:
                self._running = None


@runtime_checkable
class Snapshots(Protocol):
    """An environment whose state can be put away and taken up again, in another instance too.

    A snapshot says what the episode is, and nothing of the process it was taken in: what goes on from it has an episode
    id of its own.
    """

    def snapshot(self) -> dict[str, Any]:
        """The state of the episode under way, as JSON data."""
        ...

    async def restore(self, snapshot: Mapping[str, Any]) -> records.TimeStep[records.LLMRequest]:
        """Goes on from a snapshot; returns the observation it was taken at."""
        ...


def _frozen(value: Any) -> Any:
    """A deep, read-only copy of JSON-like data."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return value


class SpokenEnvironment(TaskEnvironment[TaskT]):
    """An environment whose state follows from what was said: a snapshot is that, and restoring says it again.

    A subclass empties `_said` when an episode starts, and adds what it reads to it.
    """

    _said: list[str]

    def snapshot(self) -> dict[str, Any]:
        """The episode under way as JSON data.

        Raises:
            EpisodeError: No episode is under way.
        """
        if self.task is None:
            raise errors.EpisodeError("no episode is under way: call reset() before snapshot()")
        return {"task_id": self.task.id, "episode": self._episode, "said": list(self._said)}

    async def restore(self, snapshot: Mapping[str, Any]) -> records.TimeStep[records.LLMRequest]:
        """Goes on from a snapshot; returns what was to be seen when it was taken.

        Raises:
            EpisodeError: The snapshot is of a task that this environment has not.
        """
        task = await self._take_up(snapshot["task_id"])
        self.seek(snapshot["episode"])
        now = records.TimeStep(records.StepType.FIRST, None, None, await self._start(task))
        for text in snapshot["said"]:
            now = await self.step(records.LLMResponse(data=(records.TextData(text),), usage=records.Usage(0, 0)))
        return now
