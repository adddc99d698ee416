"""The search planner finds the layers that matter, no others, and nothing where nothing matters."""

import numpy as np
import pytest

from sonde.core import interventions
from sonde.lab import budget, desk, experiments, log, loop, tasks, verdicts
from sonde.lab.planners import search
from sonde.testing import layered

BUDGET = 45
QUICK = 2
SEEDS = [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.slow) for seed in range(20)]


def researched(folder, needed, seed):
    """What the planner supports about a model: breaking sets, sufficient sets; and what it spent."""
    examples = tuple(tasks.Example(prompt, (answer,)) for prompt, answer in layered.answers(seed).items())
    task = tasks.Task("letters", "From a letter to its sign.", (), "", examples)
    with layered.model(needed, seed=seed) as model, log.Log.of(folder) as book:
        bench = experiments.Experiments(model, task)
        inquiry = loop.begin(book, bench, most=8, seed=seed, limits=budget.Limits(BUDGET))
        loop.conduct(desk.Desk(bench, inquiry), search.SearchPlanner())
        found = {"below": [], "above": []}
        for finding in inquiry.entries("finding"):
            assert finding["status"] == "supported"
            (test,) = finding["tests"]
            run, prediction = book.get(test["run"]), book.get(test["prediction"])
            left = set(verdicts.skipped(run, layered.LAYERS))
            below = prediction["relation"] == "below"
            if prediction["measure"] == "kept":
                found[prediction["relation"]].append(left if below else set(range(layered.LAYERS)) - left)
        return found["below"], found["above"], inquiry.spent().experiments


@pytest.mark.parametrize("seed", SEEDS)
def test_where_two_layers_matter_exactly_those_are_found_within_the_budget(tmp_path, seed):
    drawn = np.random.default_rng(seed).choice(layered.LAYERS, 2, replace=False)
    needed = {int(layer) for layer in drawn}
    breaking, sufficient, spent = researched(tmp_path, tuple(sorted(needed)), seed)
    assert sufficient == [needed]
    assert set().union(*breaking) == needed
    assert spent <= BUDGET


@pytest.mark.parametrize("seed", SEEDS)
def test_where_no_layer_matters_nothing_is_concluded(tmp_path, seed):
    breaking, sufficient, spent = researched(tmp_path, (), seed)
    assert (breaking, sufficient) == ([], [])
    assert spent <= BUDGET


def test_the_planted_layers_and_no_others_change_the_answers():
    with layered.model((1, 6), seed=4) as model:
        asked = layered.answers(4)
        kept = []
        for layer in range(layered.LAYERS):
            order = [one for one in range(layered.LAYERS) if one != layer]
            specs = (interventions.LayerOrder(order=order),)
            said = model.generate(list(asked), max_new_tokens=1, interventions=specs)
            kept.append(np.mean([one.text == answer for one, answer in zip(said, asked.values(), strict=True)]))
    assert [layer for layer, share in enumerate(kept) if share < 0.2] == [1, 6]
    assert all(share > 0.9 for layer, share in enumerate(kept) if layer not in (1, 6))
