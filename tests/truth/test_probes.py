"""A planted layer is found and claimed; where nothing is planted, next to nothing is claimed, whatever the confounds."""

import dataclasses

import numpy as np
import pytest

from sonde.analysis import probes

LAYERS, WIDTH, EPISODES = 8, 6, 24
QUICK = probes.Settings(folds=4, inner_folds=3, least=4, shuffles=0, deals=199)
WORDS = ("is", "it", "big", "alive", "metal", "does", "fly", "a", "moon", "?")


def confounded(seed, *, episodes=EPISODES):
    """Labels whose rate differs by episode and by step and that follow each other, and texts that mean nothing."""
    rng = np.random.default_rng(seed)
    labels, owners, steps = [], [], []
    for episode in range(episodes):
        leaning, last = rng.normal(scale=0.8), 0.0
        for step in range(int(rng.integers(3, 8))):
            logit = leaning - 0.6 + 0.25 * step + last
            labels.append(rng.random() < 1 / (1 + np.exp(-logit)))
            last = 0.8 if labels[-1] else -0.4
            owners.append(episode)
            steps.append(step)
    texts = tuple(" ".join(rng.choice(WORDS, size=5)) for _ in labels)
    return probes.Examples(np.array(labels), np.array(owners), np.array(steps), texts=texts, before=texts)


def states(examples, seed, *, layers=LAYERS, width=WIDTH):
    """Features that carry the episode's identity, the step, the previous label and noise: all but the label."""
    rng = np.random.default_rng([seed, 1])
    _, last, _ = examples.previous()
    found = []
    for _ in range(layers):
        identity = rng.normal(size=(int(examples.episodes.max()) + 1, width))[examples.episodes]
        found.append(
            identity
            + examples.steps[:, None] * rng.normal(scale=0.6, size=width)
            + last[:, None] * rng.normal(scale=1.2, size=width)
            + rng.normal(size=(len(examples), width))
        )
    return found


def steady(seed, *, episodes=EPISODES):
    """Labels that differ by episode and follow each other but have no trend, and states that know the episode only."""
    examples = confounded(seed, episodes=episodes)
    rng = np.random.default_rng([seed, 3])
    labels = examples.labels.copy()
    for episode in np.unique(examples.episodes):
        own = examples.episodes == episode
        labels[own] = rng.random(own.sum()) < rng.beta(1, 1)
    examples = dataclasses.replace(examples, labels=labels)
    features = [
        2 * rng.normal(size=(episodes, WIDTH))[examples.episodes] + rng.normal(size=(len(examples), WIDTH))
        for _ in range(LAYERS)
    ]
    return examples, features


def cells_of(features, pooling="last_prompt", step=None):
    return {probes.Cell(layer, pooling, step): one for layer, one in enumerate(features)}


def planted(seed, layer, *, keeps=False, strength=2.5, episodes=40):
    """States of which one layer, or all from one on, carry the label along a direction."""
    examples = confounded(seed, episodes=episodes)
    features = states(examples, seed)
    rng = np.random.default_rng([seed, 2])
    direction = rng.normal(size=WIDTH)
    features[layer] += strength * examples.labels[:, None] * direction / np.linalg.norm(direction)
    for later in range(layer + 1, LAYERS if keeps else 0):
        features[later] = features[later - 1] + rng.normal(scale=0.2, size=features[later].shape)
    return examples, features


def analyses(seeds):
    """Analyses of data with nothing planted, of two kinds in turn."""
    for seed in seeds:
        examples, features = steady(seed) if seed % 2 else (confounded(seed), states(confounded(seed), seed))
        yield probes.nested(cells_of(features), examples, dataclasses.replace(QUICK, seed=seed))


def test_the_planted_layer_is_chosen_on_training_episodes_and_claimed():
    examples, features = planted(0, 5)
    found = probes.nested(cells_of(features), examples, QUICK)
    assert [choice.layer for choice in found.choices] == [5] * QUICK.folds
    assert found.modal == probes.Cell(5, "last_prompt")
    assert found.claim, found.why
    assert found.scored.auroc.low > 0.7
    assert all(found.gains[name].difference.low > 0 for name in ("majority", "history", "bag of words"))


def test_the_same_analysis_without_the_planted_layer_claims_nothing():
    examples, features = planted(0, 5)
    del features[5]
    found = probes.nested(cells_of(features), examples, QUICK)
    assert not found.claim
    assert "not" in found.why


def test_of_layers_that_keep_what_was_planted_the_earliest_is_chosen():
    examples, features = planted(1, 3, keeps=True, strength=4.0, episodes=50)
    found = probes.nested(cells_of(features), examples, QUICK)
    assert found.modal.layer == 3
    assert min(choice.layer for choice in found.choices) == 3
    assert found.claim, found.why


def test_the_planted_layer_and_only_it_stands_out_of_a_corrected_sweep():
    examples, features = planted(2, 4)
    found = probes.sweep(cells_of(features) | cells_of(features, "mean_prompt"), examples, QUICK)
    chance_or_step = {cell for cell, one in found.cells.items() if cell.layer != 4}
    strongest = max(one.auroc.value for one in found.baselines["before", None].values())
    for pooling in ("last_prompt", "mean_prompt"):
        one = found.cells[probes.Cell(4, pooling)]
        assert one.adjusted <= 1 / (QUICK.deals + 1)
        assert one.scored.auroc.low > strongest
    assert all(found.cells[cell].scored.auroc.value < strongest + 0.1 for cell in chance_or_step)


def test_a_probe_planted_at_one_step_is_found_at_that_step():
    examples, features = steady(3, episodes=80)  # states with a history would predict at other steps too
    here = examples.steps == 2
    features[6][here] += 6 * examples.labels[here, None] * np.ones(WIDTH) / np.sqrt(WIDTH)
    cells = {probes.Cell(layer, "last_prompt", step): one for layer, one in enumerate(features) for step in (0, 1, 2)}
    found = probes.sweep(cells, examples, QUICK)
    assert [cell for cell, one in found.cells.items() if one.adjusted < 0.05] == [probes.Cell(6, "last_prompt", 2)]
    assert probes.nested(cells, examples, QUICK).modal == probes.Cell(6, "last_prompt", 2)


def test_shuffled_labels_and_random_features_give_a_half_on_average():
    controls, noises = [], []
    for seed in range(10):
        examples, features = planted(seed, 0)
        one = probes.Cell(0, "last_prompt")
        found = probes.sweep({one: features[0]}, examples, dataclasses.replace(QUICK, seed=seed, shuffles=5))
        controls.append(found.cells[one].control)
        noises.append(found.baselines["before", None]["random features"].auroc.value)
        assert found.cells[one].selectivity > 0.2
    assert abs(np.mean(controls) - 0.5) < 0.02
    assert abs(np.mean(noises) - 0.5) < 0.04


@pytest.mark.slow
def test_where_nothing_is_planted_few_of_40_analyses_claim_anything_though_many_beat_chance():
    found = list(analyses(range(40)))
    assert sum(one.claim for one in found) <= 3
    confounds = found[::2]  # states that carry step and history do predict, and the baselines say why
    assert sum(one.p <= 0.05 and one.scored.auroc.value > 0.5 for one in confounds) >= 5


@pytest.mark.slow
def test_where_nothing_is_planted_at_most_16_of_200_analyses_claim_anything():
    assert sum(one.claim for one in analyses(range(1000, 1200))) <= 16


def sweeps_that_find(seeds):
    found = 0
    for seed in seeds:
        examples, features = steady(seed)
        cells = probes.sweep(cells_of(features), examples, dataclasses.replace(QUICK, seed=seed)).cells
        found += any(one.adjusted <= 0.05 for one in cells.values())
    return found


def test_corrected_sweeps_of_states_that_only_know_the_episode_find_nothing():
    assert sweeps_that_find(range(12)) <= 2


@pytest.mark.slow
def test_at_most_16_of_200_corrected_sweeps_find_a_cell_where_there_is_none():
    assert sweeps_that_find(range(1000, 1200)) <= 16
