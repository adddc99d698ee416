"""Environments in which an agent repairs a repository with nothing but a shell: one episode per task, judged at its end.

    async with CodeEnvironment() as env:
        now = await env.reset()
        while not now.last():
            now = await env.step(await client(now.observation))
        now.reward                                   # 1.0 if all hidden tests pass, else 0.0

Every message of the agent holds one command (see `commands`); the next observation shows what it did. `submit`, or the
step limit, ends the episode. `observation.metadata["info"]` says for each step: `command`, `exit_code`, `timed_out`,
`shown` (what the agent sees of it), `tree` (a hash of all files after it), and at the end `verdict`.

An interrupted or forked episode is taken up by running its commands once more in a fresh sandbox: that gives back the
files, and nothing else there is, since every command's processes end with it. The hash says whether the files are the
same; what the agent was shown stays as it was recorded, and outputs that differ are reported in `info["retraced"]`.

Each episode has a sandbox of its own. Costs, measured on two cores: 0.5 s once a process, 0.5 s for the first episode of
a task, which is checked first, then 50 ms to start and per command what the command takes, plus 50 ms.
"""

import abc
import contextlib
import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from sonde.agents import environment, history, reading
from sonde.agents.code import commands, judging, tasks
from sonde.agents.sandbox import base, choosing
from sonde.core import errors, records

SYSTEM_PROMPT = f"""You repair a small Python repository with shell commands.

In every message write exactly one command in a block like this:

```bash
ls
```

You then see its output. Every command runs in a new shell in the folder of the repository; files stay, `cd` does not. \
To write a file use `cat > file.py <<'EOF'`. Run the tests with `python -m unittest`. When the issue is solved, write a \
block that says only `{commands.SUBMIT}`. Tests that you cannot see then decide."""

_OPTIONS = {"seed": None, "system_prompt": SYSTEM_PROMPT, "max_output_tokens": None, "check": True}
_LEFT_OUT = ".git", "__pycache__", ".pytest_cache"
_HASH = (
    rf"find . \( {' -o '.join(f'-name {name}' for name in _LEFT_OUT)} \) -prune -o -type f -print0 | "
    "LC_ALL=C sort -z | xargs -0r sha256sum | sha256sum"
)
TaskT = TypeVar("TaskT", bound=environment.Task)


class Verdict(Protocol):
    """What came of judging: a dataclass that says at least this."""

    @property
    def passed(self) -> bool:
        """Whether the work is worth the reward."""
        ...


class ShellEnvironment(environment.TaskEnvironment[TaskT], Generic[TaskT]):
    """An agent with a shell in a sandbox of its own; a subclass says what it finds there and who judges."""

    def __init__(
        self, tasks: Sequence[TaskT], *, step_limit: int = 30, limits: base.Limits | None = None, **options: Any
    ) -> None:
        """Takes the tasks.

        Args:
            tasks: At least one.
            step_limit: After so many messages the work is judged as it is.
            limits: For each command.
            **options: See `CodeEnvironment`.

        Raises:
            ValueError: There are no tasks, or the step limit is below 1.
        """
        if set(options) - set(_OPTIONS):
            raise TypeError(f"unknown options {sorted(set(options) - set(_OPTIONS))}; known: {sorted(_OPTIONS)}")
        if step_limit < 1:
            raise ValueError(f"step_limit must be at least 1, got {step_limit}")
        chosen = {**_OPTIONS, **options}
        super().__init__(tasks, seed=chosen["seed"])
        self.step_limit = step_limit
        self.limits = limits or base.Limits()
        self.system_prompt: str = chosen["system_prompt"]
        self.max_output_tokens: int | None = chosen["max_output_tokens"]
        self.check: bool = chosen["check"]
        self._fresh()

    def _fresh(self) -> None:
        self._held = contextlib.AsyncExitStack()
        self._sandbox: base.Sandbox | None = None
        self._messages: list[dict[str, str]] = []
        self._notes: dict[str, Any] = {}

    @abc.abstractmethod
    def _opened(self, task: TaskT) -> contextlib.AbstractAsyncContextManager[base.Sandbox]:
        """The sandbox to work in, as the agent finds it."""

    @abc.abstractmethod
    def _told(self, task: TaskT) -> str:
        """What the agent is told first."""

    @abc.abstractmethod
    async def _judged(self, sandbox: base.Sandbox, task: TaskT) -> Verdict:
        """What the work is worth."""

    def _entered(self, command: str) -> str:
        """A command as the shell gets it."""
        return command

    async def _tree(self, sandbox: base.Sandbox) -> str:
        """A hash of the files as they are now; empty if there is none to be had."""
        result = await sandbox.run(_HASH)
        found = re.match(r"([0-9a-f]{64})  -\n?$", result.output)
        return found[1] if found and result.exit_code == 0 else ""

    async def _prove(self, task: TaskT) -> None:
        """Sees that the task can be played, before its first episode."""

    async def _start(self, task: TaskT) -> records.LLMRequest:
        await self._prove(task)
        self._sandbox = await self._held.enter_async_context(self._opened(task))
        self._messages = [{"role": "user", "content": self._told(task)}]
        return self._asked({})

    async def _act(self, action: records.LLMResponse) -> environment.Outcome:
        assert self._sandbox is not None
        assert self.task is not None
        text = reading.text_of(action)
        command = commands.read(text)
        said, info = await self._done(command)
        done = command.submits or self.step_count + 1 >= self.step_limit
        verdict: Any = await self._judged(self._sandbox, self.task) if done else None
        if verdict is not None:
            said = f"{said}\n\nThe work is over: the hidden tests {'pass' if verdict.passed else 'fail'}.".lstrip()
        self._messages += [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
        info |= {"shown": said, "verdict": None if verdict is None else dataclasses.asdict(verdict), **self._notes}
        self._notes = {}
        reward = 1.0 if verdict is not None and verdict.passed else 0.0
        return environment.Outcome(self._asked(info), reward, done=done, truncated=done and not command.submits)

    async def _done(self, command: commands.Command) -> tuple[str, dict[str, Any]]:
        """Runs a command, if there is one; what the agent sees of it, and what is recorded."""
        assert self._sandbox is not None
        info: dict[str, Any] = {"command": command.text or None, "exit_code": None, "timed_out": False}
        if not command.text or command.submits:
            return command.problem, info
        result = await self._sandbox.run(self._entered(command.text))
        tree = await self._tree(self._sandbox)
        return commands.shown(result), {
            **info, "exit_code": result.exit_code, "timed_out": result.timed_out, "tree": tree,
        }  # fmt: skip

    async def retrace(self, past: Sequence[history.Moment]) -> records.TimeStep[records.LLMRequest]:
        """Starts the episode and does once more what was done in it; the agent sees what it saw then.

        Raises:
            EpisodeError: The task, or the files after a step, are not what they were.
        """
        now = await self.reset()
        history.check_same(0, past[0].observation, now.observation)
        different, info = [], {}
        for number, moment in enumerate(past):
            said, info = await self._done(commands.read(moment.text))
            was = moment.info
            if was.get("tree") and was["tree"] != info.get("tree"):
                raise errors.EpisodeError(
                    f"step {number} left other files than it did when it was played first: {moment.text[:200]!r} does not "
                    "repeat itself, so the episode cannot be taken up again"
                )
            shown = was.get("shown", said)
            if said != shown:
                different.append({"step": number, "shown": said})
            self._messages += [{"role": "assistant", "content": moment.text}, {"role": "user", "content": shown}]
            self.step_count += 1
            self.actions.append(moment.response())
        self._notes = {"retraced": different} if different else {}
        return records.TimeStep(records.StepType.MID, past[-1].reward, 1.0, self._asked({**past[-1].info}))

    async def _stop(self) -> None:
        held = self._held
        self._fresh()
        await held.aclose()

    def _asked(self, info: dict[str, Any]) -> records.LLMRequest:
        return self.ask(
            self._messages, info=info, system_prompt=self.system_prompt, max_output_tokens=self.max_output_tokens
        )


class CodeEnvironment(ShellEnvironment[tasks.CodeTask]):
    """Repositories to repair."""

    def __init__(
        self,
        tasks: Sequence[tasks.CodeTask] | None = None,
        *,
        sandbox: str | choosing.Factory = "auto",
        step_limit: int = 30,
        limits: base.Limits | None = None,
        **options: Any,
    ) -> None:
        """Takes the tasks.

        Args:
            tasks: The embedded ones if left out.
            sandbox: A kind of sandbox, or what opens one.
            step_limit: After so many messages the repository is judged as it is.
            limits: For each command.
            **options: `seed` fixes the order of tasks; `system_prompt`; `max_output_tokens` for the requests; `check`:
                whether a task is proven playable before its first episode, default True.

        Raises:
            ValueError: There are no tasks, or the step limit is below 1.
        """
        super().__init__(_embedded() if tasks is None else tasks, step_limit=step_limit, limits=limits, **options)
        self._open = choosing.choose(sandbox) if isinstance(sandbox, str) else sandbox
        self._proven: dict[int, Any] = {}  # by identity; holding a task keeps its identity its own

    def _opened(self, task: tasks.CodeTask) -> contextlib.AbstractAsyncContextManager[base.Sandbox]:
        return self._open(limits=self.limits, files=dict(task.repo))

    def _told(self, task: tasks.CodeTask) -> str:
        names = "\n".join(sorted(task.repo))
        return f"{task.title}\n\n{task.issue}\n\nFiles of the repository:\n{names}"

    async def _judged(self, sandbox: base.Sandbox, task: tasks.CodeTask) -> judging.Verdict:
        return await judging.judge(sandbox, task, limits=self.limits)

    async def _prove(self, task: tasks.CodeTask) -> None:
        """Sees that a visible test fails, and that the hidden ones load and do not pass already.

        Raises:
            EpisodeError: Names the task and what is wrong.
        """
        if not self.check or id(task) in self._proven:
            return
        async with self._opened(task) as sandbox:
            visible = await sandbox.run("python -m unittest")
            if visible.exit_code in (0, 5):
                raise errors.EpisodeError(
                    f"task {task.id!r}: no visible test fails before the repair; `python -m unittest` says: "
                    f"{visible.output[-300:].strip()}"
                )
            if visible.exit_code is None:
                raise errors.EpisodeError(f"task {task.id!r}: the visible tests do not end: {visible.note}")
            verdict = await self._judged(sandbox, task)
        if not verdict.loaded:
            raise errors.EpisodeError(f"task {task.id!r}: the hidden tests cannot be imported: {verdict.reason}")
        if verdict.passed:
            raise errors.EpisodeError(f"task {task.id!r}: the hidden tests pass before the repair")
        self._proven[id(task)] = task


def _embedded() -> list[tasks.CodeTask]:
    return tasks.load_tasks()
