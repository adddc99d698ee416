"""What an environment promises about how it is used: the order of calls, interruption, closing, replay, restoring.

Each check is named as in the report, says in its docstring what is promised, and raises `Broken` with what it met.
"""

import asyncio
import json

from sonde.testing import stage as testing_stage

Broken, Skipped = testing_stage.Broken, testing_stage.Skipped


async def context_manager(stage: testing_stage.Stage) -> None:
    """It is an async context manager that lets errors through and is closed afterwards."""
    env = await stage.make()
    missing = [name for name in ("reset", "step", "close", "__aenter__", "__aexit__") if not hasattr(env, name)]
    if missing:
        raise Broken(f"it has no {', '.join(missing)}")
    error = RuntimeError("raised inside the with block")
    try:
        async with env as entered:
            if not hasattr(entered, "reset"):
                raise Broken(f"`async with` gives {testing_stage.clip(entered)}, which has no reset()")
            await entered.reset()
            raise error
    except RuntimeError as caught:
        if caught is not error:
            raise
    else:
        raise Broken("an error inside the with block is swallowed")
    await testing_stage.refuses(env, stage.actions[0], "after the with block")


async def step_before_reset(stage: testing_stage.Stage) -> None:
    """`step` before `reset` raises, and the episode that then begins is as any other."""
    async with stage.opened() as env:
        await testing_stage.refuses(env, stage.actions[0], "before reset()")
        steps = await testing_stage.replayed(env, stage.actions[:1])
        stage.compare(steps, 0, "after a step before reset()")


async def step_after_last(stage: testing_stage.Stage) -> None:
    """`step` after the LAST TimeStep raises, and the next episode is as any other."""
    if not stage.first.steps[-1].last():
        raise Skipped("the first episode did not end")
    async with stage.opened() as env:
        await testing_stage.replayed(env, stage.actions)
        await testing_stage.refuses(env, stage.actions[0], "after the LAST TimeStep")
        steps = await testing_stage.replayed(env, [])
        stage.compare(steps, 1, "after a step too many")


async def replay(stage: testing_stage.Stage) -> None:
    """The same actions on a fresh environment give the same observations and rewards."""
    if not stage.deterministic:
        raise Skipped("not asked for: deterministic=False")
    async with stage.opened() as env:
        steps = await testing_stage.replayed(env, stage.actions)
        if len(steps) != len(stage.first.steps):
            raise Broken(f"played again with the same actions, {len(steps)} TimeSteps; before {len(stage.first.steps)}")
        stage.compare(steps, 0, "played again with the same actions")


async def reset_midway(stage: testing_stage.Stage) -> None:
    """`reset` in the middle of an episode, or of a step, ends what was running and starts cleanly."""
    async with stage.opened() as env:
        await testing_stage.replayed(env, stage.actions[:1])
        stage.compare(await testing_stage.replayed(env, []), 1, "reset() after one step")
        async with testing_stage.under_way(env, stage.actions[0]) as running:
            if hasattr(env, "seek"):
                env.seek(0)
            restarted = await env.reset()
            await asyncio.wait([running], timeout=testing_stage.GRACE)
            if not running.done():
                raise Broken("a step that was under way still runs after reset(): cancel it")
        if testing_stage.kind(restarted) != "first":
            raise Broken(f"reset() during a step gives {testing_stage.shown(restarted)}")
        steps = [restarted, await env.step(stage.actions[0])]
        if hasattr(env, "seek"):
            stage.compare(steps, 0, "after a reset() during a step")


async def cancelled_step(stage: testing_stage.Stage) -> None:
    """After a step was cancelled, `reset` starts cleanly."""
    async with stage.opened() as env:
        await env.reset()
        async with testing_stage.under_way(env, stage.actions[0]) as running:
            running.cancel()
            await asyncio.wait([running], timeout=testing_stage.GRACE)
            if not running.done():
                raise Broken("a cancelled step goes on: let CancelledError through")
        steps = await testing_stage.replayed(env, stage.actions[:1])
        stage.compare(steps[:1], 1, "after a cancelled step")


async def nothing_left_running(stage: testing_stage.Stage) -> None:
    """`close`, also in the middle of a step, leaves no task running."""
    before = asyncio.all_tasks()
    async with stage.opened() as env:
        await env.reset()
        async with testing_stage.under_way(env, stage.actions[0]) as running:
            await env.close()
            await asyncio.wait([running], timeout=testing_stage.GRACE)
            if not running.done():
                raise Broken("a step that was under way still runs after close(): cancel it")
    if left := [one for one in asyncio.all_tasks() - before if one is not running]:
        await asyncio.wait(left, timeout=testing_stage.GRACE)
    if left := [one for one in left if not one.done()]:
        raise Broken(f"{len(left)} tasks still run after close(): {testing_stage.clip(left[0].get_coro())}")


async def close_twice(stage: testing_stage.Stage) -> None:
    """`close` may be called before `reset`, in an episode, and twice; after it `step` raises."""
    env = await stage.make()
    await env.close()
    await env.close()
    env = await stage.make()
    await env.reset()
    await env.close()
    await env.close()
    await testing_stage.refuses(env, stage.actions[0], "after close()")


async def two_at_once(stage: testing_stage.Stage) -> None:
    """Two environments played in turns do not disturb each other."""
    async with stage.opened() as left, stage.opened() as right:
        envs = (left, right)
        played = [[await env.reset()] for env in envs]
        for action in stage.actions:
            for env, steps in zip(envs, played, strict=True):
                if not steps[-1].last():
                    steps.append(await env.step(action))
        for steps in played:
            if len({testing_stage.ids(step) for step in steps}) > 1:
                raise Broken("the ids of an episode change while another environment is played")
            stage.compare(steps, 0, "with another environment played beside it")


async def snapshot_restore(stage: testing_stage.Stage) -> None:
    """A snapshot is JSON data from which a fresh environment goes on as the first would have."""
    async with stage.opened() as env, stage.opened() as other:
        if not (hasattr(env, "snapshot") and hasattr(env, "restore")):
            raise Skipped("it offers no snapshot() and restore()")
        steps = await testing_stage.replayed(env, stage.actions[:1])
        if steps[-1].last():
            steps = await testing_stage.replayed(env, [])
        try:
            taken = json.dumps(env.snapshot(), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise Broken(f"the snapshot is not JSON data: {testing_stage.named(error)}") from error
        restored = await other.restore(json.loads(taken))
        wanted, got = testing_stage.seen(steps[-1]), testing_stage.seen(restored)
        for name in ("messages", "system_prompt"):
            if wanted[name] != got[name]:
                raise Broken(
                    f"restored, {name} is {testing_stage.clip(got[name])}; "
                    f"when taken it was {testing_stage.clip(wanted[name])}"
                )
        action = stage.actions[min(len(steps) - 1, len(stage.actions) - 1)]
        onwards = await env.step(action), await other.step(action)
        if stage.deterministic:
            testing_stage.same(*onwards, "the step after restore()")


CHECKS: dict[str, testing_stage.Check] = {
    check.__name__: check
    for check in (
        context_manager, step_before_reset, step_after_last, replay, reset_midway, cancelled_step,
        nothing_left_running, close_twice, two_at_once, snapshot_restore,
    )
}  # fmt: skip
