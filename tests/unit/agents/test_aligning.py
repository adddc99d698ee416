"""Taking activations of one episode into another."""

import itertools

import pytest
import torch

import sonde
from sonde import testing
from sonde.agents import aligning, playing
from sonde.core import errors

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
    given = source.get_activation(3, SITE)[0]
    before = target.get_activation(2, SITE)[0]
    touched = set()
    for pair in found.pairs:
        if pair.step < 2:
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
