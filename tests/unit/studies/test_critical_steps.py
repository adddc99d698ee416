"""The critical-steps study: each stage against a plain reference, kept on disk, and honest about bad input."""

import asyncio
import dataclasses
import json
import shlex
import shutil

import numpy as np
import pytest
import torch
import typer
import typer.main
import typer.testing

import sonde
from sonde import experiments, store, testing
from sonde._cli import screens, study_critical
from sonde.core import errors
from sonde.studies.critical_steps import (
    ablations,
    contexts,
    estimates,
    pages,
    results,
    rollouts,
    screening,
    settings,
    study,
)
from sonde.testing import planted

STEPS = 3
SMALL = {"episodes": 3, "layers": (0, 3), "rollouts": 2, "heads": 1, "seed": 1}


def world():
    return planted.PlantedEnvironment(8, steps=STEPS, critical_step=1)


def run(source, model, folder, *, name=None, tell=None, **options):
    chosen = settings.settings_of(source, model.cfg, **options)
    return experiments.run(study.CriticalSteps(model, source), chosen, run=name, runs_dir=folder, on_progress=tell)


@pytest.fixture(scope="module")
def model():
    with planted.model() as made:
        yield made


@pytest.fixture(scope="module")
def played(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("played")
    return sonde.play(world, model, episodes=3, seed=1, runs_dir=folder, run="episodes")


@pytest.fixture(scope="module")
def found(model, tmp_path_factory):
    return run(world, model, tmp_path_factory.mktemp("runs"), name="small", **SMALL)


def rebuilt(episode):
    return contexts.rebuilt(episode.trajectory)


def untimed(folder):
    told = json.loads((folder / "results.json").read_bytes())
    told.pop("timing")
    return json.dumps(told)


# Contexts


def test_rebuilt_contexts_are_the_tokens_that_were_played(played):
    trajectory = played[0].trajectory
    for step, context in enumerate(rebuilt(played[0])):
        assert list(context.tokens[:-1]) == trajectory.tokens(step).tolist()
        assert context.tokens[context.prompt_length :] == trajectory.generated(step)
        assert list(context.positions[:-1]) == trajectory.positions(step).tolist()


def test_a_context_that_does_not_go_on_ends_the_chain():
    first = contexts.Context((1, 2, 3), 2, (0, 1, 2))
    second = contexts.Context((1, 2, 3, 4, 5), 4, (0, 1, 2, 3, 4))
    other = contexts.Context((9, 2, 3, 4, 5), 4, (0, 1, 2, 3, 4))
    moved = contexts.Context((1, 2, 3, 4, 5), 4, (0, 1, 3, 4, 5))
    assert contexts.ends([first, second]) == [1, 1]
    assert contexts.ends([first, other]) == [0, 1]
    assert contexts.ends([first, moved]) == [0, 1]
    assert contexts.ends([first, second, other]) == [1, 1, 2]


# Screening


def reference(model, steps, step, target, horizon):
    """The same by whole forward passes, without a cache and one at a time."""
    end = min(step + horizon, len(steps) - 1)
    tokens = torch.tensor(steps[end].tokens[:-1])
    hooks = ablations.recorded(target, "zero", {}, steps[step])
    hooks = [
        dataclasses.replace(hook, positions=[p for p in hook.positions if p < len(tokens)])  # as the engine clips them
        for hook in hooks
    ]
    clean, changed = (model.run_with_hooks(tokens, held)[0].double().log_softmax(dim=-1) for held in ([], hooks))
    kl = (clean.exp() * (clean - changed)).sum(dim=-1)
    each = [float(kl[one.predicting].mean()) for one in steps[step : end + 1]]
    return each[0], (float(np.mean(each[1:])) if each[1:] else None)


@pytest.mark.parametrize("horizon", [0, 2])
def test_screening_equals_whole_forward_passes(model, played, horizon):
    steps = rebuilt(played[1])
    targets = [
        ablations.Target((f"blocks.{layer}.hook_attn_out", f"blocks.{layer}.hook_mlp_out")) for layer in (0, 3, 5)
    ]
    plan = screening.Plan(dict.fromkeys(range(STEPS), targets), "zero", horizon, wave=2)
    moved = screening.screen(model, steps, {}, plan)
    for step in range(STEPS):
        sham, *others = moved[step]
        assert sham.own < 1e-6
        for target, one in zip(targets, others, strict=True):
            own, later = reference(model, steps, step, target, horizon)
            assert one.own == pytest.approx(own, abs=1e-5)
            assert (one.later is None) == (later is None)
            assert one.later is None or one.later == pytest.approx(later, abs=1e-5)
    assert max(one.own for one in (moved[step][2] for step in range(STEPS))) > 0.05, "the deciding layer must move it"


def test_means_are_those_of_the_recorded_positions(model, played):
    site = "blocks.3.hook_mlp_out"
    means = ablations.means_of(model, [rebuilt(one) for one in played], [site])[site]
    last, said = [], []
    for episode in played:
        steps = rebuilt(episode)
        _, cache = model.run_with_cache(torch.tensor(steps[-1].tokens[:-1]), site)
        values = cache[site][0]
        last += [values[step.prompt_length - 1] for step in steps]
        said += [values[slot] for step in steps for slot in step.generated if slot < len(values)]
    np.testing.assert_allclose(means[0], torch.stack(last).mean(dim=0), atol=1e-5)
    np.testing.assert_allclose(means[1], torch.stack(said).mean(dim=0), atol=1e-5)


# Rollouts


def test_continuations_under_the_sham_are_those_of_a_plain_fork(played):
    trajectory = played[0].trajectory
    sham = ablations.played(ablations.Target(("blocks.3.hook_mlp_out",)), "sham", {}, 0)
    rolled = asyncio.run(rollouts.roll_out(trajectory, 0, {"sham": sham, "none": ()}, n=8, wave=16))
    plain = [rollouts.Outcome.of(one) for one in trajectory.fork(0, n=8)]
    assert rolled["sham"] == rolled["none"] == plain
    assert len({(one.own, one.later) for one in plain}) > 1, "each continuation draws numbers of its own"


def test_an_outcome_counts_the_later_steps_only(played):
    (continuation,) = played[0].trajectory.fork(1, n=1)
    notes = continuation.step_metadata
    assert len(notes) == 2
    outcome = rollouts.Outcome.of(continuation)
    assert outcome.own == notes[0]["info"]["valid"]
    assert outcome.later == float(notes[1]["info"]["valid"])
    assert outcome.reward == notes[1]["reward"]


# Choosing and claiming


def matrix(value):
    layers, steps = range(len(value)), range(len(value[0]))
    return {"layers": list(layers), "steps": list(steps), "value": value}


def test_every_step_is_rolled_out_at_its_strongest_layer_before_any_step_gets_a_second():
    screened = matrix([[9, 1, 0, 5], [8, 2, 0, 5], [7, 0, 3, 6]])
    chosen, random = results.choose(screened, [0, 1, 2], None, seed=0)
    assert chosen == [results.Cell(0, 0), results.Cell(1, 1), results.Cell(2, 2)]
    assert len(random) == 3
    assert not set(chosen) & set(random)
    assert {cell.step for cell in random} <= {0, 1, 2}
    assert results.choose(screened, [0, 1, 2], 1, seed=0)[0] == [results.Cell(0, 0)]
    assert results.choose(screened, [0, 1, 2], 4, seed=0)[0][:2] == [results.Cell(0, 0), results.Cell(0, 1)]
    assert results.choose(screened, [0, 1, 2], 99, seed=0)[1] == []


def rolled_out(step, treated, control):
    pair = (treated, control)
    return results.cell_of(results.Cell(step, 0), 0.1, [pair, pair, pair], chosen=True)


def test_a_claim_needs_more_than_one_test_in_twenty_would_give_by_chance():
    clear = rolled_out(0, [0.1] * 8, [0.9] * 8)
    weak = rolled_out(1, [0.1] * 5 + [0.9] * 3, [0.5] * 8)
    found = results.claims([clear, weak], 0.05)
    first, second = found["cells"]
    assert found["outcome"] == "later"
    assert first["critical"]
    assert first["p_holm"] == pytest.approx(2 * 2 / 2**8)
    assert not second["critical"]
    many = [clear, *(rolled_out(step, [0.5, 0.4] * 4, [0.4, 0.5] * 4) for step in range(1, 9))]
    assert not results.critical(results.claims(many, 0.05)["cells"]), "nine tests, smallest p 2/256"


def test_pairs_without_later_steps_are_left_out_and_nothing_to_test_is_an_error():
    pair = results.compared([0.5, None, 1.0], [0.0, 1.0, None])
    assert pair is None
    assert results.compared([0.5, None, 1.0], [0.0, 1.0, 0.5])["pairs"] == 2
    with pytest.raises(errors.AnalysisError, match="fewer than two episodes"):
        results.claims([rolled_out(0, [1.0, None], [None, 1.0])], 0.05)


# The whole


def test_a_study_has_all_its_parts(found):
    told = found.results
    value = results.numbers(told["matrix"], "value")
    assert value.shape == (2, STEPS)
    assert told["matrix"]["n"] == [3] * STEPS
    assert told["matrix"]["sham"] < 1e-6 < value.min()
    assert told["outcome"] == "later"
    assert {one["step"] for one in told["cells"]} == {0, 1}, "the last step has nothing after it"
    assert sum(one["chosen"] for one in told["cells"]) == 2
    assert len(told["heads"]) == 4
    assert told["critical_steps"] == [], "three episodes cannot prove anything"
    assert store.verify_run(found.folder) == []
    assert found.run.manifest["model"]["dtype"] == "float32"


def test_a_study_that_was_killed_goes_on_to_the_same_result_and_computes_nothing_twice(found, model, tmp_path):
    for stage in ("heads", "head-means", "rollouts", "screen", "means", "play"):
        folder = tmp_path / stage / "small"
        shutil.copytree(found.folder, folder)
        made = folder / "stages"
        names = [one.name for one in study.CriticalSteps.stages]
        lost = [made / f"{name}.json" for name in names[names.index(stage) :]] + [folder / "results.json"]
        for later in names[names.index(stage) + 1 :]:
            lost += [*(made / later).glob("*.json")]
        lost += sorted((made / stage).glob("*.json"))[2:]
        for path in lost:
            path.unlink()
        before = {
            path: path.stat().st_mtime_ns for path in (*folder.glob("played/episodes/*/*"), *made.glob("*/*.json"))
        }
        told = []
        run(world, model, tmp_path / stage, name="small", tell=told.append, **SMALL)
        assert {path: path.stat().st_mtime_ns for path in before} == before
        assert untimed(folder) == untimed(found.folder)
        items = {"screen": 3, "rollouts": 6, "heads": 3}
        finished = {now.what: now.total for now in told if now.done == now.total}
        assert finished == {name: items[name] for name in names[names.index(stage) :] if name in items}


def test_played_episodes_give_what_playing_them_first_gives(found, model, played, tmp_path):
    options = {name: value for name, value in SMALL.items() if name != "episodes"}
    again = run(played, model, tmp_path, **options)
    assert again.results["settings"]["source"] == played.run.id
    assert again.results["matrix"] == found.results["matrix"]
    assert again.results["cells"] == found.results["cells"]


def test_an_environment_without_verdicts_and_snapshots_is_judged_by_its_reward(tmp_path):
    class Plain:
        """The scripted environment, and nothing but what an environment must have."""

        def __init__(self):
            self.inner = testing.ScriptedEnvironment(testing.scripted_tasks()[2:], max_output_tokens=3)
            self.reset, self.step, self.close = self.inner.reset, self.inner.step, self.inner.close

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            await self.close()

    with sonde.load("tiny-gpt2") as tiny:
        found = run(Plain, tiny, tmp_path, episodes=2, layers=(1,), rollouts=1, heads=0, horizon=0).results
    assert found["outcome"] == "reward"
    assert all(one["later"] is None and one["reward"]["pairs"] == 2 for one in found["cells"])


def test_the_page_says_what_was_found_and_shows_the_matrix(found):
    assert [chart.key for section in found.report.sections for chart in section.charts] == [
        "impact",
        "effects",
        "heads",
    ]
    assert "No step can be called critical" in found.report.summary[0]
    assert found.html.name == "report.html"
    assert sorted(one.stem for one in (found.folder / "figures").glob("*.png")) == ["effects", "heads", "impact"]
    first, *others = found.results["cells"]
    sure = {**first, "critical": True, "p_holm": 0.01}
    told = pages.summary({**found.results, "cells": [sure, *others]})
    assert told[0].startswith(f"Step {sure['step']} is critical: without what layer {sure['layer']} adds")


def test_the_command_on_the_page_asks_for_the_same(found, model):
    assert found.report.command == "", "no command can play an environment given as a function"
    options = {**SMALL, "generation": {"temperature": 0.5}, "options": {"step_limit": 4}}
    chosen = settings.settings_of("20q:0:2", model.cfg, **options)
    words = shlex.split(study.CriticalSteps(model, "20q:0:2").command(chosen))
    assert words[:3] == ["sonde", "study", "critical-steps"]
    app = typer.Typer()
    app.command()(study_critical.critical_steps)
    asked = typer.main.get_command(app).make_context("critical-steps", words[3:]).params
    assert (asked["environment"], asked["model"], asked["option"]) == (
        "20q:0:2",
        model.cfg.model_name,
        ["step_limit=4"],
    )
    assert (asked["episodes"], asked["layers"], asked["rollouts"], asked["heads"], asked["seed"]) == (3, "0,3", 2, 1, 1)
    assert (asked["temperature"], asked["max_new_tokens"]) == (0.5, 64)


def test_the_estimate_grows_with_the_work(model):
    small = settings.settings_of(world, model.cfg, **SMALL)
    once = estimates.seconds(model, small, steps=STEPS, new_tokens=4)
    large = small.changed(episodes=300, rollouts=20)
    assert sum(estimates.seconds(model, large, steps=STEPS, new_tokens=4).values()) > 10 * sum(once.values())
    assert min(once.values()) > 0


# Bad input


def refused(model, error, match, tmp_path, make=world, **options):
    with pytest.raises(error, match=match):
        run(make, model, tmp_path, **{**SMALL, **options})


def test_a_layer_that_does_not_exist_is_named(model, tmp_path):
    refused(model, errors.SiteError, "no layer 6: .* has layers 0 to 5", tmp_path, layers=(0, 6))
    assert list(tmp_path.iterdir()) == [], "nothing is written before the settings are known to be good"


def test_episodes_of_a_single_step_are_refused(model, tmp_path):
    short = lambda: planted.PlantedEnvironment(8, steps=1)  # noqa: E731
    refused(model, errors.AnalysisError, "every episode has a single step", tmp_path, make=short)


def test_a_step_that_nobody_reached_is_named(model, tmp_path):
    refused(
        model, errors.AnalysisError, "no episode reached step 9: the longest has steps 0 to 2", tmp_path, steps=(9,)
    )


def test_a_step_with_nothing_after_it_is_named(model, tmp_path):
    refused(model, errors.AnalysisError, "step 2 has later steps in 0 of 3 episodes", tmp_path, steps=(2,))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"part": "head"}, "part must be one of layer, attn, mlp"),
        ({"ablation": "meen"}, "did you mean 'mean'"),
        ({"episodes": 1}, "episodes must be 2 or more, got 1"),
        ({"rollouts": 0}, "rollouts must be"),
        ({"layers": ()}, "at least one"),
        ({"steps": (-1,)}, "steps count from 0"),
        ({"alpha": 1.0}, "alpha must be less than 1.0, got 1.0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(model, tmp_path, options, match):
    refused(model, errors.RequestError, match, tmp_path, **options)


def test_an_unknown_option_is_refused(model):
    with pytest.raises(errors.RequestError, match="no setting 'rollout'; did you mean 'rollouts'"):
        settings.settings_of(world, model.cfg, rollout=3)


def test_episodes_of_another_model_are_refused(played, tmp_path):
    with planted.model(layer=2) as other, pytest.raises(errors.RequestError, match="were played by 'planted-layer3"):
        run(played, other, tmp_path)


def test_episodes_of_the_model_before_it_was_edited_are_refused(played, tmp_path):
    with planted.model() as edited:
        edited.hf.lm_head.weight.data[0, 0] += 1
        with pytest.raises(errors.RequestError, match=r"not the model that run .* has: its weights are others"):
            run(played, edited, tmp_path)


def test_a_run_folder_of_another_model_or_kind_is_refused(found, played, tmp_path):
    with planted.model(layer=2) as other:
        with pytest.raises(errors.RequestError, match=r"other settings .model was 'planted-layer3"):
            run(world, other, found.folder.parent, name="small", **SMALL)
        with pytest.raises(errors.RequestError, match="is of kind 'play'"):
            run(world, other, played.run.folder.parent, name="episodes", **SMALL)


def test_episodes_played_under_interventions_are_refused(model, tmp_path):
    changed = sonde.play(
        world,
        model,
        episodes=2,
        runs_dir=tmp_path,
        max_steps=2,
        interventions=[sonde.Zero(site="blocks.1.hook_mlp_out")],
    )
    with pytest.raises(errors.RequestError, match="has 0 episodes without an error and without interventions"):
        run(changed, model, tmp_path)


# The command


def command(*arguments):
    app = typer.Typer()
    app.command()(study_critical.critical_steps)
    return typer.testing.CliRunner().invoke(app, list(arguments))


def test_the_command_runs_a_study_and_says_where_the_report_is(tmp_path):
    arguments = "20q:0:2 --model tiny-gpt2 --episodes 2 --layers 1,3 --rollouts 1 --heads 0 --max-steps 2 --run small"
    done = command(*arguments.split(), "--max-new-tokens", "3", "--runs", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "About" in done.output
    assert "No step can be called critical" in " ".join(done.output.split())
    assert (tmp_path / "small" / "report.html").is_file()
    assert json.loads((tmp_path / "small" / "results.json").read_bytes())["settings"]["layers"] == [1, 3]


@pytest.mark.parametrize(
    "arguments", [[], ["20q", "--played", "x"], ["20q", "--layers", "a:b"], ["20q", "--steps", "1:2:0"]]
)
def test_a_command_that_makes_no_sense_ends_with_2(arguments):
    assert command(*arguments).exit_code == 2


def test_numbers_are_read_as_lists_and_ranges():
    assert screens.whole_numbers("3,1,8:11,0:6:2", "--layers") == [0, 1, 2, 3, 4, 8, 9, 10]
    assert screens.whole_numbers(None, "--layers") is None
