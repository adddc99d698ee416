"""How does any agent become an environment? Its calls to a model are handed out as observations.

    async def agent(client, task):                      # anything that awaits a client; returns its reward
        response = await client(LLMRequest(messages=[{"role": "user", "content": task.text}]))
        return 1.0 if "yes" in response.text else 0.0

    async with MediatedEnvironment(agent, tasks) as env:
        now = await env.reset()                          # the agent's first request
        now = await env.step(await client(now.observation))

1. `reset` starts the agent with a client whose calls wait in a queue.
2. The call at the head of the queue is the observation; `step(response)` is its answer.
3. What the agent returns is the reward of the last step; None counts as 0.

An agent that blocks runs in a thread of its own (`in_thread=True`) and uses `client.call(request)`; one that must open
something asynchronous first awaits `in_thread(function, client, ...)` itself. Costs next to nothing beside what the agent
does.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from sonde.agents import environment, reading
from sonde.core import errors, records

GRACE = 10.0
"""Seconds that an agent has to end once it is cancelled."""

Agent = Callable[..., Any]
STEP_LIMIT = 100
TaskT = TypeVar("TaskT", bound=environment.Task)
ResultT = TypeVar("ResultT")


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    observation: records.LLMRequest
    answer: "asyncio.Future[records.LLMResponse]"


class MediatedClient:
    """The client that the agent gets: whoever steps the environment answers."""

    def __init__(self, observe: Callable[[records.LLMRequest], records.LLMRequest]) -> None:
        """Opens the queue; `observe` makes the snapshot of a request."""
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._calls: deque[_Call] = deque()
        self._waits: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._closed = False
        self.stuck = False

    async def __call__(self, request: records.LLMRequest) -> records.LLMResponse:
        """Asks, and waits for the answer. Once the episode has ended, the caller is cancelled."""
        if self._closed:
            raise asyncio.CancelledError("the episode is over")
        call = _Call(self._observe(request), self._loop.create_future())
        self._calls.append(call)
        self._changed.set()
        return await call.answer

    def call(self, request: records.LLMRequest) -> records.LLMResponse:
        """Asks from another thread, and blocks until the answer is there.

        Raises:
            EpisodeError: Called in the thread of the event loop, where it would wait for itself.
            CancelledError: The episode has ended. It passes `except Exception`, so that the agent really stops.
        """
        try:
            inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            inside = False
        if inside:
            raise errors.EpisodeError("client.call() blocks: use `await client(request)` here, or in_thread=True")
        return self.wait(self(request))

    def wait(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs something on the event loop from another thread, and blocks until it is done or the episode over.

        Raises:
            CancelledError: As for `call`.
        """
        try:
            return asyncio.run_coroutine_threadsafe(self._kept(work), self._loop).result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError("the episode is over") from None

    async def _kept(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        if self._closed:
            work.close()
            raise asyncio.CancelledError("the episode is over")
        task = asyncio.ensure_future(work)
        self._waits.add(task)
        try:
            return await task
        finally:
            self._waits.discard(task)

    async def next(self) -> _Call:
        """The oldest call that still waits for its answer."""
        while True:
            while self._calls:
                call = self._calls.popleft()
                if not call.answer.done():  # the agent may have given it up
                    self._calls.appendleft(call)
                    return call
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Cancels whoever waits, now and later."""
        self._closed = True
        for waiting in (*self._waits, *(call.answer for call in self._calls)):
            waiting.cancel()
        self._calls.clear()


class MediatedEnvironment(environment.TaskEnvironment[TaskT], Generic[TaskT]):
    """Turns an agent around: what it asks is observed, what it is told is the action."""

    def __init__(
        self,
        agent: Agent,
        tasks: Sequence[TaskT],
        *,
        in_thread: bool = False,
        step_limit: int | None = STEP_LIMIT,
        seed: int | None = None,
    ) -> None:
        """Takes the agent.

        Args:
            agent: Called with a `MediatedClient` and the task; returns the reward of the episode, or None. An async
                function, or with `in_thread` a plain one.
            tasks: What it plays.
            in_thread: The agent blocks: give it a thread.
            step_limit: After so many answers the agent is cancelled and the episode cut off, reward 0; None: never.
            seed: Fixes the order of the tasks.
        """
        super().__init__(tasks, seed=seed)
        if step_limit is not None and step_limit < 1:
            raise ValueError(f"step_limit must be at least 1, got {step_limit}")
        self.agent = agent
        self.in_thread = in_thread
        self.step_limit = step_limit
        self._fresh()

    def _fresh(self) -> None:
        self._client: MediatedClient | None = None
        self._agent_task: asyncio.Task[Any] | None = None
        self._call: _Call | None = None
        self._numbers = itertools.count()
        self._final: float | None = None

    async def reset(self) -> records.TimeStep[records.LLMRequest]:
        """Starts the agent on the next task; if it ends without a single call, that is the LAST step already.

        Raises:
            EpisodeError: The agent failed before its first call.
        """
        now = await super().reset()
        if self._final is None:
            return now
        self._over = True
        return records.TimeStep(records.StepType.LAST, self._final, 0.0, now.observation)

    async def _start(self, task: TaskT) -> records.LLMRequest:
        self._client = client = MediatedClient(self._observed)
        work = in_thread(self.agent, client, task) if self.in_thread else self.agent(client, task)
        self._agent_task = asyncio.ensure_future(work)
        call = await self._next_call()
        return self.ask([], info={"calls": 0}) if call is None else call.observation

    async def _act(self, action: records.LLMResponse) -> environment.Outcome:
        assert self._call is not None
        call = self._call
        if not call.answer.done():
            call.answer.set_result(action)
        following = await self._next_call()
        if following is not None:
            if self.step_limit is None or self.step_count + 1 < self.step_limit:
                return environment.Outcome(following.observation, 0.0)
            await self._end_agent()
            return environment.Outcome(self._closing(call, action), 0.0, done=True, truncated=True)
        assert self._final is not None
        return environment.Outcome(self._closing(call, action), self._final, done=True)

    async def _stop(self) -> None:
        try:
            await self._end_agent()
        finally:
            self._fresh()

    async def _next_call(self) -> _Call | None:
        """The agent's next call, or None once it has returned its reward."""
        assert self._client is not None
        assert self._agent_task is not None
        waiting = asyncio.ensure_future(self._client.next())
        try:
            await asyncio.wait({waiting, self._agent_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._agent_task.done():
            self._call = waiting.result()
            return self._call
        self._client.close()
        self._final = self._reward()
        return None

    def _reward(self) -> float:
        assert self._agent_task is not None
        assert self.task is not None
        self._over = True  # whatever is raised below
        where = f"the agent on task {self.task.id!r}"
        if self._agent_task.cancelled():
            raise errors.EpisodeError(f"{where} cancelled itself")
        error = self._agent_task.exception()
        if error is not None:
            raise errors.EpisodeError(f"{where} failed: {type(error).__name__}: {error}") from error
        result = self._agent_task.result()
        if result is not None and not isinstance(result, (int, float)):
            raise errors.EpisodeError(f"{where} returned {result!r}; expected its reward, a number, or None")
        return float(result or 0.0)

    async def _end_agent(self) -> None:
        """Ends the agent and waits until it has.

        Raises:
            EpisodeError: It does not end.
        """
        task = self._agent_task
        if self._client is not None:
            self._client.close()
        if task is None:
            return
        deadline = asyncio.get_running_loop().time() + GRACE
        while not task.done() and asyncio.get_running_loop().time() < deadline:
            task.cancel()
            await asyncio.wait([task], timeout=0.5)
        if not task.done() or (self._client is not None and self._client.stuck):
            raise errors.EpisodeError(f"the agent was cancelled but did not end within {GRACE:g} s; it still runs")
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains that nobody did

    def _observed(self, request: records.LLMRequest) -> records.LLMRequest:
        fields = ("max_output_tokens", "temperature", "top_p", "top_k", "tools", "stop_sequences", "system_prompt")
        settings = {name: getattr(request, name, None) for name in (*fields, "seed")}
        info = {"calls": next(self._numbers) + 1, "metadata": getattr(request, "metadata", None)}
        return self.ask(request.messages, info=info, **settings)

    def _closing(self, call: _Call, action: records.LLMResponse) -> records.LLMRequest:
        said = {"role": "assistant", "content": reading.text_of(action)}
        info = {"calls": call.observation.metadata["info"]["calls"]} if call.observation.metadata else {}
        return self.ask([*call.observation.messages, said], info=info, system_prompt=call.observation.system_prompt)


async def in_thread(agent: Agent, client: MediatedClient, *arguments: Any) -> Any:
    """Runs a blocking agent in a thread of its own, and does not end before the thread has.

    Args:
        agent: Called with the client and the arguments.
        client: How it asks; when the wait for the thread is cancelled, so are its calls.
        *arguments: What else it needs.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        elif isinstance(error, asyncio.CancelledError):
            done.cancel()
        else:
            done.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = agent(client, *arguments)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(settle, value, error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), daemon=True, name="sonde-agent")
    thread.start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        client.close()
        deadline = loop.time() + GRACE
        while not done.done() and loop.time() < deadline:
            with contextlib.suppress(asyncio.CancelledError):  # asked again to end; so it does, as soon as it can
                await asyncio.wait([done], timeout=deadline - loop.time())
        client.stuck = not done.done()
        if done.done() and not done.cancelled():
            done.exception()
        raise
    finally:
        if done.done():
            thread.join()  # it has nothing left to do
