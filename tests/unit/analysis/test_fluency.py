"""How likely the unsteered model finds what was written."""

import math

import numpy as np
import pytest
import torch

import sonde
from sonde.analysis import fluency
from sonde.core import errors, spans

STEER = "blocks.1.hook_resid_post"
LAST = {"hook_filter": STEER, "positions": "last_prompt"}  # other tokens are not recorded


def play(model, folder, **options):
    settings = {"episodes": 3, "max_steps": 3, "seed": 2, "generation": {"temperature": 0.8, "max_new_tokens": 6}}
    env = {"max_output_tokens": None}
    return sonde.play("20q:0:3", model, runs_dir=folder, **{**settings, "options": env, **options})


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2"])
def each(request):
    with sonde.load(request.param) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def games(each, tmp_path_factory):
    """Three games that share the encoding of their beginning."""
    return play(each, tmp_path_factory.mktemp("runs")).trajectories


@pytest.fixture(scope="module")
def whole(llama, tmp_path_factory):
    """The same games, every token recorded."""
    return play(llama, tmp_path_factory.mktemp("runs"), capture=STEER).trajectories


def plain(model, prompt, said):
    """One forward pass for one step alone."""
    tokens = torch.tensor([*prompt, *said])
    with torch.no_grad():
        scores = torch.log_softmax(model.hf(input_ids=tokens[None], use_cache=False).logits[0], dim=-1)
    return [scores[len(prompt) + index - 1, token].item() for index, token in enumerate(said)]


def step_by_step(model, trajectory):
    prompts = [trajectory.tokens(step)[: trajectory.prompt_length(step)].tolist() for step in range(len(trajectory))]
    return [plain(model, prompt, trajectory.generated(step)) for step, prompt in enumerate(prompts)]


def test_one_pass_per_episode_gives_what_a_pass_per_step_gives(llama, whole):
    found = fluency.step_logprobs(llama, whole)
    for trajectory, episode in zip(whole, found, strict=True):
        for one, other in zip(episode, step_by_step(llama, trajectory), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


def test_of_an_unsteered_game_it_is_what_the_model_drew_with(each, games):
    found = fluency.step_logprobs(each, games)
    means = fluency.mean_logprobs(each, games)
    for trajectory, episode, mean in zip(games, found, means, strict=True):
        drawn = [note["logprobs"] for note in trajectory.step_metadata]
        for one, other in zip(episode, drawn, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
        assert mean == pytest.approx(np.mean(np.concatenate(drawn)), abs=1e-4)


def test_prompts_made_again_from_the_conversation_are_those_that_were_recorded(llama, whole, tmp_path):
    filtered = play(llama, tmp_path, capture=LAST).trajectories
    assert all(one.records.count < other.records.count for one, other in zip(filtered, whole, strict=True))
    assert [fluency.passages_of(llama, one) for one in filtered] == [fluency.passages_of(llama, one) for one in whole]


def test_games_that_share_the_encoding_of_their_beginning_have_all_its_tokens(llama, whole, tmp_path):
    shared = play(llama, tmp_path).trajectories
    assert [fluency.passages_of(llama, one) for one in shared] == [fluency.passages_of(llama, one) for one in whole]


def test_a_conversation_that_grows_is_one_passage(llama, whole):
    (passage,) = fluency.passages_of(llama, whole[1])
    assert len(passage.parts) == 3
    for step, part in enumerate(passage.parts):
        assert passage.tokens[part.start : part.stop] == whole[1].generated(step)
        assert part.start == whole[1].prompt_length(step)


def test_a_special_token_in_the_middle_of_a_message_begins_a_new_passage(llama, whole):
    # It does not come back with the text, so the next prompt is not what was said and more.
    assert set(whole[0].generated(1)) & set(llama.tokenizer.all_special_ids)
    assert [len(passage.parts) for passage in fluency.passages_of(llama, whole[0])] == [2, 1]


def test_what_passages_begin_with_is_encoded_once(each, games):
    apart = [fluency.step_logprobs(each, [game]) for game in games]
    encoded = []
    handle = each.hf.register_forward_pre_hook(
        lambda module, args, kwargs: encoded.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    together = fluency.step_logprobs(each, games)
    handle.remove()
    prompt = games[0].prompt_length(0)
    assert prompt - 5 < encoded[0] < prompt
    assert sum(encoded[1:]) < prompt
    for one, (other,) in zip(together, apart, strict=True):
        np.testing.assert_allclose(np.concatenate(one), np.concatenate(other), atol=1e-4)


def test_a_passage_that_does_not_fit_the_context_is_refused(llama):
    text = tuple([5] * (llama.cfg.n_ctx + 1))
    with pytest.raises(errors.ContextError, match="does not fit the context"):
        fluency.judge(llama, [fluency.Passage(text, (spans.Span(1, 2),))])


def test_a_conversation_that_loses_turns_falls_back_to_more_passages(llama, tmp_path):
    full = llama.cfg.n_ctx
    long = len(llama.tokenizer.encode("Rules. " * 100))
    rules = "Rules. " * (100 * (full - 700) // long)

    def long_game():
        return sonde.TwentyQuestionsEnvironment(["dog"], system_prompt=rules, max_output_tokens=40)

    generation = {"context_policy": "drop_oldest_turns"}
    trajectory = sonde.play(long_game, llama, max_steps=5, generation=generation, runs_dir=tmp_path)[0].trajectory
    passages = fluency.passages_of(llama, trajectory)
    assert len(passages) > 1
    assert sum(len(passage.parts) for passage in passages) == 5
    assert all(len(passage.tokens) <= full for passage in passages)
    (found,) = fluency.step_logprobs(llama, [trajectory])
    for one, other in zip(found, step_by_step(llama, trajectory), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_steered_game_is_judged_by_the_model_as_it_is_without_steering(llama, tmp_path):
    spec = sonde.Steer(site=STEER, direction=np.linspace(-1, 1, llama.cfg.d_model), strength=8.0)
    trajectory = play(llama, tmp_path, interventions=[spec], episodes=1)[0].trajectory
    drawn = [value for note in trajectory.step_metadata for value in note["logprobs"]]
    found = fluency.mean_logprobs(llama, [trajectory])
    own = np.concatenate(step_by_step(llama, trajectory))
    assert found == [pytest.approx(np.mean(own), abs=1e-4)]
    assert found[0] < np.mean(drawn) - 0.01


def test_whoever_rides_along_neither_changes_nor_records_it(each, games):
    before = fluency.step_logprobs(each, games)
    manager = sonde.InterventionManager(each).add_intervention(STEER, sonde.Zero())
    with manager, sonde.ActivationCapture(each, STEER) as capture:
        capture.start_step()
        inside = fluency.step_logprobs(each, games)
        capture.end_step()
    assert inside == before
    assert capture.get_trajectory().records.count == 0


def test_batches_hold_no_more_than_fits_and_keep_the_order(llama, monkeypatch):
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(5, 100, size).tolist()) for size in (30, 4, 17, 30, 9)]
    passages = [fluency.Passage(text, (spans.Span(1, 3), spans.Span(3, len(text)))) for text in texts]
    together, told = fluency.judge(llama, passages), []
    monkeypatch.setattr(fluency, "MOST_TOKENS", 1)
    alone = fluency.judge(llama, passages, tell=lambda _, done, whole: told.append((done, whole)))
    assert told == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert [[len(part) for part in one] for one in alone] == [[2, len(text) - 3] for text in texts]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(np.concatenate(one), np.concatenate(other), atol=1e-4)
    monkeypatch.setattr(fluency, "MOST_TOKENS", 60)
    assert fluency._batches([30, 4, 17, 30, 9]) == [[0, 3], [2, 4, 1]]


def test_parts_without_tokens_have_no_log_probabilities(llama):
    passage = fluency.Passage((5, 6, 7), (spans.Span(3, 3), spans.Span(1, 1)))
    assert fluency.judge(llama, [passage]) == [[(), ()]]
    assert math.isnan(fluency._mean([]))


def test_a_part_outside_of_its_passage_is_refused():
    for part in (spans.Span(0, 2), spans.Span(2, 9)):
        with pytest.raises(errors.RequestError, match="cannot be judged in a passage of 3 tokens"):
            fluency.Passage((1, 2, 3), (part,))


def test_prompts_neither_recorded_nor_to_be_made_again_are_refused(llama):
    with sonde.ActivationCapture(llama, STEER, positions="last_prompt") as capture, capture.step():
        llama.generate("hello there", max_new_tokens=2)
    with pytest.raises(errors.CaptureError, match=r"only some tokens were recorded.*positions='all'"):
        fluency.mean_logprobs(llama, [capture.get_trajectory()])


def test_another_conversation_than_was_played_is_refused(llama, tmp_path):
    trajectory = play(llama, tmp_path, capture=LAST)[0].trajectory
    trajectory.steps[0].metadata["observation"]["messages"][0]["content"] += " And now for something else."
    with pytest.raises(errors.CaptureError, match="prompt of step 0, made again from its conversation"):
        fluency.mean_logprobs(llama, [trajectory])
