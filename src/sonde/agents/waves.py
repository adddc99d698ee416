"""One wave of episodes: all of them in one batch, token by token, step by step.

1. Every episode is a coroutine of its own with its own client, environment, capture and interventions.
2. A request waits until every episode that is still going has one; then all go to the engine as one batch, in the
   order of the episodes, for some tokens. Episodes that are answered by then take their step in the environment and come
   back with the next request, while the others pause: a long answer holds nobody up. So the batches, and with them the
   last bits, depend on the wave alone.
3. What all rows begin with (the rules of a game, the past of a fork) is encoded once and copied, unless each row has
   its activations recorded. A step is on disk when it is over.
4. An interrupted wave is taken up by running its recorded steps once more with the recorded tokens; environments are
   put back by snapshot or replay, and nothing is written twice. Episodes that were over ride along until their end.

Cost: a wave is as slow as its slowest environment; nothing else waits.
"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sonde.agents import client as agents_client
from sonde.agents import history, plans
from sonde.capture import capture as capture_capture
from sonde.capture import trajectory as capture_trajectory
from sonde.core import errors, interventions, records
from sonde.models import checking, requests
from sonde.models import model as models_model

#: Tokens that rows must begin alike with to have them encoded once for all.
WORTH_SHARING = 32
#: Tokens that a batch generates before rows that are done make room for their next step.
SLICE = 6
#: Errors that concern every episode alike: playing stops, and can be taken up again.
COMMON = (errors.ServerError, errors.BudgetError, errors.StoreError)


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """A step is over.

    Attributes:
        plan: The episode it belongs to.
        step: Its number.
        tokens: Tokens that were generated in it.
        over: Whether the episode is.
        again: Whether it had been recorded before.
        failed: Why the episode could not go on.
    """

    plan: plans.Plan
    step: int
    tokens: int
    over: bool
    again: bool = False
    failed: str | None = None


OnTick = Callable[[Tick], None]
Past = tuple[history.Moment, tuple[interventions.Intervention, ...]]


class Meeting:
    """Where the requests of a wave wait for each other."""

    def __init__(self, model: models_model.Model, live: Sequence[int]) -> None:
        """Expects these episodes."""
        self._model, self._live = model, set(live)
        self._first = True
        self._running: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, tuple[requests.Item, asyncio.Future[requests.Generation]]] = {}

    async def meet(self, index: int, asked: requests.Request) -> requests.Generation:
        """Answers a request together with those of all other live episodes."""
        checking.check(asked, self._model.parts)
        answer: asyncio.Future[requests.Generation] = asyncio.get_running_loop().create_future()
        self._waiting[index] = (asked, answer)
        self._go()
        try:
            return await answer
        except asyncio.CancelledError:
            asked.cancelled.set()
            raise

    def close(self) -> None:
        """Asks nothing more: the wave is being stopped."""
        self._live.clear()

    def leave(self, index: int) -> None:
        """Takes out an episode that is over."""
        self._live.discard(index)
        self._waiting.pop(index, None)
        self._go()

    def _go(self) -> None:
        if not self._waiting or self._waiting.keys() != self._live:
            return
        batch, self._waiting = dict(sorted(self._waiting.items())), {}
        task = asyncio.ensure_future(self._run(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, batch: Mapping[int, tuple[requests.Item, "asyncio.Future[requests.Generation]"]]) -> None:
        items = [item for item, _ in batch.values()]
        first, self._first = self._first, False
        shared = _shared([item for item in items if isinstance(item, requests.Request)]) if first else None
        outcomes: Sequence[requests.Outcome | BaseException]
        try:
            if shared is not None:
                await asyncio.wrap_future(self._model.submit([shared])[0])
            answers = map(asyncio.wrap_future, self._model.submit_for(items, SLICE))
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
        except BaseException as error:
            outcomes = [error] * len(items)
        for (index, (_, answer)), outcome in zip(batch.items(), outcomes, strict=True):
            if isinstance(outcome, requests.Paused):
                self._waiting[index] = (outcome, answer)
            elif answer.done():
                continue
            elif isinstance(outcome, BaseException):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
        self._go()


def _shared(batch: Sequence[requests.Request]) -> requests.Request | None:
    """A request that encodes, once for all rows, the beginning they share; None if there is nothing to gain.

    Rows whose activations are recorded encode it themselves.
    """
    first = batch[0]
    if len(batch) == 1 or any(recorder.sites for request in batch for recorder in request.recorders):
        return None
    held = [[spec.digest for spec in request.interventions] for request in batch]
    if any(request.positions for request in batch) or any(other != held[0] for other in held):
        return None
    alike = (len(set(column)) == 1 for column in zip(*(request.tokens for request in batch), strict=False))
    common = first.tokens[: sum(itertools.takewhile(bool, alike))]
    if len(common) < WORTH_SHARING:
        return None
    sampling = dataclasses.replace(first.sampling, max_new_tokens=1, min_new_tokens=0)
    return dataclasses.replace(first, tokens=common, sampling=sampling, recorders=(), forced=())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What the episodes of a wave share.

    Attributes:
        model: The model.
        make: Makes an environment.
        settings: What is played.
        folder: Where the episodes' folders are; None: in memory.
        on_tick: Told of every step.
        past: Steps that all episodes have in common and start from, each with the interventions it was played under.
        chat: `tokenizer` and `chat_template` of the client, where they are not the model's own.
    """

    model: models_model.Model
    make: Callable[[], Any]
    settings: plans.PlaySettings
    folder: Path | None
    on_tick: OnTick | None = None
    past: Sequence[Past] = ()
    chat: Mapping[str, Any] = dataclasses.field(default_factory=dict)


async def play_wave(stage: Stage, wave: Sequence[plans.Plan]) -> list[capture_trajectory.TrajectoryActivations]:
    """Plays one wave to its end; takes up what is in its folders.

    Raises:
        ServerError, BudgetError, StoreError: Playing cannot go on; finished steps are kept, and it can be taken up.
    """
    # What other waves left in the cache was made in other batches: its last bits may differ.
    stage.model.pool.entries.clear()
    meeting = Meeting(stage.model, [plan.index for plan in wave])
    episodes = [_Episode(stage, plan, meeting) for plan in wave]
    tasks = [asyncio.ensure_future(episode.play()) for episode in episodes]
    try:
        with stage.model.packed():
            return list(await asyncio.gather(*tasks))
    except BaseException:
        meeting.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class _Episode:
    """One episode of a wave."""

    def __init__(self, stage: Stage, plan: plans.Plan, meeting: Meeting) -> None:
        self.stage, self.plan, self.meeting = stage, plan, meeting
        generation = dict(stage.settings.generation)
        policy = generation.pop("context_policy", "error")
        held: Sequence[interventions.Intervention] = stage.settings.conditions[plan.condition]
        self.client = agents_client.HookedTransformerLLMClient(
            stage.model, generation_kwargs=generation, fwd_hooks=held, context_policy=policy, **stage.chat
        )
        self.total = 0.0

    async def play(self) -> capture_trajectory.TrajectoryActivations:
        """Plays it; whatever happens, the others go on."""
        try:
            env = self.stage.make()
            if hasattr(env, "seek"):
                env.seek(self.plan.episode)
            capture, past = self._capture(env)
            with self._kept(capture):
                await self._play(env, capture, past)
            return capture.get_trajectory()
        finally:
            self.meeting.leave(self.plan.index)

    def _capture(self, env: Any) -> tuple[capture_capture.ActivationCapture, list[history.Moment]]:
        kept = self.stage.settings.capture
        folder = self.stage.folder / self.plan.id if self.stage.folder is not None else None
        dtype = getattr(torch, kept["dtype"]) if kept.get("dtype") else None
        positions = kept.get("positions", "all")
        capture = capture_capture.ActivationCapture(
            self.stage.model, list(kept["sites"]), positions=positions, dtype=dtype, folder=folder
        )
        past: list[history.Moment] = []
        if folder is not None and folder.exists():
            past = history.moments(capture_trajectory.TrajectoryActivations.load(folder))
            capture.resume()
        task = env.task_of(self.plan.episode).id if hasattr(env, "task_of") else None
        capture.metadata |= {
            "episode": self.plan.episode,
            "condition": self.plan.condition,
            "task_id": task,
            "environment": self.stage.settings.environment,
            "seed": self.stage.settings.seed,
        }
        return capture, past

    @contextlib.contextmanager
    def _kept(self, capture: capture_capture.ActivationCapture) -> Iterator[None]:
        """The capture in force; an episode that fails by its own fault is closed, one that is stopped is not."""
        with capture:
            try:
                yield
            except BaseException as error:
                if not isinstance(error, errors.SondeError) or isinstance(error, COMMON):
                    capture.suspend()
                    raise
                capture.summary["error"] = capture.metadata["error"] = f"{type(error).__name__}: {error}"
                self._tick(Tick(self.plan, -1, 0, True, failed=str(error)))
            capture.reward = self.total

    async def _play(self, env: Any, capture: capture_capture.ActivationCapture, past: Sequence[history.Moment]) -> None:
        for number, moment in enumerate(past):
            with capture.step():
                await self._answer(moment.observation, number, moment.tokens)
            self.total += float(moment.reward or 0.0)
            self._tick(Tick(self.plan, number, len(moment.tokens), moment.over, again=True))
        limit = self.stage.settings.max_steps
        if capture.closed or (past and (past[-1].over or len(past) == limit)):
            return
        before = past[-1].observation if past else None
        past = past or await self._recalled()
        async with env:
            now = await history.taken_up(env, past)
            number = len(past)
            while not now.last() and number != limit:
                seen = now.observation
                with capture.step():
                    action = await self._answer(seen, number, ())
                    now = await env.step(action)
                    capture.record_step_metadata(history.noted(seen, before, action, now, env))
                self.total += float(now.reward or 0.0)
                before, number = seen, number + 1
                over = now.last() or number == limit
                self._tick(Tick(self.plan, number - 1, len(action.token_ids), over))

    async def _recalled(self) -> Sequence[history.Moment]:
        """The past that the episode starts from, known to the client as if it had been played here."""
        held = self.client.fwd_hooks
        for moment, under in self.stage.past:
            self.client.fwd_hooks = under
            await self.client.recall(moment.observation, moment.text, moment.tokens)
            self.total += float(moment.reward or 0.0)
        self.client.fwd_hooks = held
        return [moment for moment, _ in self.stage.past]

    async def _answer(self, seen: Any, number: int, forced: tuple[int, ...]) -> records.LLMResponse:
        seed = plans.step_seed(self.stage.settings.seed, self.plan, number) if seen.seed is None else seen.seed
        # The client serves this episode alone, and a step read from disk has no episode id to go by.
        asked = dataclasses.replace(seen, seed=seed, metadata=None)
        pending = await self.client.prepare(asked, forced=forced)
        try:
            return self.client.complete(pending, await self.meeting.meet(self.plan.index, pending.asked))
        finally:
            pending.conversation.busy = False

    def _tick(self, tick: Tick) -> None:
        if self.stage.on_tick is not None:
            self.stage.on_tick(tick)
