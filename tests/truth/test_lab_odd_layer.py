"""The search names the one layer that matters more than its size explains, and mostly none where there is none.

Twenty models with such a layer at a drawn depth and twenty without. Models without one have layers of very different
sizes, of which the larger do more harm: whoever names the worst layer is wrong every time. The rule was chosen on seeds 100
to 159 and is judged on seeds 2000 to 2019, which were not looked at before.
"""

import numpy as np
import pytest
import torch

from sonde.lab import budget, desk, experiments, log, loop, tasks
from sonde.lab.planners import search
from sonde.testing import odd_layer

BUDGET, QUICK, SEEDS, FIRST = 12, 2, 20, 2000


def named(folder, odd, seed):
    """The layers that an inquiry names as odd, each with its finding, and what it spent."""
    examples = tuple(tasks.Example(prompt, (answer,)) for prompt, answer in odd_layer.answers(seed).items())
    task = tasks.Task("letters", "From a letter to its sign.", (), "", examples)
    with odd_layer.model(odd, seed=seed) as model, log.Log.of(folder / f"{odd}-{seed}") as book:
        bench = experiments.Experiments(model, task)
        inquiry = loop.begin(book, bench, most=12, seed=seed, limits=budget.Limits(BUDGET))
        loop.conduct(desk.Desk(bench, inquiry), search.SearchPlanner())
        found = {}
        for finding in inquiry.findings():
            if finding["status"] == "supported" and "norm and block influence" in finding["claim"]:
                (test,) = finding["tests"]
                run, prediction = book.get(test["run"]), book.get(test["prediction"])
                assert (run["split"], prediction["controls"], len(test["controls"])) == ("held_out", "alike", 3)
                assert run["loss_delta_low"] > prediction["value"] >= 0.5
                found[run["layers"][0]] = finding
        assert inquiry.spent().experiments <= BUDGET
        return found


def counted(folder, planted, seeds):
    """In how many of the models exactly the planted layer, or any where none is planted, is named."""
    hits = 0
    for seed in seeds:
        odd = odd_layer.drawn(seed) if planted else None
        found = named(folder, odd, seed)
        hits += list(found) == [odd] if planted else bool(found)
    return hits


def test_the_odd_layer_is_named_and_an_intact_model_has_none(tmp_path):
    assert counted(tmp_path, True, range(QUICK)) == QUICK
    assert counted(tmp_path, False, range(QUICK)) == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_odd_layer_is_named_in_18_of_20_models_and_one_in_at_most_3_of_20_intact_ones(tmp_path):
    planted, intact = (counted(tmp_path, one, range(FIRST, FIRST + SEEDS)) for one in (True, False))
    print(f"named: {planted} of {SEEDS} planted, {intact} of {SEEDS} intact")
    assert planted >= 18
    assert intact <= 3


def shape(model):
    """Mean log norm and log block influence of each layer, by plain hooks on the bare model."""
    ids = torch.tensor([model.tokenizer.encode(letter) for letter in odd_layer.LETTERS])
    kept = []
    hooks = [one.register_forward_hook(lambda _, args, out: kept.append((args[0], out[0] if isinstance(out, tuple) else out)))
             for one in model.hf.model.layers]  # fmt: skip
    with torch.no_grad():
        model.hf(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    norms = [float((after - before).norm(dim=-1).log().mean()) for before, after in kept]
    turns = [float((1 - torch.cosine_similarity(before, after, dim=-1)).mean()) for before, after in kept]
    return np.array(norms), np.log(turns)


@pytest.mark.parametrize(
    "seed", [seed if seed < 4 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(SEEDS)]
)
def test_the_odd_layer_is_as_large_as_its_neighbours_and_layers_differ_in_size(seed):
    odd = odd_layer.drawn(seed)
    with odd_layer.model(odd, seed=seed) as model:
        norms, turns = shape(model)
    for sizes, tolerance in ((norms, 0.15), (turns, 0.2)):  # of the mean of both, in log units
        assert abs(sizes[odd] - (sizes[odd - 1] + sizes[odd + 1]) / 2) <= tolerance
        assert sizes.std() > 2 * tolerance


def test_planting_changes_nothing_inside_of_the_layers():
    with odd_layer.model(5, seed=1) as one, odd_layer.model(None, seed=1) as other:
        ids = one.to_tokens("a")
        first, second = (model.run_with_cache(ids, "blocks.*.hook_resid_post")[1] for model in (one, other))
        assert all(torch.equal(first[name], second[name]) for name in first)
