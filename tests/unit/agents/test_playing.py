"""Playing many episodes: paired, recorded, interrupted and taken up again."""

import asyncio
import json
import shlex

import numpy as np
import pytest
import torch
import typer.main

import sonde
from sonde import store, testing
from sonde._cli import play as cli
from sonde.agents import history, playing, plays
from sonde.core import errors
from sonde.models import generation
from sonde.store import documents

SITES = "blocks.*.hook_resid_post"


@pytest.fixture(scope="module")
def model():
    with sonde.load("tiny-llama") as loaded:
        yield loaded


def scripted():
    return testing.ScriptedEnvironment()


def play(model, folder, **options):
    settings = {"episodes": 5, "wave": 3, "capture": SITES, "seed": 3, "runs_dir": folder}
    return playing.play(scripted, model, **{**settings, **options})


def episode_bytes(played):
    """Everything that is on disk of the episodes, but for when it was written."""
    found = {}
    for path in sorted(played.run.episodes_dir.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(played.run.episodes_dir))
            if path.suffix == ".json":
                told = json.loads(path.read_text())
                found[name] = {key: value for key, value in told.items() if key not in ("created", "closed", "crc32")}
            else:
                found[name] = path.read_bytes()
    return found


class Stop(BaseException):
    """As hard as a keyboard interrupt."""


def stop_after(steps):
    def told(progress):
        if progress.counts["steps"] >= steps:
            raise Stop

    return told


def test_episodes_are_played_and_recorded(model, tmp_path):
    played = play(model, tmp_path)
    assert [episode.task_id for episode in played] == [scripted().task_of(number).id for number in range(5)]
    assert [episode.steps for episode in played] == [len(scripted().task_of(n).turns) for n in range(5)]
    assert all(episode.error is None for episode in played)
    trajectory = played[0].trajectory
    assert len(trajectory) == played[0].steps
    assert trajectory.get_activation(0, "blocks.0.hook_resid_post").shape[-1] == model.cfg.d_model
    assert trajectory.reward == pytest.approx(sum(moment.reward for moment in trajectory.moments))
    assert played.run.status == "finished"


def test_what_was_seen_and_said_is_read_back(model, tmp_path):
    moments = play(model, tmp_path, episodes=1)[0].trajectory.moments
    turns = scripted().task_of(0).turns
    assert [moment.observation.messages[-1]["content"] for moment in moments] == list(turns)
    assert [m["content"] for m in moments[1].observation.messages] == [turns[0], moments[0].text, turns[1]]
    assert [moment.over for moment in moments] == [False] * (len(turns) - 1) + [True]


def test_the_seed_fixes_everything_and_another_one_changes_it(model, tmp_path):
    one, other = (episode_bytes(play(model, tmp_path / name)) for name in "ab")
    assert one == other
    assert episode_bytes(play(model, tmp_path / "c", seed=4)) != one


def test_an_episode_is_the_same_in_a_wave_and_alone(model, tmp_path):
    together, alone = (play(model, tmp_path / str(wave), wave=wave) for wave in (5, 1))
    for left, right in zip(together, alone, strict=True):
        assert [m.text for m in left.trajectory.moments] == [m.text for m in right.trajectory.moments]
        for step in range(left.steps):
            values = [one.trajectory.get_activation(step, "blocks.1.hook_resid_post") for one in (left, right)]
            assert torch.allclose(*values, atol=1e-4)


@pytest.mark.parametrize("stop", [1, 4, 9, 11, 14])
def test_an_interrupted_run_is_taken_up_bit_by_bit(model, tmp_path, stop):
    whole = play(model, tmp_path / "whole", run="it")
    with pytest.raises(Stop):
        play(model, tmp_path / "cut", run="it", on_progress=stop_after(stop))
    kept = {path: path.read_bytes() for path in (tmp_path / "cut").rglob("steps.jsonl")}
    told = []
    again = play(
        model,
        tmp_path / "cut",
        run="it",
        on_progress=lambda now: told.append((now.counts["steps"], now.counts["again"])),
    )
    assert episode_bytes(again) == episode_bytes(whole)
    assert all(path.read_bytes().startswith(before) for path, before in kept.items())
    assert told[-1][0] == sum(episode.steps for episode in whole) - sum(b.count(b"\n") for b in kept.values())


def test_finished_waves_are_not_played_again(model, tmp_path):
    with pytest.raises(Stop):
        play(model, tmp_path, run="it", on_progress=stop_after(13))  # the second wave has begun
    told = []
    play(
        model,
        tmp_path,
        run="it",
        on_progress=lambda now: told.append((now.counts["steps"], now.counts["again"], now.done)),
    )
    assert told[0][2] >= 3
    assert told[-1][0] + told[-1][1] <= 7 + 1  # the steps of the second wave


def test_a_finished_run_is_only_read(model, tmp_path):
    before = play(model, tmp_path, run="it")
    told = []
    after = play(model, tmp_path, run="it", on_progress=told.append)
    assert told == []
    assert after.rewards == before.rewards


def test_a_run_of_that_name_with_other_settings_is_refused(model, tmp_path):
    play(model, tmp_path, run="it", episodes=1)
    with pytest.raises(errors.RequestError, match=r"other settings.*episodes was 1, now 2"):
        play(model, tmp_path, run="it", episodes=2)


def test_conditions_are_paired_by_task_and_seed(model, tmp_path):
    steer = sonde.Steer(site="blocks.0.hook_resid_post", direction=np.zeros(model.cfg.d_model, np.float32))
    played = play(model, tmp_path, episodes=2, conditions={"base": (), "nothing": (steer,)})
    assert [episode.plan.condition for episode in played] == ["base", "nothing"] * 2
    for left, right in zip(played[0::2], played[1::2], strict=True):
        assert left.task_id == right.task_id
        assert [m.text for m in left.trajectory.moments] == [m.text for m in right.trajectory.moments]


def test_interventions_act_in_every_episode(model, tmp_path):
    zero = sonde.Zero(site="blocks.0.hook_resid_post")
    played = play(model, tmp_path, episodes=2, interventions=[zero])
    for episode in played:
        assert not episode.trajectory.get_activation(0, "blocks.0.hook_resid_post").any()


def test_without_a_capture_tokens_are_kept(model, tmp_path):
    trajectory = play(model, tmp_path, episodes=2, capture=None)[1].trajectory
    assert trajectory.site_names == []
    assert len(trajectory.generated(0)) > 0


class Breaks(testing.ScriptedEnvironment):
    """Fails in the second step of its second task."""

    async def _act(self, action):
        if self.task is not None and self.task.id == "missing-file" and self.step_count == 1:
            raise errors.EpisodeError("the repository does not build")
        return await super()._act(action)


def test_an_episode_that_fails_does_not_stop_the_others(model, tmp_path):
    played = playing.play(Breaks, model, episodes=3, runs_dir=tmp_path)
    assert [episode.error is None for episode in played] == [True, False, True]
    assert "does not build" in (played[1].error or "")
    assert played[1].steps == 1


def test_a_failed_episode_of_an_interrupted_wave_stays_failed(model, tmp_path):
    options = {"episodes": 3, "runs_dir": tmp_path, "run": "it"}
    with pytest.raises(Stop):
        playing.play(Breaks, model, on_progress=stop_after(8), **options)
    played = playing.play(Breaks, model, **options)
    assert [episode.error is None for episode in played] == [True, False, True]
    assert played[1].steps == 1
    assert [len(episode.trajectory) for episode in played] == [4, 1, 3]


def test_when_all_fail_the_reason_is_raised(model, tmp_path):
    class Down(testing.ScriptedEnvironment):
        async def _start(self, task):
            raise errors.EpisodeError("nothing here")

    with pytest.raises(errors.EpisodeError, match=r"all 2 episodes failed.*nothing here"):
        playing.play(Down, model, episodes=2, runs_dir=tmp_path)


def test_a_server_that_is_down_stops_the_run_and_it_can_be_taken_up(model, tmp_path):
    up = []

    class Needs(testing.ScriptedEnvironment):
        async def _act(self, action):
            if not up and self.step_count == 1:
                raise errors.ServerError("the oracle is down")
            return await super()._act(action)

    options = {"episodes": 2, "runs_dir": tmp_path, "run": "it"}
    with pytest.raises(errors.ServerError, match="oracle is down"):
        playing.play(Needs, model, **options)
    up.append(True)
    played = playing.play(Needs, model, **options)
    assert [episode.error for episode in played] == [None, None]
    assert played.progress.counts["again"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "episodes must be 1 or more, got 0"),
        ({"wave": 0}, "wave must be 1 or more, got 0"),
        ({"max_steps": 0}, "max_steps must be 1 or more, got 0"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
        ({"conditions": {}}, "conditions must have 1 or more"),
        ({"conditions": {"a": ()}, "interventions": ()}, "not both"),
        ({"engine": "slurm"}, "no engine"),
        ({"capture": {"places": 1}}, "capture takes"),
        ({"capture": "blocks.9.hook_resid_post"}, "blocks.9"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(model, tmp_path, options, message):
    with pytest.raises(errors.SondeError, match=message):
        play(model, tmp_path / "none", **options)
    assert not (tmp_path / "none").exists()


def test_an_unknown_option_suggests_the_right_one(model, tmp_path):
    with pytest.raises(TypeError, match="did you mean 'episodes'"):
        play(model, tmp_path, episode=3)


def test_a_function_cannot_be_resumed_by_name_alone(model, tmp_path):
    played = play(model, tmp_path, episodes=1)
    with pytest.raises(errors.OpaqueError, match="given as a function"):
        playing.resume(played.run.folder, model)


def test_what_all_episodes_begin_with_is_encoded_once(model, tmp_path):
    rules = "You are playing a game with very long rules. " * 8

    class Long(testing.ScriptedEnvironment):
        def ask(self, messages, **settings):
            return super().ask(messages, **{**settings, "system_prompt": rules})

    encoded = {}
    real = generation.Batch.run

    def counted(batch):
        answers = real(batch)
        encoded.setdefault(len(batch.rows), sum(row.encoded for row in batch.rows))
        return answers

    generation.Batch.run = counted
    try:
        together = playing.play(Long, model, episodes=3, runs_dir=tmp_path / "a")
    finally:
        generation.Batch.run = real
    alone = playing.play(Long, model, episodes=3, wave=1, runs_dir=tmp_path / "b")
    assert 1 in encoded, "a first request of its own encodes what is shared"
    assert encoded[3] < encoded[1]
    for left, right in zip(together, alone, strict=True):
        assert [m.text for m in left.trajectory.moments] == [m.text for m in right.trajectory.moments]


# The model of a run.


def stopped(model, folder, **options):
    """A run of a preset that was interrupted after two steps."""
    settings = {"episodes": 3, "wave": 1, "max_steps": 1, "generation": {"max_new_tokens": 4}, "runs_dir": folder}
    with pytest.raises(Stop):
        playing.play("20q", model, run="it", on_progress=stop_after(2), **{**settings, **options})
    return folder / "it"


def test_a_run_of_a_bfloat16_model_is_resumed_in_bfloat16(tmp_path):
    with sonde.load("tiny-llama", dtype="bfloat16", max_batch=5) as model:
        whole = playing.play("20q", model, episodes=3, wave=1, max_steps=1, generation={"max_new_tokens": 4},
                             capture=SITES, runs_dir=tmp_path / "whole", run="it")  # fmt: skip
        cut = stopped(model, tmp_path / "cut", capture=SITES)
    again = playing.resume(cut)
    assert again[2].trajectory.get_activation(0, "blocks.1.hook_resid_post").dtype == torch.bfloat16
    assert episode_bytes(again) == episode_bytes(whole)
    told = json.loads((cut / "manifest.json").read_text())["model"]
    assert (told["name"], told["dtype"], told["device"], told["options"]["max_batch"]) == (
        "tiny-llama", "bfloat16", "cpu", 5)  # fmt: skip


def test_a_run_is_not_resumed_with_a_model_of_another_type_or_with_other_weights(model, tmp_path):
    cut = stopped(model, tmp_path)
    told = r"not the model that run it has: .*bfloat16, not float32"
    with sonde.load("tiny-llama", dtype="bfloat16") as other, pytest.raises(errors.RequestError, match=told):
        playing.resume(cut, other)
    with sonde.load("tiny-llama") as other:
        other.hf.lm_head.weight.data[0, 0] += 1
        with pytest.raises(errors.RequestError, match="its weights are others"):
            playing.resume(cut, other)
        with pytest.raises(errors.RequestError, match="its weights are others"):
            playing.play("20q", other, run="it", runs_dir=tmp_path, episodes=3, wave=1, max_steps=1,
                         generation={"max_new_tokens": 4})  # fmt: skip
    assert playing.resume(cut, model).run.status == "finished"


def test_a_run_of_an_edited_model_is_not_resumed_with_the_original(tmp_path):
    with sonde.load("tiny-llama") as edited:
        with torch.no_grad():
            edited.hf.model.norm.weight.mul_(2)
        cut = stopped(edited, tmp_path)
        before = (cut / "episodes").stat().st_mtime_ns
        with pytest.raises(errors.ModelError, match=r"what 'tiny-llama' gives now.*weights are others"):
            playing.resume(cut)
        assert (cut / "episodes").stat().st_mtime_ns == before
        assert len(playing.resume(cut, edited)) == 3


def test_a_run_says_what_it_is_and_a_stopped_one_is_interrupted_until_it_is_finished(model, tmp_path):
    cut = stopped(model, tmp_path)
    run = store.Run.open(cut)
    assert (run.status, run.manifest["kind"]) == ("interrupted", "play")
    assert (run.manifest["model"]["device"], run.manifest["model"]["dtype"]) == ("cpu", "float32")
    with run.lock():
        assert run.status == "running"
        with pytest.raises(errors.StoreError, match="another process"):
            playing.resume(cut, model)
    again = playing.resume(cut, model)
    assert store.Run.open(cut).status == "finished"
    assert store.verify_run(cut) == []
    rows = json.loads((cut / "results.json").read_text())["episodes"]
    assert [(row["id"], row["steps"], row["reward"]) for row in rows] == [(e.plan.id, e.steps, e.reward) for e in again]


async def test_a_run_that_is_cancelled_is_interrupted(model, tmp_path):
    playing_on = asyncio.Event()
    work = asyncio.ensure_future(playing.play_async(scripted, model, run="it", runs_dir=tmp_path,
                                                    on_progress=lambda now: playing_on.set()))  # fmt: skip
    await playing_on.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert store.Run.open(tmp_path / "it").status == "interrupted"


def test_a_run_that_fails_says_why(model, tmp_path):
    class Down(testing.ScriptedEnvironment):
        async def _act(self, action):
            raise errors.ServerError("the oracle is down")

    with pytest.raises(errors.ServerError):
        playing.play(Down, model, runs_dir=tmp_path, run="it")
    run = store.Run.open(tmp_path / "it")
    assert (run.status, run.manifest["error"]) == ("failed", "ServerError: the oracle is down")


def test_a_model_that_is_named_is_loaded_as_asked_and_resumed_as_recorded(tmp_path):
    options = {"max_steps": 1, "generation": {"max_new_tokens": 4}, "runs_dir": tmp_path, "run": "it"}
    playing.play("20q", "tiny-llama", dtype="bfloat16", device="cpu", **options)
    assert store.Run.open(tmp_path / "it").manifest["model"]["dtype"] == "bfloat16"
    assert playing.resume(tmp_path / "it", "tiny-llama").run.status == "finished"
    with pytest.raises(errors.RequestError, match=r"its weights are of type float32, not bfloat16"):
        playing.play("20q", "tiny-llama", **options)
    with sonde.load("tiny-llama") as loaded, pytest.raises(errors.RequestError, match="leave out dtype"):
        playing.play("20q", loaded, dtype="bfloat16", **options)


def test_the_command_of_a_run_asks_for_the_same(model, tmp_path):
    options = {
        "episodes": 2,
        "max_steps": 1,
        "capture": "blocks.1.hook_resid_post",
        "seed": 4,
        "options": {"step_limit": 3},
    }
    settings = playing.settings_of("20q:0:2", model, options)
    words = shlex.split(plays.Play(model, "20q:0:2").command(settings))
    asked = typer.main.get_command(cli.app).make_context("play", words[2:]).params
    assert (asked["environment"], asked["model"], asked["option"]) == ("20q:0:2", "tiny-llama", ["step_limit=3"])
    assert (asked["episodes"], asked["max_steps"], asked["seed"]) == (2, 1, 4)
    assert (asked["capture"], asked["max_new_tokens"]) == (["blocks.1.hook_resid_post"], 64)
    assert plays.Play(model, scripted).command(playing.settings_of(scripted, model, options)) == ""


def test_a_run_of_an_earlier_version_is_resumed_by_the_name_it_has(model, tmp_path):
    cut = stopped(model, tmp_path)
    told = documents.read(cut / "manifest.json")
    documents.write(cut / "manifest.json", {**told, "model": {"name": told["model"]["name"]}})
    assert playing.resume(cut).run.status == "finished"


# Forks.


def test_a_fork_goes_on_from_what_was_played(model, tmp_path):
    trajectory = play(model, tmp_path, episodes=1)[0].trajectory
    forks = trajectory.fork(2, n=4)
    turns = scripted().task_of(0).turns
    assert len(forks) == 4
    for fork in forks:
        assert len(fork) == len(turns) - 2
        past = [moment.text for moment in trajectory.moments[:2]]
        seen = [message["content"] for message in fork.moments[0].observation.messages]
        assert seen == [turns[0], past[0], turns[1], past[1], turns[2]]
        prompt = trajectory.prompt_length(2)
        assert fork.prompt_length(0) == prompt
    assert len({fork.moments[0].text for fork in forks}) > 1, "each draws its own random numbers"
    before = sum(moment.reward for moment in trajectory.moments[:2])
    assert forks[0].reward == pytest.approx(before + sum(moment.reward for moment in forks[0].moments))


def test_a_fork_without_change_and_chance_repeats_the_episode(model, tmp_path):
    greedy = {"temperature": 0.0}
    trajectory = play(model, tmp_path, episodes=1, generation=greedy)[0].trajectory
    for step in range(len(trajectory)):
        (fork,) = trajectory.fork(step)
        assert [m.text for m in fork.moments] == [m.text for m in trajectory.moments[step:]]
        assert fork.reward == pytest.approx(trajectory.reward)


def test_a_fork_under_an_intervention_equals_an_episode_that_had_it_from_there_on(model, tmp_path):
    site = "blocks.1.hook_mlp_out"
    greedy = {"temperature": 0.0}
    base = play(model, tmp_path / "a", episodes=1, generation=greedy)[0].trajectory
    late = sonde.Zero(site=site, steps=(2, 3))
    whole = play(model, tmp_path / "b", episodes=1, generation=greedy, interventions=[late])[0].trajectory
    (fork,) = base.fork(2, interventions=[sonde.Zero(site=site)])
    assert [m.text for m in fork.moments] == [m.text for m in whole.moments[2:]]


def test_the_past_of_a_fork_is_encoded_once(model, tmp_path):
    trajectory = play(model, tmp_path, episodes=1, wave=8)[0].trajectory
    rows = []
    real = generation.Batch.run

    def counted(batch):
        rows.append((len(batch.rows), max(row.reused for row in batch.rows)))
        return real(batch)

    generation.Batch.run = counted
    try:
        trajectory.fork(3, n=5, capture=[])
    finally:
        generation.Batch.run = real
    assert rows[0][0] == 1
    assert rows[1] == (5, trajectory.prompt_length(3) - 1)


@pytest.mark.parametrize("step", [-1, 99])
def test_a_fork_at_no_step_is_refused(model, tmp_path, step):
    trajectory = play(model, tmp_path, episodes=1)[0].trajectory
    with pytest.raises(errors.EpisodeError, match="no step"):
        trajectory.fork(step)


async def test_a_fork_can_be_awaited(model, tmp_path):
    played = await playing.play_async(scripted, model, episodes=1, runs_dir=tmp_path)
    (fork,) = await played[0].trajectory.fork(1)
    assert len(fork) == played[0].steps - 1


class Forgetful(testing.ScriptedEnvironment):
    """No snapshots, and never the same twice."""

    snapshot = None
    restore = None
    count = 0

    def ask(self, messages, **settings):
        Forgetful.count += 1
        return super().ask([*messages[:-1], {"role": "user", "content": f"{Forgetful.count}"}], **settings)


def test_an_environment_that_does_not_repeat_itself_says_so(model, tmp_path):
    trajectory = playing.play(Forgetful, model, episodes=1, runs_dir=tmp_path)[0].trajectory
    with pytest.raises(errors.EpisodeError, match="does not repeat itself"):
        trajectory.fork(1)


class Plain(testing.ScriptedEnvironment):
    """No snapshots: taken back by doing once more what was done."""

    snapshot = None
    restore = None


def test_without_snapshots_the_past_is_done_once_more(model, tmp_path):
    greedy = {"temperature": 0.0}
    trajectory = playing.play(Plain, model, episodes=1, runs_dir=tmp_path, generation=greedy)[0].trajectory
    assert all(moment.snapshot is None for moment in trajectory.moments)
    (fork,) = trajectory.fork(2)
    assert [m.text for m in fork.moments] == [m.text for m in trajectory.moments[2:]]


def test_a_trajectory_recorded_without_its_conversation_cannot_tell_it(model):
    with sonde.automatic_activation_capture(model, SITES) as capture:
        model.generate("hello", max_new_tokens=2)
    with pytest.raises(errors.EpisodeError, match="without its conversation"):
        history.moments(capture.get_trajectory())


async def test_an_episode_with_a_client_without_a_model_keeps_the_conversation():
    client = testing.ScriptedClient(["one", "two", "three", "four"])
    trajectory = await sonde.run_episode(scripted(), client)
    assert [moment.text for moment in trajectory.moments] == ["one", "two", "three", "four"]
    assert trajectory.site_names == []
    with pytest.raises(errors.EpisodeError, match="does not know its environment"):
        trajectory.fork(1)


async def test_an_episode_played_by_hand_can_be_forked(model):
    client = sonde.HookedTransformerLLMClient(model, max_new_tokens=8)
    trajectory = await sonde.run_episode(scripted(), client)
    forks = await trajectory.fork(1, n=2)
    assert [len(fork) for fork in forks] == [len(trajectory) - 1] * 2
    assert forks[0].moments[0].observation.messages[1]["content"] == trajectory.moments[0].text
