"""What an environment promises about what is seen: steps, observations, ids, and which task is played.

Each check is named as in the report, says in its docstring what is promised, and raises `Broken` with what it met.
"""

import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde.testing import stage as testing_stage

Broken, Skipped = testing_stage.Broken, testing_stage.Skipped
MARK = "tampered-with-by-the-conformance-suite"


async def plays(stage: testing_stage.Stage) -> None:
    """Episodes can be played one after the other without an error."""
    if stage.trouble:
        raise Broken(stage.trouble)


async def first_step(stage: testing_stage.Stage) -> None:
    """`reset` gives a FIRST TimeStep without reward and discount, and a request with at least one message."""
    for number, played in enumerate([stage.first, *stage.rehearsals[1:]]):
        if not played.steps:
            continue
        step, where = played.steps[0], f"reset() of episode {number}"
        if testing_stage.kind(step) != "first":
            raise Broken(f"{where} must give a FIRST TimeStep, got {testing_stage.shown(step)}")
        if step.reward is not None or step.discount is not None:
            raise Broken(f"{where} must give reward and discount None, got {step.reward!r} and {step.discount!r}")
        _needs_request(step.observation, where)


async def later_steps(stage: testing_stage.Stage) -> None:
    """`step` gives a MID or LAST TimeStep, a number as reward, a discount between 0 and 1, and a request."""
    _ = stage.first
    for number, played in enumerate(stage.rehearsals):
        for index, step in enumerate(played.steps[1:]):
            where = f"step {index} of episode {number}"
            if testing_stage.kind(step) not in ("mid", "last"):
                raise Broken(f"{where} must give a MID or LAST TimeStep, got {testing_stage.shown(step)}")
            if not _is_number(step.reward):
                raise Broken(f"{where}: the reward must be a finite number, got {step.reward!r}")
            if not _is_number(step.discount) or not 0 <= step.discount <= 1:
                raise Broken(f"{where}: the discount must be a number from 0 to 1, got {step.discount!r}")
            _needs_request(step.observation, where)


async def ends(stage: testing_stage.Stage) -> None:
    """Every episode ends within `max_steps`."""
    _ = stage.first
    for number, played in enumerate(stage.rehearsals):
        if len(played.actions) >= stage.max_steps and not played.steps[-1].last():
            raise Broken(
                f"episode {number} did not end within {stage.max_steps} steps: give the environment a step limit, or "
                f"the suite a larger max_steps"
            )


async def frozen_observations(stage: testing_stage.Stage) -> None:
    """An observation is a snapshot: nothing that happens later changes it."""
    _ = stage.first
    for number, played in enumerate(stage.rehearsals):
        for index, (step, copy) in enumerate(zip(played.steps, played.copies, strict=True)):
            now = testing_stage.plain(step.observation)
            for name in testing_stage.FIELDS:
                if now[name] != copy[name]:
                    raise Broken(
                        f"TimeStep {index} of episode {number} changed after it was given out: {name} was "
                        f"{testing_stage.clip(copy[name])}, is {testing_stage.clip(now[name])}"
                    )


async def tampering(stage: testing_stage.Stage) -> None:
    """Changing an observation fails, or changes nothing for the environment and the other observations."""
    async with stage.opened() as env:
        steps = [await env.reset()]
        for action in stage.actions[:3]:
            if steps[-1].last():
                break
            _tamper(steps[-1].observation)
            steps.append(await env.step(action))
            if MARK in repr(testing_stage.plain(steps[-1].observation)):
                raise Broken(f"what was done to observation {len(steps) - 2} shows in the next: hand out copies")
        _tamper(steps[0].observation)
        if len(steps) > 1 and MARK in repr(testing_stage.plain(steps[-1].observation)):
            raise Broken("what is done to the first observation shows in the last: they share their messages")


async def metadata(stage: testing_stage.Stage) -> None:
    """Every observation names its task and its episode; episode ids differ, also between environments."""
    found: list[Any] = []
    for number, played in enumerate([stage.first, *stage.rehearsals[1:]]):
        known = {testing_stage.ids(step) for step in played.steps}
        for task, episode in known:
            if not isinstance(task, str) or not isinstance(episode, str):
                raise Broken(
                    f"episode {number}: metadata needs task_id and episode_id as texts, got {task!r}, {episode!r}"
                )
        if len(known) > 1:
            raise Broken(f"episode {number}: the ids change under way: {testing_stage.clip(sorted(known))}")
        found += [episode for _, episode in known]
    async with stage.opened() as env:
        found.append(testing_stage.ids(await env.reset())[1])
    if len(set(found)) < len(found):
        raise Broken(f"two episodes have one episode_id: {testing_stage.clip(found)}")


async def json_data(stage: testing_stage.Stage) -> None:
    """Messages and metadata, `info` among it, are JSON data."""
    for number, played in enumerate([stage.first, *stage.rehearsals[1:]]):
        for index, copy in enumerate(played.copies):
            try:
                json.dumps([copy["messages"], copy["metadata"]], allow_nan=False)
            except (TypeError, ValueError) as error:
                where = f"TimeStep {index} of episode {number}"
                raise Broken(f"{where} holds what JSON does not: {testing_stage.named(error)}") from error


async def task_ids(stage: testing_stage.Stage) -> None:
    """`task_ids` lists the tasks, each once, and episodes play those."""
    async with stage.opened() as env:
        known = _task_ids(env)
    if len(set(known)) < len(known):
        raise Broken(f"task_ids has repetitions: {testing_stage.clip(known)}")
    for number, played in enumerate([stage.first, *stage.rehearsals[1:]]):
        for step in played.steps[:1]:
            if testing_stage.ids(step)[0] not in known:
                raise Broken(f"episode {number} plays {testing_stage.ids(step)[0]!r}, which is not in task_ids")


async def same_order(stage: testing_stage.Stage) -> None:
    """Two environments made the same way play their tasks in the same order."""
    orders = [await _order(stage), await _order(stage)]
    if orders[0] != orders[1]:
        raise Broken(f"made twice with the same settings, it plays {orders[0]} and then {orders[1]}: seed the choice")


async def seek(stage: testing_stage.Stage) -> None:
    """`seek(n)` makes the next `reset` play what the n-th episode plays."""
    order = await _order(stage)
    async with stage.opened() as env:
        if not hasattr(env, "seek"):
            raise Skipped("it offers no seek()")
        for episode in [*range(1, len(order)), 0]:
            env.seek(episode)
            got = testing_stage.ids(await env.reset())[0]
            if got != order[episode]:
                raise Broken(f"seek({episode}) then reset() plays {got!r}; in order it is {order[episode]!r}")


async def with_task(stage: testing_stage.Stage) -> None:
    """`with_task` gives an environment of one task, by id or itself, leaves this one as it is, refuses unknown ids."""
    async with stage.opened() as env:
        if not hasattr(env, "with_task"):
            raise Skipped("it offers no with_task()")
        await env.reset()
        wanted = _task_ids(env)[-1]
        for task in [wanted, *list(getattr(env, "tasks", []))[-1:]]:
            other = env.with_task(task)
            try:
                got = [testing_stage.ids(await other.reset())[0] for _ in range(2)]
            finally:
                await other.close()
            if got != [wanted, wanted]:
                raise Broken(f"with_task({testing_stage.clip(task)}) plays {got}, not {wanted!r} twice")
        stage.compare([None, await env.step(stage.actions[0])], 0, "after with_task()")
        try:
            env.with_task("no such task, surely")
        except Exception:  # any error will do
            return
        raise Broken("with_task() takes an id that there is not")


CHECKS: dict[str, testing_stage.Check] = {
    check.__name__: check
    for check in (
        plays, first_step, later_steps, ends, frozen_observations, tampering, metadata, json_data,
        task_ids, same_order, seek, with_task,
    )
}  # fmt: skip


async def _order(stage: testing_stage.Stage) -> list[Any]:
    async with stage.opened() as env:
        return [testing_stage.ids(await env.reset())[0] for _ in range(max(len(stage.rehearsals), 3))]


def _task_ids(env: Any) -> list[str]:
    known = getattr(env, "task_ids", None)
    known = known() if callable(known) else known
    if not isinstance(known, Sequence) or not known or not all(isinstance(one, str) for one in known):
        raise Broken(f"task_ids must list the ids of the tasks as texts, got {testing_stage.clip(known)}")
    return list(known)


def _needs_request(observation: Any, where: str) -> None:
    messages = getattr(observation, "messages", None)
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise Broken(f"{where}: the observation must be a request with messages, got {testing_stage.clip(observation)}")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise Broken(f"{where}: a message needs role and content, got {testing_stage.clip(message)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value))


def _tamper(observation: Any) -> None:
    """Tries to change all that an observation holds; each attempt may be refused."""
    attempts: list[Callable[[], Any]] = [
        lambda: observation.messages[0].update(content=MARK),
        lambda: observation.messages[-1].__setitem__("content", MARK),
        lambda: observation.messages.append({"role": "user", "content": MARK}),
        lambda: observation.metadata.__setitem__("task_id", MARK),
        lambda: observation.metadata["info"].__setitem__(MARK, MARK),
        lambda: setattr(observation, "system_prompt", MARK),
    ]
    for attempt in attempts:
        try:
            attempt()
        except (TypeError, AttributeError, KeyError):  # refused, as it should be
            continue
