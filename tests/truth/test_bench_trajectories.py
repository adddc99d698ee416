"""The step, the head and the site that decide a compiled player's episodes are found, and nothing elsewhere."""

import asyncio

import numpy as np
import pytest

import sonde
from sonde import experiments
from sonde.analysis import probes
from sonde.analysis.tracing import temporal
from sonde.bench import trajectories
from sonde.core import errors, records
from sonde.studies.critical_steps import results, settings, study

CASE = trajectories.Case(steps=5, key_step=1)
SITES = [
    f"blocks.{layer}.{kind}" for layer in (0, 1) for kind in ("hook_resid_pre", "hook_resid_mid", "hook_resid_post")
]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with CASE.player() as model:
        yield model, sonde.play(CASE.environment, model, episodes=40, capture=SITES, runs_dir=folder)


@pytest.mark.parametrize("case", trajectories.family(), ids=lambda case: case.name)
def test_the_player_says_what_the_program_says_and_always_opens_the_door(case, tmp_path):
    with case.player() as model:
        found = sonde.play(case.environment, model, episodes=4, runs_dir=tmp_path)
    assert found.rewards == [1.0] * 4
    for episode in found:
        said = [step.metadata["text"] for step in episode.trajectory.steps]
        colours = case.environment().task_of(episode.plan.index).colours
        assert said == [
            colours[case.key_step] if step in case.truth.rests else trajectories.GO for step in range(case.steps)
        ]


def test_the_circuit_is_the_one_that_is_told():
    assert CASE.compiled.meanings[CASE.truth.carrier] == ("carried",)
    assert CASE.compiled.components == ("a0.h0", "a0.h1", "m0", "a1.h0", "m1")
    assert {f"{CASE.truth.carrier}->m1", f"m0->{CASE.truth.carrier}<v>"} <= set(CASE.compiled.circuit.names)


def tokens_of(episode):
    last = CASE.steps - 1
    return [
        *episode.trajectory.tokens(last)[: episode.trajectory.prompt_length(last)].tolist(),
        *episode.trajectory.generated(last),
    ]


@pytest.mark.parametrize("replacement", ["mean", "zero"])
def test_the_last_step_rests_on_the_key_step_alone(played, replacement):
    model, found = played
    for episode in found[:4]:
        influence = temporal.influence(model, tokens_of(episode), CASE.spans, layer=1, replacement=replacement)
        values = influence.values.copy()
        assert values[CASE.truth.rests] > 1
        values[CASE.truth.rests] = np.nan
        assert np.nanmax(np.abs(values)) < 1e-3


def test_without_the_carrier_no_step_rests_on_another(played):
    _, found = played
    with CASE.player() as broken:
        for parameter in broken.hf.model.layers[1].self_attn.o_proj.parameters():
            parameter.data.zero_()
        influence = temporal.influence(broken, tokens_of(found[0]), CASE.spans, layer=1)
    assert np.nanmax(np.abs(influence.values)) < 1e-3


def test_the_critical_step_is_the_key_step_and_no_other(tmp_path):
    case = trajectories.Case(steps=4, key_step=1)
    with case.player() as model:
        source = case.environment
        chosen = settings.settings_of(source, model.cfg, episodes=10, ablation="zero", rollouts=1)
        found = experiments.run(study.CriticalSteps(model, source), chosen, runs_dir=tmp_path).results
    assert found["critical_steps"] == [case.truth.step]
    assert {cell.layer for cell in results.critical(found["cells"])} == set(case.truth.layers)
    for one in found["cells"]:
        if not one["critical"]:
            assert one["reward"]["effect"]["value"] == 0, "the same random numbers, and nothing that could change them"
    heads = [one for one in found["heads"] if one["step"] == case.truth.step]
    impact = {(one["layer"], one["head"]): one["impact"]["value"] for one in heads}
    assert min(value for (layer, _), value in impact.items() if layer == 0) > 1
    assert impact.get((1, 1), 0.0) < 1e-3, "a head of no use"


def features(found, site, step):
    """At the end of the prompt of a step."""
    rows = []
    for episode in found:
        trajectory = episode.trajectory
        rows.append(trajectory.get_activation(step, site)[0, trajectory.prompt_length(step) - 1].numpy())
    return np.stack(rows).astype(np.float64)


def test_a_probe_reads_the_keys_colour_from_the_carrier_on_and_not_before(played):
    _, found = played
    last = CASE.steps - 1
    colours = [CASE.environment().task_of(one.plan.index).colours[CASE.key_step] for one in found]
    labels = np.array([colour in trajectories.COLOURS[:2] for colour in colours])
    examples = probes.Examples(labels, np.arange(len(found)), np.full(len(found), last))
    settings = probes.Settings(folds=4, least=4, shuffles=0, deals=99, strength=1.0)
    found_at = {
        site: probes.cross_validate(features(found, site, last), examples, settings)
        for site in (CASE.truth.before, CASE.truth.site)
    }
    assert found_at[CASE.truth.site].scored.auroc.value == 1
    assert found_at[CASE.truth.site].p <= 0.02
    assert found_at[CASE.truth.before].p > 0.05


def test_a_snapshot_is_taken_up_where_it_was():
    async def through():
        one, two = CASE.environment(), CASE.environment()
        await one.reset()
        say = records.LLMResponse(data=(records.TextData("go"),), usage=records.Usage(0, 0))
        seen = await one.step(say)
        return seen.observation.messages, (await two.restore(one.snapshot())).observation.messages

    seen, again = asyncio.run(through())
    assert seen == again


@pytest.mark.parametrize(("steps", "key"), [(1, 0), (4, 3), (4, -1)])
def test_a_game_without_a_step_for_the_key_is_refused(steps, key):
    with pytest.raises(errors.RequestError, match="the key before the last one"):
        trajectories.Case(steps, key)
