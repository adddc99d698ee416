"""The planted world is what it says: one direction at one layer decides, and one step has consequences."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from sklearn import linear_model, pipeline, preprocessing

import sonde
from sonde import testing
from sonde.agents.twenty_questions import rules
from sonde.core import errors
from sonde.testing import planted

LAYER = 3
PAIRS = [(colour, way) for colour in (0, 1) for way in (0, 1)]


@pytest.fixture(scope="module")
def world():
    with planted.model(LAYER) as model:
        yield model


def answer(text):
    return sonde.LLMResponse(data=[sonde.TextData(text)], usage=sonde.Usage(1, 1))


def prompt(model, *turns):
    """A chat of observations with answers between them."""
    messages = []
    for index, turn in enumerate(turns):
        messages.append({"role": ("user", "assistant")[index % 2], "content": turn})
    text = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return model.tokenizer.encode(text)


def seen(colour, way, mood="calm"):
    return f"{planted.COLOURS[colour]} {planted.WAYS[way]} {mood}"


def chance(model, tokens, hooks=()):
    """Probability of a valid message."""
    logits = model.run_with_hooks(tokens, hooks)[0, -1]
    vocab = model.tokenizer.get_vocab()
    both = logits.softmax(dim=-1)[[vocab[planted.VALID], vocab[planted.INVALID]]]
    assert float(both.sum()) == pytest.approx(1, abs=1e-4)
    return float(both[0])


def log_odds(p):
    return np.log(p / (1 - p))


@pytest.mark.parametrize(("colour", "way"), PAIRS)
def test_the_message_follows_the_exclusive_or_of_the_last_two_features_whatever_came_before(world, colour, way):
    expected = 2.5 if colour != way else -2.5
    for past in ([], [seen(0, 1), "valid"], [seen(0, 0), "invalid", seen(1, 0), "valid"] * 9):
        assert log_odds(chance(world, prompt(world, *past, seen(colour, way)))) == pytest.approx(expected, rel=0.06)


def test_the_direction_is_written_at_the_planted_layer_and_kept(world):
    u = torch.tensor(planted.direction())
    for colour, way in PAIRS:
        _, cache = world.run_with_cache(
            prompt(world, seen(0, 0), "valid", seen(colour, way)), "blocks.*.hook_resid_post"
        )
        along = [float(cache[f"blocks.{layer}.hook_resid_post"][0, -1] @ u) for layer in range(planted.LAYERS)]
        assert along[:LAYER] == pytest.approx([0] * LAYER, abs=1e-4)
        assert along[LAYER:] == pytest.approx([1 if colour != way else -1] * (planted.LAYERS - LAYER), rel=0.05)


def test_a_linear_reader_finds_the_decision_from_the_planted_layer_on_and_not_before(world):
    tasks = planted.PlantedEnvironment(60, steps=10).tasks
    steps = [
        (*pair, planted.MOODS[mood]) for task in tasks for pair, mood in zip(task.features, task.moods, strict=True)
    ]
    chats = [prompt(world, seen(*steps[i - 1]), "valid", seen(*step)) for i, step in enumerate(steps)]
    _, cache = world.run_with_cache(torch.tensor(chats), "blocks.*.hook_resid_post")
    differ = np.array([colour != way for colour, way, _ in steps])
    right = []
    for layer in range(planted.LAYERS):
        rows, half = cache[f"blocks.{layer}.hook_resid_post"][:, -1].numpy(), len(steps) // 2
        probe = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression(max_iter=1000))
        right.append(probe.fit(rows[:half], differ[:half]).score(rows[half:], differ[half:]))
    assert max(right[:LAYER]) < 0.6
    assert min(right[LAYER:]) > 0.98


def test_steering_along_the_direction_moves_the_odds_smoothly_and_a_random_one_of_equal_norm_does_not(world):
    tokens = prompt(world, seen(1, 1))
    u, other = planted.direction(), np.random.default_rng(1).standard_normal(planted.D_MODEL)
    other -= other.mean()
    other /= np.linalg.norm(other)
    site = f"blocks.{LAYER}.hook_resid_post"

    def steered(direction, strength):
        return chance(
            world, tokens, [sonde.Steer(site=site, direction=direction.astype(np.float32), strength=strength)]
        )

    along = [log_odds(steered(u, strength)) for strength in (-1.0, 0.0, 1.0, 2.0)]
    assert np.diff(along) == pytest.approx([2.5, 2.5, 2.5], rel=0.1)
    assert abs(log_odds(steered(other, 2.0)) - along[1]) < 1.5


def test_in_a_null_model_nothing_decides():
    with planted.model(null=True) as model:
        chances = [chance(model, prompt(model, seen(*pair, mood))) for pair in PAIRS for mood in ("warm", "cursed")]
    assert chances == pytest.approx([0.5] * 8, abs=1e-4)


def test_a_curse_makes_valid_messages_rare(world):
    assert chance(world, prompt(world, seen(0, 1, "cursed"))) < 0.06
    assert chance(world, prompt(world, seen(0, 0, "cursed"))) < 0.01


async def test_an_invalid_message_at_the_critical_step_curses_all_later_steps_and_no_other_message_does():
    for said, cursed in ((["valid", "invalid", "valid"], True), (["invalid", "valid", "invalid"], False)):
        env = planted.PlantedEnvironment(steps=5, critical_step=1)
        now = await env.reset()
        for text in said:
            now = await env.step(answer(text))
        shown = [m["content"].endswith("cursed") for m in now.observation.messages if m["role"] == "user"]
        assert shown == [False, False, cursed, cursed]
        assert now.observation.metadata["info"]["valid"] == (said[-1] == "valid")


async def test_rewards_count_the_invalid_messages_and_verdicts_have_the_fields_of_twenty_questions():
    env = planted.PlantedEnvironment(steps=3)
    await env.reset()
    steps = [await env.step(answer(text)) for text in ("valid", "nonsense", "invalid")]
    assert [step.reward for step in steps] == [0.0, -1.0, -1.0]
    assert steps[-1].last()
    assert set(steps[0].observation.metadata["info"]) == {field.name for field in dataclasses.fields(rules.Verdict)}


async def test_the_environment_conforms_to_the_suite():
    await testing.assert_conforms(
        lambda: planted.PlantedEnvironment(4, steps=4, critical_step=1),
        testing.ScriptedClient(["valid", "invalid"], loop=True),
    )


async def test_a_snapshot_is_json_and_is_taken_up_elsewhere():
    env, other = (planted.PlantedEnvironment(steps=4, critical_step=0) for _ in range(2))
    await env.reset()
    now = await env.step(answer("invalid"))
    again = await other.restore(json.loads(json.dumps(env.snapshot())))
    assert again.observation.messages == now.observation.messages
    assert "cursed" in again.observation.messages[-1]["content"]


def test_features_are_balanced_and_say_nothing_alone():
    pairs = np.array([task.features for task in planted.PlantedEnvironment(200, steps=20, seed=3).tasks]).reshape(-1, 2)
    differ = pairs[:, 0] != pairs[:, 1]
    assert abs(differ.mean() - 0.5) < 0.03
    assert np.abs(np.corrcoef(np.c_[pairs, differ].T)[2, :2]).max() < 0.05


def test_at_the_critical_step_the_features_ask_for_a_valid_message():
    env = planted.PlantedEnvironment(50, critical_step=4)
    assert all(task.features[4][0] != task.features[4][1] for task in env.tasks)


def test_a_seed_fixes_the_weights_and_another_gives_others():
    first, again, other = (planted.model(seed=seed).hf.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert not np.allclose(planted.direction(1), planted.direction(2))


@pytest.mark.parametrize("layer", [0, 6, -1])
def test_a_layer_that_cannot_decide_is_refused(layer):
    with pytest.raises(errors.RequestError, match="must be 1 to 5"):
        planted.model(layer)


@pytest.mark.parametrize("options", [{"critical_step": 11}, {"critical_step": -1}, {"steps": 0}, {"valid_share": 2.0}])
def test_a_setting_that_makes_no_sense_is_refused(options):
    with pytest.raises(ValueError, match="must be"):
        planted.PlantedEnvironment(**options)
