"""What an intervention means over time: the engine against a plain reference that re-encodes everything.

The reference knows no cache and no phases. At each step it works out, position by position, where each intervention
is applied, and runs one bare forward pass over the whole conversation with exactly those positions.
"""

import dataclasses
import itertools
import random

import pytest
import torch

from sonde.core import interventions as I
from sonde.models import requests

STEPS, NEW, ANSWER = 4, 5, 3
WHEN = [
    {"scope": scope, "after": after, "phase": phase, "positions": positions, "steps": steps}
    for scope, after, phase, positions, steps in itertools.product(
        ("context", "new"),
        ("clean", "persist"),
        ("both", "prefill", "decode"),
        (None, (2, 6, 9, 17), (-1, -3, -12)),
        (None, (1,), (0, 2)),
    )
]


def _randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def _by_position(value, hook):
    return value * 0.7 + 0.02 * hook.positions[(...,) + (None,) * (value.ndim - 2)]


def _kinds(model, kit):
    width, heads, d_head = model.cfg.d_model, model.cfg.n_heads, model.cfg.d_head
    post, sender = "blocks.1.hook_resid_post", "blocks.0.hook_mlp_out"
    return {
        "Zero": I.Zero(site="blocks.1.attn.hook_z", heads=(0, 2)),
        "Steer": I.Steer(site=post, direction=_randn(width), strength=1.5),
        "Scale": I.Scale(site="blocks.2.attn.hook_k", factor=-0.5, heads=(1,)),
        "Noise": I.Noise(site=kit.site(model, "hook_resid_mid"), std=0.5, seed=3),
        "Patch": I.Patch(site="blocks.1.attn.hook_q", values=_randn(14, heads, d_head), start=4),
        "Mean": I.Mean(site="blocks.*.hook_mlp_out", values=_randn(width)),
        "PromptMean": I.Mean(site=post),
        "Knockout": I.Knockout(site="blocks.1.attn.hook_attn_scores", keys=(0, 3, 4, 11), heads=(1, 3)),
        "PatternScale": I.Scale(site="blocks.2.attn.hook_pattern", factor=0.3),
        "PathPatch": I.PathPatch(
            site=sender,
            values=_randn(60, width),
            receivers=("blocks.1.attn.hook_q", "blocks.2.mlp.hook_pre", "ln_final.hook_out"),
            receiver_heads=(0, 1),
        ),
        "Opaque": I.Opaque(site="blocks.1.hook_attn_out", fn=_by_position),
    }


@dataclasses.dataclass
class Episode:
    """One conversation under one intervention, as the engine plays it."""

    spec: I.Intervention
    context: tuple = ()
    persisted: tuple = ()
    end: int = 0
    applied: set = dataclasses.field(default_factory=set)

    def request(self, step, kit, seed):
        self.context = (*self.context, *kit.tokens(100 * seed + step, NEW))
        return requests.Request(
            tokens=self.context,
            sampling=kit.greedy(ANSWER),
            interventions=(self.spec,),
            persisted=self.persisted,
            step=step,
            new_start=self.end,
        )


def _selected(spec, step, *, prompt, start, length):
    """The positions an intervention holds for, one by one, straight from its documentation."""
    if spec.steps is not None and step not in spec.steps:
        return set()
    chosen = set(range(length)) if spec.positions is None else {p if p >= 0 else prompt + p for p in spec.positions}
    inside = {"both": range(length), "prefill": range(prompt), "decode": range(prompt, length)}[spec.phase]
    return {p for p in chosen & set(inside) if spec.scope == "context" or p >= start}


def _reference(model, episode, step, answer):
    """Log-probabilities of the answer, everything encoded from scratch."""
    spec, prompt, start = episode.spec, len(episode.context), episode.end
    ids = (*episode.context, *answer.tokens)
    where = _selected(spec, step, prompt=prompt, start=start, length=len(ids))
    if spec.after == "persist":
        where |= episode.applied
        episode.applied = set(where)
    plain = dataclasses.replace(
        spec, positions=tuple(sorted(where)), steps=None, phase="both", scope="context", after="clean"
    )
    if spec.needs_whole_prompt:
        _, cache = model.run_with_cache(list(ids[:prompt]), spec.site)
        mean = cache[spec.site][0, start if spec.scope == "new" else 0 :].mean(dim=0)
        plain = dataclasses.replace(plain, values=mean)
    logits = model.run_with_hooks(list(ids), [plain] if where else [])[0].log_softmax(dim=-1)
    return [logits[prompt - 1 + index] for index in range(len(answer.tokens))]


def _check(model, kit, specs, *, seed):
    """Plays all of them as one batch, so that every row also has other rows' interventions beside it."""
    episodes = [Episode(spec) for spec in specs]
    for step in range(STEPS):
        batch = [episode.request(step, kit, seed + row % 3) for row, episode in enumerate(episodes)]
        for episode, answer in zip(episodes, kit.run(model, batch), strict=True):
            expected = _reference(model, episode, step, answer)
            told = episode.spec.describe()
            assert kit.close(
                answer.logprobs, [float(row[t]) for row, t in zip(expected, answer.tokens, strict=True)]
            ), (
                step,
                told,
            )
            assert all(row[t] > row.max() - 1e-3 for row, t in zip(expected, answer.tokens, strict=True)), (step, told)
            episode.context = (*episode.context, *answer.tokens)
            episode.end, episode.persisted = len(episode.context), answer.persisted


NAMES = (
    "Zero", "Steer", "Scale", "Noise", "Patch", "Mean", "PromptMean", "Knockout", "PatternScale", "PathPatch", "Opaque",
)  # fmt: skip


def _settings(name, count, seed=""):
    allowed = [when for when in WHEN if name != "PromptMean" or when["after"] == "clean"]
    return random.Random(name + seed).sample(allowed, count)


@pytest.mark.parametrize("name", NAMES)
def test_an_intervention_over_four_steps_equals_re_encoding_the_conversation(gpt2, kit, name):
    kind = _kinds(gpt2, kit)[name]
    _check(gpt2, kit, [dataclasses.replace(kind, **when) for when in _settings(name, 12)], seed=1)


def test_every_setting_of_scope_after_phase_positions_and_steps_equals_re_encoding(gpt2, kit):
    kind = _kinds(gpt2, kit)["Steer"]
    for first in range(0, len(WHEN), 27):
        specs = [dataclasses.replace(kind, **when) for when in WHEN[first : first + 27]]
        gpt2.pool.entries.clear()
        _check(gpt2, kit, specs, seed=2)


def test_in_every_family_interventions_over_four_steps_equal_re_encoding(model, kit):
    kinds = _kinds(model, kit)
    specs = [dataclasses.replace(kinds[name], **when) for name in NAMES for when in _settings(name, 2, "family")]
    _check(model, kit, specs, seed=3)


def test_each_generated_token_equals_a_forward_pass_of_its_own(gpt2, kit):
    """The reference above runs once per step; that this is enough is checked here, token by token."""
    spec = I.Steer(site="blocks.1.hook_resid_post", direction=_randn(gpt2.cfg.d_model), phase="decode", strength=4.0)
    prompt = kit.tokens(1, 9)
    answer = gpt2.generate(prompt, max_new_tokens=6, interventions=[spec])
    for index, token in enumerate(answer.tokens):
        ids = (*prompt, *answer.tokens[:index])
        here = [dataclasses.replace(spec, phase="both", positions=tuple(range(9, 9 + index)))] if index else []
        logits = gpt2.run_with_hooks(list(ids), here)[0, -1]
        assert int(logits.argmax()) == token
        assert kit.close(answer.logprobs[index], logits.log_softmax(dim=-1)[token])


def test_two_equal_interventions_that_persist_both_stay(gpt2, kit):
    steer = I.Steer(
        site="blocks.1.hook_resid_post", direction=_randn(gpt2.cfg.d_model), steps=(0,), after="persist", scope="new"
    )
    prompt = kit.tokens(1, 8)
    (first,) = kit.run(gpt2, [requests.Request(tokens=prompt, sampling=kit.greedy(2), interventions=(steer, steer))])
    context = (*prompt, *first.tokens, *kit.tokens(2, 4))
    later = requests.Request(
        tokens=context,
        sampling=kit.greedy(1),
        interventions=(steer, steer),
        persisted=first.persisted,
        step=1,
        new_start=10,
    )
    (answer,) = kit.run(gpt2, [later])
    twice = dataclasses.replace(
        steer, strength=2.0, positions=tuple(range(10)), steps=None, after="clean", scope="context"
    )
    expected = gpt2.run_with_hooks(list(context), [twice])[0, -1].log_softmax(dim=-1)
    assert kit.close(answer.logprobs[0], expected[answer.tokens[0]])


def test_what_persists_stays_after_its_intervention_was_taken_away(model, kit):
    steer = I.Steer(site="blocks.1.hook_resid_post", direction=_randn(model.cfg.d_model), strength=3.0, after="persist")
    prompt = kit.tokens(1, 8)
    (first,) = kit.run(model, [requests.Request(tokens=prompt, sampling=kit.greedy(2), interventions=(steer,))])
    context = (*prompt, *first.tokens, *kit.tokens(2, 4))
    later = requests.Request(
        tokens=context, sampling=kit.greedy(1), persisted=first.persisted, step=1, new_start=len(prompt) + 2
    )
    (answer,) = kit.run(model, [later])
    # Its consequences are in the cache: only the new message and the token before it are encoded.
    assert answer.encoded_tokens == 5
    where = dataclasses.replace(steer, positions=tuple(range(len(prompt) + 2)), after="clean")
    expected = model.run_with_hooks(list(context), [where])[0, -1].log_softmax(dim=-1)
    assert kit.close(answer.logprobs[0], expected[answer.tokens[0]])


def test_episode_positions_hold_where_turns_were_dropped(model, kit):
    """Tokens 3 to 8 of the episode were dropped: positions 9, 10, … stand in slots 3, 4, …"""
    tokens = kit.tokens(1, 14)
    kept, positions = (*tokens[:3], *tokens[9:]), (*range(3), *range(9, 14))
    site = "blocks.1.hook_resid_post"
    steer = I.Steer(site=site, direction=_randn(model.cfg.d_model), strength=2.0, positions=(1, 5, 10, 14))
    keeper = kit.Keeper([site])
    request = requests.Request(
        tokens=kept, positions=positions, sampling=kit.greedy(4), interventions=(steer,), recorders=(keeper,)
    )
    (answer,) = kit.run(model, [request])
    assert keeper.delivered[0].positions.tolist() == [*positions, 14, 15, 16]
    in_slots = dataclasses.replace(steer, positions=(1, 4, 8))
    logits = model.run_with_hooks([*kept, *answer.tokens], [in_slots])[0].log_softmax(dim=-1)
    assert kit.close(answer.logprobs, [float(logits[7 + i, token]) for i, token in enumerate(answer.tokens)])
