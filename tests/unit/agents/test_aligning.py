"""Taking activations of one episode into another."""

import asyncio
import itertools

import pytest
import torch
import transformers

import sonde
from sonde import testing
from sonde.agents import aligning, playing
from sonde.core import errors
from sonde.models import tiny

SITE = "blocks.1.hook_resid_post"


@pytest.fixture(scope="module")
def model():
    with sonde.load("tiny-llama") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def two(model, tmp_path_factory):
    """Two episodes of one task that went differently."""
    tasks = testing.scripted_tasks()[:1]
    folder = tmp_path_factory.mktemp("runs")
    settings = {"capture": "blocks.*.hook_resid_post", "runs_dir": folder, "wave": 1, "episodes": 2}
    played = playing.play(lambda: testing.ScriptedEnvironment(tasks), model, **settings)
    return played[0].trajectory, played[1].trajectory


def test_spans_cover_the_episode_in_order(two):
    found = aligning.role_spans(two[0])
    flat = [span for step in found for span in (step["observation"], step["action"])]
    assert flat[0].start == 0
    assert all(left.stop == right.start for left, right in itertools.pairwise(flat))
    for number, step in enumerate(found):
        assert step["observation"].stop == two[0].prompt_length(number)


def test_what_was_seen_is_matched_with_what_was_seen(two, model):
    found = aligning.align(*two, tokenizer=model.tokenizer)
    assert {(pair.step, pair.role) for pair in found.pairs} == {(s, r) for s in range(4) for r in aligning.ROLES}
    for pair in found.pairs:
        assert len(pair.source) == len(pair.target)
    first = found.pairs[0]
    assert (first.source.start, first.target.start, first.left_out) == (0, 0, 0)
    shown = str(found)
    assert "observation" in shown
    assert len(shown.splitlines()) == len(found.pairs) + 1


def test_equal_observations_are_matched_token_by_token(two):
    source, target = two
    known = [dict(zip(t.positions(3).tolist(), t.tokens(3).tolist(), strict=True)) for t in two]
    for pair in aligning.align(source, target, roles=["observation"]).pairs:
        # the same words: all tokens but the one that ended what was said before
        same = [known[0][a] == known[1][b] for a, b in zip(pair.source, pair.target, strict=True)]
        assert sum(same) >= len(same) - 1


def test_unequal_spans_are_matched_from_the_end_or_the_start(two):
    for anchor in ("end", "start"):
        for pair in aligning.align(*two, anchor=anchor).pairs:
            whole = aligning.role_spans(two[0])[pair.step][pair.role]
            end = pair.source.stop == whole.stop if anchor == "end" else pair.source.start == whole.start
            assert end


def test_patches_put_the_sources_values_into_the_target(two, model):
    source, target = two
    found = aligning.align(source, target)
    patches = aligning.patches_between(source, target, SITE, found, steps=[0, 1])
    (fork,) = target.fork(2, interventions=patches, capture=SITE)
    got = fork.get_activation(0, SITE)[0]
    before = target.get_activation(2, SITE)[0]
    touched = set()
    for pair in found.pairs:
        if pair.step < 2:
            given = source.get_activation(pair.step, SITE)[0]
            assert torch.equal(got[list(pair.target)], given[list(pair.source)])
            touched |= set(pair.target)
    assert len(touched) > 100
    assert torch.allclose(got[:1], before[:1], atol=1e-4) or 0 in touched


def test_patching_an_episode_into_itself_changes_nothing(two, model):
    source = two[0]
    patches = aligning.patches_between(source, source, SITE, steps=[0, 1])
    (fork,) = source.fork(2, interventions=patches, capture=SITE)
    (sham,) = source.fork(2, capture=SITE)
    assert [m.text for m in fork.moments] == [m.text for m in sham.moments]


def test_what_was_not_recorded_cannot_be_taken(model, two, tmp_path):
    tasks = testing.scripted_tasks()[:1]
    settings = {"capture": {"hook_filter": SITE, "positions": "last_prompt"}, "runs_dir": tmp_path}
    thin = playing.play(lambda: testing.ScriptedEnvironment(tasks), model, **settings)[0].trajectory
    with pytest.raises(errors.EpisodeError, match="no record of position"):
        aligning.patches_between(thin, two[1], SITE)


def test_unknown_roles_and_steps_are_refused(two):
    with pytest.raises(errors.EpisodeError, match="roles are"):
        aligning.align(*two, roles=["system"])
    with pytest.raises(errors.EpisodeError, match="nothing at steps"):
        aligning.patches_between(*two, SITE, steps=[17])


@pytest.fixture(scope="module")
def shortened(small_context):
    """Two games of one task in a context that is full after a few turns; recorded whole, and at the last prompt token."""

    async def play(index, **options):
        client = sonde.HookedTransformerLLMClient(
            small_context,
            generation_kwargs={"temperature": 1.0, "seed": index},
            max_new_tokens=8,
            context_policy="drop_oldest_turns",
        )
        small_context.pool.entries.clear()
        messages = [{"role": "system", "content": "Be brief."}]
        with sonde.ActivationCapture(small_context, SITE, **options) as capture:
            for number in range(6):
                messages = [*messages, {"role": "user", "content": f"Turn {number}" + "?" * index}]
                with capture.step():
                    answer = await client(sonde.LLMRequest(messages=messages))
                messages = [*messages, {"role": "assistant", "content": answer.text}]
        assert answer.dropped_tokens > 0
        return capture.get_trajectory()

    return [[asyncio.run(play(index, **options)) for index in range(2)] for options in ({}, {"positions": "last"})]


@pytest.fixture(scope="module")
def small_context():
    sizes = {**tiny._GQA, "max_position_embeddings": 160}
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes))
    with sonde.as_model(network, tokenizer=tiny.tokenizer()) as loaded:
        yield loaded


def test_after_dropped_turns_spans_are_those_of_the_whole_conversation(shortened):
    for whole, thin in zip(*shortened, strict=True):
        found = aligning.role_spans(whole)
        flat = [span for step in found for span in (step["observation"], step["action"])]
        assert all(left.stop == right.start for left, right in itertools.pairwise(flat))
        for number, step in enumerate(found):
            where = whole.positions(number).tolist()
            assert where[-len(step["action"]) - 1 :] == [step["observation"].stop - 1, *step["action"]]
        assert aligning.role_spans(thin) == found


def test_after_dropped_turns_patches_take_what_the_source_was_at_each_step(shortened, small_context):
    source, target = shortened[0]
    pairs = aligning.align(source, target).pairs
    patches = aligning.patches_between(source, target, SITE)
    assert {pair.step for pair in pairs} == set(range(6))
    for pair, patch in zip(pairs, patches, strict=True):
        where = source.positions(pair.step).tolist()
        slots = [where.index(position) for position in pair.source]
        tokens = source.tokens(pair.step)
        anew = small_context.run_with_cache(tokens, SITE)[1][SITE][0, slots]
        torch.testing.assert_close(torch.from_numpy(patch.values.copy()), anew, rtol=1e-4, atol=1e-4)
        assert patch.start == pair.target.start


def test_patterns_have_no_place_of_their_own_to_be_put(two, model):
    with sonde.ActivationCapture(model, "blocks.1.attn.hook_pattern") as capture, capture.step():
        model.generate("hello", max_new_tokens=2)
    trajectory = capture.get_trajectory()
    with pytest.raises(errors.EpisodeError, match="pairs of positions"):
        aligning.patches_between(trajectory, trajectory, "blocks.1.attn.hook_pattern")
