"""The suite passes what keeps its promises, and each check catches an environment that breaks just its promise."""

import asyncio
import dataclasses
import itertools

import pytest

import sonde
from sonde import testing
from sonde.core import errors
from sonde.testing import stage

SHORT = [
    testing.ScriptedTask("colours", ("Name a colour.", "Another one.", "And one more.")),
    testing.ScriptedTask("animals", ("Name an animal.", "Another one.")),
    testing.ScriptedTask("trees", ("Name a tree.", "Another one.")),
]


def client():
    return testing.ScriptedClient(["a red one", "the blue sky"], loop=True)


class Whole(testing.ScriptedEnvironment):
    """Nothing broken yet, and steps that take a while."""

    def __init__(self):
        super().__init__(SHORT)

    async def _act(self, action):
        await asyncio.sleep(0.001)
        return await super()._act(action)


def altered(step, **changes):
    fields = {"step_type": step.step_type, "reward": step.reward, "discount": step.discount}
    return sonde.TimeStep(**{**fields, "observation": step.observation, **changes})


def with_metadata(step, **changes):
    observation = step.observation
    request = sonde.LLMRequest(
        messages=observation.messages,
        system_prompt=observation.system_prompt,
        max_output_tokens=observation.max_output_tokens,
        metadata={**observation.metadata, **changes},
    )
    return altered(step, observation=request)


class FailsAtTheSecondStep(Whole):
    async def step(self, action):
        if self.step_count == 1:
            raise OSError("the disk is full")
        return await super().step(action)


class SwallowsErrors(Whole):
    async def __aexit__(self, kind, error, trace):
        await self.close()
        return True


class StaysOpen(Whole):
    async def __aexit__(self, kind, error, trace):
        pass


class StartsWithAReward(Whole):
    async def reset(self):
        return altered(await super().reset(), reward=0.0)


class StartsInTheMiddle(Whole):
    async def reset(self):
        return altered(await super().reset(), step_type=sonde.StepType.MID)


class StartsWithNothingToSay(Whole):
    async def reset(self):
        step = await super().reset()
        return altered(step, observation=sonde.LLMRequest(messages=(), metadata=step.observation.metadata))


class RewardsWithNothing(Whole):
    async def step(self, action):
        return altered(await super().step(action), reward=None)


class RewardsWithoutBound(Whole):
    async def step(self, action):
        return altered(await super().step(action), reward=float("nan"))


class DiscountsUpwards(Whole):
    async def step(self, action):
        return altered(await super().step(action), discount=1.5)


class NeverEnds(Whole):
    async def _act(self, action):
        outcome = await super()._act(action)
        self.step_count = 0
        return type(outcome)(outcome.observation, outcome.reward, done=False)


class TakesAStepBeforeReset(Whole):
    async def step(self, action):
        if self.task is None:
            return await self.reset()
        return await super().step(action)


class RemembersAStepBeforeReset(Whole):
    said = ""

    async def step(self, action):
        if self.task is None:
            self.said = " You said something."
        return await super().step(action)

    async def _start(self, task):
        await super()._start(task)
        self._messages[0]["content"] += self.said
        return self._observation()


class GoesOnAfterTheLast(Whole):
    async def step(self, action):
        if self.task is not None and self._over:
            return self.final
        self.final = await super().step(action)
        return self.final


class HandsOutItsOwnList(Whole):
    def ask(self, messages, *, info=None, **settings):
        request = super().ask(messages, info=info, **settings)
        return sonde.LLMRequest(messages=messages, metadata=request.metadata, **settings)


class SharesItsMessages(Whole):
    def ask(self, messages, *, info=None, **settings):
        request = super().ask(messages, info=info, **settings)
        return sonde.LLMRequest(messages=tuple(messages), metadata=request.metadata, **settings)


class NamesNoEpisode(Whole):
    async def reset(self):
        return with_metadata(await super().reset(), episode_id=None)


class NamesEpisodesByTheirTask(Whole):
    async def reset(self):
        step = await super().reset()
        self._episode_id = step.observation.metadata["task_id"]
        return with_metadata(step, episode_id=self._episode_id)


class RenamesItsEpisode(Whole):
    async def step(self, action):
        return with_metadata(await super().step(action), episode_id=str(self.step_count))


class SaysItInBytes(Whole):
    async def step(self, action):
        return with_metadata(await super().step(action), info={"screen": b"ok"})


class SaysItInInfinities(Whole):
    async def step(self, action):
        return with_metadata(await super().step(action), info={"seconds": float("inf")})


class HidesItsTasks(Whole):
    task_ids = property(lambda self: [])


class PlaysUnknownTasks(Whole):
    async def reset(self):
        return with_metadata(await super().reset(), task_id="something-else")


class ChoosesAtWill(Whole):
    made = itertools.count()

    def __init__(self):
        super().__init__()
        self._episode = next(self.made)


class SeeksInVain(Whole):
    def seek(self, episode):
        pass


class IgnoresTheTask(Whole):
    def with_task(self, task):
        return type(self)()


class TakesAnyTask(Whole):
    def with_task(self, task):
        return super().with_task(task if task in self.task_ids or not isinstance(task, str) else self.tasks[0])


class RestartsForItsTwin(Whole):
    def with_task(self, task):
        self._messages.clear()
        return super().with_task(task)


class RollsDice(Whole):
    rolls = itertools.count()

    async def _act(self, action):
        outcome = await super()._act(action)
        return dataclasses.replace(outcome, reward=outcome.reward + next(self.rolls))


class KeepsItsMessages(Whole):
    kept: tuple = ()

    async def reset(self):
        self.kept = tuple(self._messages) if self.task is not None and not self._over else ()
        return await super().reset()

    async def _start(self, task):
        await super()._start(task)
        self._messages = [*self.kept, *self._messages]
        return self._observation()


class OutlivesReset(Whole):
    async def _cancel(self):
        self._running = None

    async def _act(self, action):
        if self._episode == 2:
            await asyncio.sleep(0.3)
        return await super()._act(action)


class OutlivesClose(Whole):
    async def close(self):
        self.task = None

    async def _act(self, action):
        await asyncio.sleep(0.1)
        return await testing.ScriptedEnvironment._act(self, action) if self.task else None


class CannotBeCancelled(Whole):
    async def step(self, action):
        stuck = self.__dict__.setdefault("stuck", [])
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            stuck.append(action)
        return await super().step(action)

    async def reset(self):
        if self.__dict__.get("stuck"):
            raise errors.EpisodeError("the last step never came to an end")
        return await super().reset()


class LeavesATaskBehind(Whole):
    async def reset(self):
        self.left = asyncio.ensure_future(asyncio.sleep(60))
        return await super().reset()


class ClosesOnce(Whole):
    closed = False

    async def close(self):
        if self.closed:
            raise ValueError("closed already")
        self.closed = True
        await super().close()


class SharesItsState(Whole):
    shared: list = []  # noqa: RUF012  # that is what is broken

    async def _start(self, task):
        await super()._start(task)
        self.shared[:] = self._messages
        self._messages = self.shared
        return self._observation()


class RestoresTheStart(Whole):
    async def restore(self, snapshot):
        return await super().restore({**snapshot, "replies": []})


class SnapshotsObjects(Whole):
    def snapshot(self):
        return {**super().snapshot(), "task": self.task}


class ForgetsAfterRestore(Whole):
    async def restore(self, snapshot):
        step = await super().restore(snapshot)
        self._messages = self._messages[-1:]
        return step


BROKEN = [
    ("plays", FailsAtTheSecondStep),
    ("context_manager", SwallowsErrors),
    ("context_manager", StaysOpen),
    ("first_step", StartsWithAReward),
    ("first_step", StartsInTheMiddle),
    ("first_step", StartsWithNothingToSay),
    ("later_steps", RewardsWithNothing),
    ("later_steps", RewardsWithoutBound),
    ("later_steps", DiscountsUpwards),
    ("ends", NeverEnds),
    ("step_before_reset", TakesAStepBeforeReset),
    ("step_before_reset", RemembersAStepBeforeReset),
    ("step_after_last", GoesOnAfterTheLast),
    ("frozen_observations", HandsOutItsOwnList),
    ("tampering", SharesItsMessages),
    ("metadata", NamesNoEpisode),
    ("metadata", NamesEpisodesByTheirTask),
    ("metadata", RenamesItsEpisode),
    ("json_data", SaysItInBytes),
    ("json_data", SaysItInInfinities),
    ("task_ids", HidesItsTasks),
    ("task_ids", PlaysUnknownTasks),
    ("same_order", ChoosesAtWill),
    ("seek", SeeksInVain),
    ("with_task", IgnoresTheTask),
    ("with_task", TakesAnyTask),
    ("with_task", RestartsForItsTwin),
    ("replay", RollsDice),
    ("reset_midway", KeepsItsMessages),
    ("reset_midway", OutlivesReset),
    ("cancelled_step", CannotBeCancelled),
    ("nothing_left_running", LeavesATaskBehind),
    ("nothing_left_running", OutlivesClose),
    ("close_twice", ClosesOnce),
    ("two_at_once", SharesItsState),
    ("snapshot_restore", RestoresTheStart),
    ("snapshot_restore", SnapshotsObjects),
    ("snapshot_restore", ForgetsAfterRestore),
]


@pytest.mark.parametrize(("name", "broken"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
async def test_each_check_catches_what_breaks_its_promise(name, broken, monkeypatch):
    monkeypatch.setattr(stage, "GRACE", 0.02)
    report = await testing.check_environment(broken, client(), max_steps=6)
    assert not report.ok
    (verdict,) = [one for one in report.broken if one.name == name]
    assert verdict.promise == testing.CHECKS[name]
    assert len(verdict.detail) > 20


def test_there_is_a_broken_environment_for_every_check():
    assert {name for name, _ in BROKEN} == set(testing.CHECKS)


def test_every_check_says_what_it_is_about():
    assert all(words.endswith(".") and len(words.split()) > 4 for words in testing.CHECKS.values())


@pytest.mark.parametrize("environment", [Whole, testing.ScriptedEnvironment])
async def test_an_environment_that_keeps_its_promises_passes_every_check(environment):
    report = await testing.check_environment(environment, client())
    assert report.ok, str(report)
    assert report.skipped == ()
    assert [one.name for one in report.verdicts] == list(testing.CHECKS)
    await testing.assert_conforms(environment, client())


async def test_an_order_that_a_seed_shuffles_passes_every_check():
    report = await testing.check_environment(lambda: testing.ScriptedEnvironment(SHORT, seed=3), client(), episodes=5)
    assert report.ok, str(report)


async def test_the_assertion_lists_what_is_broken_and_nothing_else():
    with pytest.raises(AssertionError, match=r"1 of \d+ checks found something") as caught:
        await testing.assert_conforms(SaysItInBytes, client())
    assert "holds what JSON does not" in str(caught.value)
    assert "close_twice" not in str(caught.value)


async def test_chance_is_allowed_where_it_is_announced():
    report = await testing.check_environment(RollsDice, client(), deterministic=False)
    assert report.ok, str(report)
    assert [one.name for one in report.skipped] == ["replay"]


class Hangs(Whole):
    async def _act(self, action):
        await asyncio.Event().wait()


async def test_an_environment_that_hangs_is_reported_and_not_waited_for():
    report = await testing.check_environment(Hangs, client(), patience=0.05)
    found = {one.name: one.detail for one in report.broken}
    assert "took longer than 0.05 s" in found["plays"]
    assert found["two_at_once"] == "no answer within 0.05 s"


class Elsewhere:
    """Of another family: only the methods of the protocol."""

    def __init__(self):
        self.left, self.name = None, f"elsewhere/{id(self)}"

    task_ids = ("only",)
    episodes = itertools.count()

    def _request(self, said):
        messages = [{"role": "user", "content": "Count down."}, *said]
        return sonde.LLMRequest(messages=messages, metadata={"task_id": "only", "episode_id": self.name})

    async def reset(self):
        self.left, self.name = 2, f"elsewhere/{next(self.episodes)}"
        return sonde.TimeStep(sonde.StepType.FIRST, None, None, self._request([]))

    async def step(self, action):
        if not self.left:
            raise RuntimeError("not now")
        self.left -= 1
        kind = sonde.StepType.MID if self.left else sonde.StepType.LAST
        said = {"role": "assistant", "content": action.text}
        return sonde.TimeStep(kind, 1.0, 1.0 if self.left else 0.0, self._request([said]))

    async def close(self):
        self.left = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, error, trace):
        await self.close()


async def made_slowly():
    await asyncio.sleep(0)
    return Elsewhere()


async def test_an_environment_of_another_family_can_be_checked_and_made_asynchronously():
    report = await testing.check_environment(made_slowly, client())
    assert report.ok, str(report)
    assert {one.name for one in report.skipped} == {"seek", "with_task", "snapshot_restore"}


async def test_a_factory_that_fails_breaks_every_check_but_none_escapes():
    def factory():
        raise OSError("no such folder")

    report = await testing.check_environment(factory, client())
    assert {one.name for one in report.broken} >= {"plays", "ends", "close_twice", "two_at_once"}
    assert "no such folder" in str(report)


async def test_the_client_is_asked_for_the_rehearsed_episodes_only():
    asked = client()
    await testing.check_environment(Whole, asked, episodes=3)
    assert len(asked.requests) == 3 + 2 + 2


async def test_nonsense_settings_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        await testing.check_environment(Whole, client(), episodes=0)
