"""Where nodes stand in trained models tells nothing: places are even over all layouts, and rankings that look at nothing gain nothing."""

import collections
import dataclasses
import functools

import numpy as np
import pytest

from sonde.analysis import stats
from sonde.bench import cases, correspondence, finding, priors, shipped, standings, starting, training
from sonde.circuits import graph

DRAWS = 200


def low_of(case):
    size = shipped.sizes_of(case)
    return graph.Graph(size.n_layers, size.n_heads, size.n_heads)


@functools.cache
def layouts(case):
    """Every way to give the nodes of a case layers, and how likely each is."""
    circuit, low = shipped.task_of(case).program.circuit, low_of(case)
    every = list(correspondence.layers(circuit, low))
    ways = np.array([correspondence.ways(one, low) for one in every], dtype=float)
    return every, ways / ways.sum()


def drawn(case, rng):
    """A layout from even draws, made here from the layers alone."""
    every, chances = layouts(case)
    chosen, found = every[rng.choice(len(every), p=chances)], []
    heads = {layer: list(rng.permutation(low_of(case).n_heads)) for layer in set(chosen.values())}
    for node, layer in chosen.items():
        found.append(f"m{layer}" if node[0] == "m" else f"a{layer}.h{heads[layer].pop()}")
    return found


def counts(models, places):
    """How often each place of models of one size is taken, and each head of any."""
    found = collections.Counter()
    for case, taken in zip(models, places, strict=True):
        found.update((low_of(case).n_layers, place) for place in taken)
        found.update(place.partition(".")[2] for place in taken if place[0] == "a")
    return found


def chance(models, places, seed=0):
    """How likely places are that lie at least as far from what even draws give, by as many simulated draws of the same models."""
    rng = np.random.default_rng(seed)
    simulated = [counts(models, [drawn(case, rng) for case in models]) for _ in range(DRAWS)]
    keys = sorted({key for one in simulated for key in one} | set(counts(models, places)), key=str)
    table = np.array([[one[key] for key in keys] for one in simulated], dtype=float)
    mean, spread = table.mean(axis=0), table.std(axis=0) + 0.1
    far = (((table - mean) / spread) ** 2).sum(axis=1)
    mine = (((np.array([counts(models, places)[key] for key in keys]) - mean) / spread) ** 2).sum()
    return (1 + (far >= mine).sum()) / (1 + DRAWS)


def places_of(case, seed):
    return list(training.places_of(shipped.task_of(case), low_of(case), seed).values())


CORE = [(str(case), seed) for case in cases.ids("core") for seed in (0, 1, 2)]


def test_places_of_the_core_cases_are_those_of_even_draws_and_all_at_one_head_would_not_be():
    models = [case for case, _ in CORE]
    assert chance(models, [places_of(case, seed) for case, seed in CORE]) > 0.01
    crowded = [
        [place.partition(".")[0] + ".h3" if place[0] == "a" else place for place in places_of(case, seed)]
        for case, seed in CORE
    ]
    assert chance(models, crowded) < 0.01


def test_places_of_the_models_that_come_with_sonde_are_those_of_even_draws():
    models = shipped.list_embedded()
    if not models:
        pytest.skip("no models are in the package")
    found = [list(starting.read_log(shipped._place(*one))["places"].values()) for one in models]
    assert chance([case for case, _ in models], found) > 0.01


def judged(case, places):
    """A subject whose circuit is at some places; its weights are of no matter here."""
    own = shipped.compiled(case)
    log = {"places": places, "program": "", "measured": {"moved": dict.fromkeys(places, 1.0)}}
    return dataclasses.replace(own, truth=correspondence.carried(own.truth, places, low_of(case)), log=log)


@pytest.mark.parametrize("name", priors.NAMES)
def test_among_heads_alone_no_ranking_that_looks_at_nothing_is_surely_better_than_60_percent(name):
    rows = []
    for case, seed in CORE:
        subject = judged(case, training.places_of(shipped.task_of(case), low_of(case), seed))
        rows.append((case, finding.auroc(priors.scores(name, low_of(case)), subject, "head")))
    known = [(case, value) for case, value in rows if value is not None]
    values, groups = np.array([value for _, value in known]), np.array([case for case, _ in known])
    found = stats.bootstrap_interval(lambda chosen: float(values[chosen].mean()), groups, draws=standings.DRAWS)
    assert found.low <= 0.6, f"{name}: {found}"
