"""Forks are played as their parent was, know their past, and can be saved, loaded and forked again."""

import numpy as np
import pytest
import torch

import sonde
from sonde import testing
from sonde.agents import playing, trajectories
from sonde.core import errors

SITE = "blocks.1.hook_resid_post"
GREEDY = {"temperature": 0.0, "max_new_tokens": 8}


@pytest.fixture(scope="module")
def model():
    with sonde.load("tiny-llama") as loaded:
        yield loaded


def one():
    return testing.ScriptedEnvironment(testing.scripted_tasks()[:1])  # four steps


class Plain(testing.ScriptedEnvironment):
    """No snapshots: taken back by doing once more what was done."""

    snapshot = None
    restore = None


def plain():
    return Plain(testing.scripted_tasks()[:1])


@pytest.fixture(scope="module")
def played(model, tmp_path_factory):
    """An episode of four steps, greedy, recorded at all positions."""
    options = {"capture": "blocks.*.hook_resid_post", "generation": GREEDY}
    return playing.play(one, model, runs_dir=tmp_path_factory.mktemp("runs"), run="it", **options)


def client(model, **options):
    return sonde.HookedTransformerLLMClient(model, generation_kwargs=GREEDY, **options)


def texts(trajectory):
    return [moment.text for moment in trajectory.moments]


def rewards(trajectory):
    return [moment.reward for moment in trajectory.moments]


def same_record(left, right, sites, steps=None):
    """Whether two trajectories say the same of each step, activations up to the batch's last bits."""
    assert len(left) == len(right)
    for step in range(len(left)) if steps is None else steps:
        assert torch.equal(left.tokens(step), right.tokens(step))
        assert torch.equal(left.positions(step), right.positions(step))
        assert left.generated(step) == right.generated(step)
        assert left.prompt_length(step) == right.prompt_length(step)
        for site in sites:
            values = left.get_activation(step, site), right.get_activation(step, site)
            assert values[0].shape == values[1].shape
            assert torch.allclose(*values, atol=1e-4)
    assert left.moments == right.moments
    assert left.reward == pytest.approx(right.reward)


# What a fork inherits.


def test_a_fork_of_an_episode_played_by_hand_stops_where_that_did(model):
    parent = sonde.run_episode(one(), client(model), max_steps=3)
    (fork,) = parent.fork(1)
    assert (len(parent), len(fork), len(fork.whole)) == (3, 2, 3)
    assert fork.reward == pytest.approx(sum(rewards(parent)[:1]) + sum(rewards(fork)))
    assert fork.reward == pytest.approx(parent.reward)
    assert len(parent.fork(1, max_steps=4)[0]) == 3
    assert len(fork.fork(0)[0]) == 2


def test_a_fork_of_a_played_episode_stops_where_that_did_also_after_resuming(model, tmp_path):
    found = playing.play("20q", model, max_steps=3, generation=GREEDY, runs_dir=tmp_path, run="it")
    for trajectory in (found[0].trajectory, playing.resume(tmp_path / "it", model)[0].trajectory):
        (fork,) = trajectory.fork(1)
        assert len(fork) == 2
        assert fork.reward == pytest.approx(trajectory.reward) == -3


def test_a_fork_records_what_its_parent_recorded(model, tmp_path):
    capture = {"hook_filter": SITE, "positions": "last_prompt", "dtype": "float16"}
    found = playing.play(one, model, capture=capture, generation=GREEDY, runs_dir=tmp_path)[0].trajectory
    recorder = sonde.ActivationCapture(model, SITE, positions="last_prompt", dtype="float16")
    by_hand = sonde.run_episode(one(), client(model), recorder)
    for parent in (found, by_hand):
        (fork,) = parent.fork(2)
        (again,) = fork.fork(1)
        assert fork.site_names == again.site_names == [SITE]
        for step, here in ((2, fork), (3, again)):
            value = here.get_activation(0, SITE)
            assert value.shape == (1, 1, model.cfg.d_model)
            assert value.dtype == torch.float16
            assert torch.allclose(value, parent.get_activation(step, SITE), atol=1e-2)
    (default,) = sonde.run_episode(one(), client(model)).fork(1)
    assert default.site_names == ["blocks.3.hook_resid_post"]


def test_what_a_fork_records_can_be_said(played):
    trajectory = played[0].trajectory
    assert trajectory.fork(3, capture=[])[0].site_names == []
    (fork,) = trajectory.fork(3, capture={"hook_filter": "blocks.0.hook_mlp_out", "positions": "last"})
    assert fork.get_activation(0, "blocks.0.hook_mlp_out").shape[1] == 1
    with pytest.raises(errors.RequestError, match="capture takes"):
        trajectory.fork(3, capture={"sites": SITE})
    with pytest.raises(errors.SiteError):
        trajectory.fork(3, capture="blocks.9.hook_resid_post")


def test_a_fork_keeps_the_interventions_of_a_client_and_of_a_manager(model):
    zero = sonde.Zero(site="blocks.1.hook_mlp_out")
    manager = sonde.InterventionManager(model)
    manager.add_intervention("blocks.2.hook_attn_out", sonde.create_zero_ablation_hook())
    hooked = client(model, fwd_hooks=[zero])
    both = sonde.run_episode_with_intervention(one(), hooked, manager)
    assert texts(both) != texts(sonde.run_episode(one(), hooked))
    assert texts(both) != texts(sonde.run_episode(one(), client(model)))
    for step in (0, 2):
        assert texts(both.fork(step)[0]) == texts(both)[step:]
    assert texts(both.fork(2, interventions=[])[0]) != texts(both)[2:]


def test_a_manager_in_force_while_forking_acts_once(model):
    steer = sonde.Steer(site=SITE, direction=np.linspace(-1, 1, model.cfg.d_model, dtype=np.float32), strength=2.0)
    manager = sonde.InterventionManager(model)
    manager.add_intervention(hook_fn=steer)
    with manager:
        parent = sonde.run_episode(one(), client(model), sonde.ActivationCapture(model, SITE))
        inside = parent.fork(2)[0]
    outside = parent.fork(2)[0]
    for fork in (inside, outside):
        assert torch.allclose(fork.get_activation(0, SITE), parent.get_activation(2, SITE), atol=1e-4)


def test_a_fork_keeps_the_clients_template(model):
    template = "{% for m in messages %}[{{ m['role'] }}: {{ m['content'] }}]{% endfor %}"
    parent = sonde.run_episode(one(), client(model, chat_template=template), sonde.ActivationCapture(model, SITE))
    (fork,) = parent.fork(2)
    assert torch.equal(fork.tokens(0), parent.tokens(2))
    assert "[user: " in model.tokenizer.decode(fork.tokens(0))


async def test_an_episode_whose_client_asks_a_function_for_its_hooks_cannot_be_forked(model):
    async def names(state):
        return ["blocks.0.hook_mlp_out"]

    for hooks in (lambda state: [], [(names, sonde.create_zero_ablation_hook())]):
        found = await sonde.run_episode(one(), client(model, fwd_hooks=hooks), max_steps=1)
        with pytest.raises(errors.EpisodeError, match="does not know its environment"):
            found.fork(0)


def test_a_fork_draws_by_the_seed_of_the_client_that_played_its_parent(model):
    forks = []
    for seed in (3, 3, -4):
        settings = {"temperature": 1.0, "max_new_tokens": 8, "seed": seed}
        player = sonde.HookedTransformerLLMClient(model, generation_kwargs=settings)
        forks.append(texts(sonde.run_episode(one(), player, max_steps=2).fork(0)[0]))
    assert forks[0] == forks[1] != forks[2]


def test_an_episode_whose_model_was_loaded_for_the_run_says_how_to_fork_it(tmp_path):
    by_name = playing.play("20q", "tiny-llama", max_steps=2, generation=GREEDY, runs_dir=tmp_path, run="it")
    for found in (by_name, playing.resume(tmp_path / "it")):
        with pytest.raises(errors.EpisodeError, match=r"is closed.*sonde\.resume\(run, model\)"):
            found[0].trajectory.fork(1)


def test_an_episode_of_no_steps_is_still_a_trajectory(model):
    assert len(sonde.run_episode(one(), client(model), max_steps=0)) == 0


# Forks of forks.


@pytest.mark.parametrize("make", [one, plain])
def test_a_fork_of_a_fork_goes_on_with_the_whole_past(model, tmp_path, make):
    parent = playing.play(make, model, generation=GREEDY, runs_dir=tmp_path)[0].trajectory
    (fork,) = parent.fork(1)
    for step in range(3):
        (again,) = fork.fork(step)
        assert again.first == 1 + step
        assert texts(again) == texts(parent)[1 + step :]
        assert again.reward == pytest.approx(parent.reward)
        assert again.prompt_length(0) == parent.prompt_length(1 + step)
    with pytest.raises(errors.EpisodeError, match="steps 0 to 2"):
        fork.fork(3)


def test_a_fork_of_a_fork_draws_numbers_of_its_own(model, tmp_path):
    parent = playing.play(one, model, runs_dir=tmp_path)[0].trajectory
    forks = parent.fork(1, n=2)
    again = [other for fork in forks for other in fork.fork(0, n=2)]
    assert len({tuple(texts(other)) for other in [*forks, *again]}) == 6


@pytest.mark.parametrize("after", ["clean", "persist"])
def test_each_step_of_the_past_stays_under_the_interventions_it_was_played_under(model, tmp_path, after):
    sites = [f"blocks.{layer}.hook_mlp_out" for layer in range(3)]

    def zero(layer, *steps):
        return sonde.Zero(
            site=sites[layer], steps=steps or None, after=after, scope="new" if after == "persist" else "context"
        )

    late = [zero(0, 0), zero(1, 1, 2), zero(2, 3)]
    whole = playing.play(one, model, generation=GREEDY, interventions=late, runs_dir=tmp_path / "a")[0].trajectory
    first = playing.play(one, model, generation=GREEDY, interventions=[zero(0)], runs_dir=tmp_path / "b")[0].trajectory
    (second,) = first.fork(1, interventions=[zero(1)])
    (third,) = second.fork(2, interventions=[zero(2)])
    assert [*texts(first)[:1], *texts(second)[:2], *texts(third)] == texts(whole)
    third.whole.save(tmp_path / "saved")
    for trajectory in (third.whole, trajectories.EpisodeTrajectory.load(tmp_path / "saved", model, one)):
        assert texts(trajectory) == texts(whole)
        (again,) = trajectory.fork(2, interventions=[zero(1)])
        assert texts(again)[0] == texts(whole)[2]
        assert [[spec.site for spec in under] for _, under in trajectory.past(3)] == [
            [sites[0]],
            [sites[1]],
            [sites[1]],
        ]


# The whole episode.


def test_the_whole_of_a_fork_is_the_episode_from_its_start(played):
    trajectory = played[0].trajectory
    assert trajectory.whole is trajectory
    for step in range(4):
        (fork,) = trajectory.fork(step)
        same_record(fork.whole, trajectory, trajectory.site_names)
        assert fork.whole.metadata == fork.metadata
        assert (len(fork), fork.first, fork.metadata["forked_at"]) == (4 - step, step, step)


def test_the_whole_of_a_fork_of_a_fork_has_each_steps_own_record(model, tmp_path):
    parent = playing.play(one, model, capture=SITE, runs_dir=tmp_path)[0].trajectory
    (fork,) = parent.fork(1, interventions=[sonde.Zero(site="blocks.1.hook_mlp_out")])
    (again,) = fork.fork(1)
    whole = again.whole
    assert texts(whole) == [*texts(parent)[:1], *texts(fork)[:1], *texts(again)]
    assert sum(rewards(whole)) == pytest.approx(whole.reward)
    for step, (source, number) in enumerate([(parent, 0), (fork, 0), (again, 0), (again, 1)]):
        assert torch.equal(whole.get_activation(step, SITE), source.get_activation(number, SITE))
        assert torch.equal(whole.tokens(step), source.tokens(number))
        assert whole.steps[step].metadata == source.steps[number].metadata


def test_a_whole_episode_is_saved_loaded_and_forked_again(model, played, tmp_path):
    (fork,) = played[0].trajectory.fork(2)
    fork.whole.save(tmp_path / "whole")
    loaded = trajectories.EpisodeTrajectory.load(tmp_path / "whole", model, environment=one)
    same_record(loaded, fork.whole, fork.site_names)
    assert loaded.metadata == fork.whole.metadata
    same_record(loaded.fork(3)[0].whole, played[0].trajectory, fork.site_names)
    (short,) = loaded.fork(1, max_steps=2)
    assert len(short) == 1
    assert len(trajectories.EpisodeTrajectory.load(tmp_path / "whole")) == 4  # to look at, no model is needed
    assert len(sonde.TrajectoryActivations.load(tmp_path / "whole")) == 4


def test_a_saved_episode_of_a_preset_finds_its_environment_by_itself(model, tmp_path):
    found = playing.play("20q:3", model, max_steps=3, generation=GREEDY, runs_dir=tmp_path, seed=5)[0].trajectory
    found.save(tmp_path / "saved")
    loaded = trajectories.EpisodeTrajectory.load(tmp_path / "saved", model)
    (fork,) = loaded.fork(1)
    assert texts(fork) == texts(found)[1:]
    assert fork.metadata["task_id"] == found.metadata["task_id"]


def test_a_saved_episode_played_by_hand_keeps_its_template_and_limit(model, tmp_path):
    template = "{% for m in messages %}[{{ m['role'] }}: {{ m['content'] }}]{% endfor %}"
    parent = sonde.run_episode(one(), client(model, chat_template=template), max_steps=3)
    parent.save(tmp_path / "saved")
    loaded = trajectories.EpisodeTrajectory.load(tmp_path / "saved", model, one)
    assert texts(loaded.fork(1)[0]) == texts(parent)[1:]


def test_a_saved_episode_is_forked_by_its_own_model_and_environment_only(model, played, tmp_path):
    fork = played[0].trajectory.fork(1)[0]
    fork.whole.save(tmp_path / "whole")
    fork.save(tmp_path / "part")
    with sonde.load("tiny-llama") as edited:
        edited.hf.model.norm.weight.data[0] += 1
        with pytest.raises(errors.RequestError, match="not the model that the saved episode has: its weights"):
            trajectories.EpisodeTrajectory.load(tmp_path / "whole", edited, one)
    with pytest.raises(errors.OpaqueError, match="environment=…"):
        trajectories.EpisodeTrajectory.load(tmp_path / "whole", model)
    with pytest.raises(errors.EpisodeError, match=r"of a fork its \.whole"):
        trajectories.EpisodeTrajectory.load(tmp_path / "part", model, one)
    with pytest.raises(errors.EpisodeError, match="load it with its model"):
        trajectories.EpisodeTrajectory.load(tmp_path / "whole").fork(1)
    plain_function = [("blocks.0.hook_mlp_out", lambda value, hook: value)]
    sonde.run_episode(one(), client(model, fwd_hooks=plain_function), max_steps=1).save(tmp_path / "opaque")
    with pytest.raises(errors.OpaqueError, match="was not stored"):
        trajectories.EpisodeTrajectory.load(tmp_path / "opaque", model, one)


@pytest.mark.parametrize(
    ("before", "later", "kept"),
    [
        ([SITE], [], [SITE]),
        ([], [SITE], [SITE]),
        ([SITE], [SITE, "blocks.0.attn.hook_pattern"], [SITE, "blocks.0.attn.hook_pattern"]),
        (["blocks.0.attn.hook_pattern", SITE], [SITE], [SITE, "blocks.0.attn.hook_pattern"]),
        ([SITE, "hook_embed"], [SITE, "blocks.0.attn.hook_pattern"], [SITE, "hook_embed"]),
    ],
)
def test_sites_that_one_part_recorded_are_read_there_and_named_as_missing_elsewhere(
    model, tmp_path, before, later, kept
):
    parent = playing.play(one, model, capture=before, generation=GREEDY, runs_dir=tmp_path)[0].trajectory
    (fork,) = parent.fork(2, capture=later)
    fork.whole.save(tmp_path / "whole")
    for whole in (fork.whole, sonde.TrajectoryActivations.load(tmp_path / "whole")):
        assert sorted(whole.site_names) == sorted(kept)
        for step in range(4):
            part, number, sites = (parent, step, before) if step < 2 else (fork, step - 2, later)
            for site in kept:
                if site in sites:
                    assert torch.equal(whole.get_activation(step, site), part.get_activation(number, site))
                else:
                    with pytest.raises(errors.CaptureError, match="was not recorded in this step"):
                        whole.get_activation(step, site)


def test_the_whole_of_a_fork_from_the_start_has_the_forks_sites_only(played):
    (fork,) = played[0].trajectory.fork(0, capture=[])
    assert fork.whole.site_names == []
    assert texts(fork.whole) == texts(played[0].trajectory)


def test_no_more_of_the_past_is_kept_than_its_steps_refer_to(played):
    trajectory = played[0].trajectory
    (fork,) = trajectory.fork(1, capture=[])
    tokens = len(trajectory.tokens(0))
    assert fork.whole.records.count == tokens + fork.records.count
