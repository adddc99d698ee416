"""Induction heads of a model that is trained here are found, by methods that never look at attention."""

import numpy as np
import pytest

from sonde.circuits import induction_model, registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHOWS = 0.3  # mean attention of a head that does induction


@pytest.fixture(scope="module")
def trained():
    return induction_model.train(seed=0)


@pytest.fixture(scope="module")
def made(trained):
    return induction_model.pairs(trained, n=48)


@pytest.fixture(scope="module")
def heads(trained):
    """Heads whose attention shows induction."""
    found = np.argwhere(induction_model.prefix_matching(trained) > SHOWS)
    return {f"a{layer}.h{head}" for layer, head in found}


def ranked(names, values):
    """Heads by falling absolute value."""
    order = np.argsort(-np.abs(np.nan_to_num(values)), kind="stable")
    return [names[place] for place in order if names[place].startswith("a")]


def test_the_model_learned_to_repeat_by_heads_of_its_second_layer(trained, heads):
    assert induction_model.accuracy(trained) > 0.95
    assert heads
    assert all(name.startswith("a1.") for name in heads)


def test_an_untrained_model_shows_no_such_head():
    born = induction_model.train(seed=0, recipe=induction_model.Recipe(steps=0))
    assert induction_model.prefix_matching(born).max() < SHOWS / 2
    assert induction_model.accuracy(born) < 0.1


@pytest.mark.parametrize("method", ["eap", "eap-ig"])
def test_edges_into_the_logits_come_from_these_heads(trained, made, heads, method):
    scores = registry.find(trained, made, method=method)
    names, values = scores.graph.sources, scores.values[:, -1]
    assert set(ranked(names, values)[: len(heads)]) == heads
    inside, outside = (
        [abs(value) for name, value in zip(names, values, strict=True) if name[0] == "a" and (name in heads) is chosen]
        for chosen in (True, False)
    )
    assert min(inside) > 10 * max(outside)


@pytest.mark.parametrize("method", ["eap-ig", "exact-node"])
def test_nodes_that_matter_are_these_heads_and_the_one_that_feeds_them(trained, made, heads, method):
    scores = registry.find(trained, made, method=method)
    best = ranked(scores.graph.sources, scores.node_values())[: len(heads) + 1]
    assert heads < set(best)
    assert {name[:3] for name in set(best) - heads} == {"a0."}


def test_random_scores_do_not_find_them(trained, made, heads):
    hits = 0
    for seed in range(20):
        scores = registry.find(trained, made, method="random", seed=seed)
        hits += set(ranked(scores.graph.sources, scores.values[:, -1])[: len(heads)]) == heads
    assert hits <= 2
