"""Forbidden attention in resumed runs is what a Knockout in a full forward pass is."""

import itertools

import numpy as np
import pytest

import sonde
from sonde.analysis.tracing import knockout, pairs
from sonde.core import errors

PAIR = pairs.TracePair((50, 60, 70, 80, 90, 100), (50, 61, 70, 80, 90, 100), 3, 9)
ROUTES = {
    "final to second": knockout.Route((5,), (1,)),
    "late to early": knockout.Route((3, 4), (0, 1, 2)),
    "first to itself": knockout.Route((0,), (0,)),
}


def reference(model, route, layers, heads):
    held = [
        sonde.Knockout(
            site=f"blocks.{layer}.attn.hook_attn_scores", positions=route.queries, keys=route.keys, heads=heads
        )
        for layer in layers
    ]
    return model.run_with_hooks(list(PAIR.clean), held)[0, -1]


@pytest.mark.parametrize(
    ("name", "window", "heads"), [("tiny-llama", 1, "each"), ("tiny-gpt2", 2, "all"), ("tiny-gemma", 2, "all")]
)
def test_every_cell_equals_a_full_forward_pass_with_the_knockout(name, window, heads, kit):
    with sonde.load(name) as model:
        before = kit.logits_of(model)
        settings = knockout.Settings(window=window, heads=heads, batch_rows=7)
        found = knockout.sweep(model, [PAIR], [ROUTES], settings=settings)
        kit.assert_untouched(model, before)
        (grid,) = found.sweep.grids
        chosen = found.sweep.heads or (None,)
        assert len(chosen) == (model.cfg.n_heads if heads == "each" else 1)
        moved = 0.0
        for layer, (column, route), head in itertools.product(found.sweep.layers, enumerate(ROUTES.values()), chosen):
            layers = range(layer, min(layer + window, model.cfg.n_layers))
            expected = reference(model, route, layers, None if head is None else (head,))
            cell = (layer, column) if head is None else (layer, column, head)
            assert grid.answer_logit[cell] == pytest.approx(float(expected[PAIR.answer]), abs=1e-4)
            assert grid.counterfactual_logit[cell] == pytest.approx(float(expected[9]), abs=1e-4)
            moved = max(moved, abs(grid.answer_logit[cell] - grid.clean.answer_logit))
        assert moved > 0.05


def test_routes_that_only_some_pairs_have_are_averaged_over_those(llama):
    other = pairs.TracePair((1, 2, 3, 4), (1, 5, 3, 4), 3, 9)
    routes = [ROUTES, {"final to second": knockout.Route((3,), (1,))}]
    told = []
    found = knockout.sweep(llama, [PAIR, other], routes, on_progress=lambda *one: told.append(one))
    table = found.by_route("recovery")
    assert table.roles == tuple(ROUTES)
    np.testing.assert_array_equal(table.n[:, 0], [2, 1, 1])
    assert np.isfinite(table.estimate).all()
    assert told[-1] == ("knockout", 16, 16)


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ([], "routes of 0 pairs were given"),
        ([{"far": knockout.Route((9,), (1,))}], "position 9 of 'far' is outside of 6 tokens"),
    ],
)
def test_routes_that_do_not_fit_are_refused(llama, routes, message):
    with pytest.raises(errors.RequestError, match=message):
        knockout.sweep(llama, [PAIR], routes)


def test_a_route_against_the_direction_of_attention_is_refused():
    with pytest.raises(errors.RequestError, match="nothing to forbid"):
        knockout.Route((1,), (2,))
