"""Properties of random intervention programs: the right cells change, no others, and nothing is left behind."""

import contextlib

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from sonde.core import interventions as I
from sonde.core import sites
from sonde.models import paths, taps

LENGTH = 18
TOKENS = [(7 * i * i + 3) % 256 for i in range(LENGTH)]
SETTINGS = hypothesis.settings(
    max_examples=40, suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
)


class DeliberateError(Exception):
    pass


def _array(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


# Beartype draws random numbers, which strategies must not: they choose recipes, and the tests cook.
RECIPES = st.fixed_dictionaries(
    {
        "site": st.integers(0, 10_000),
        "positions": st.none() | st.lists(st.integers(-LENGTH, LENGTH - 1), min_size=1, max_size=5, unique=True),
        "heads": st.none() | st.lists(st.integers(0, 7), min_size=1, max_size=3),
        "factor": st.sampled_from([-1.5, 0.25, 3.0]),
        "keys": st.lists(st.integers(0, LENGTH + 3), min_size=1, max_size=4),
        "option": st.integers(0, 1000),
    }
)


def _single(model, recipe):
    """One intervention that changes one Site in a way the test can foretell."""
    name = model.site_names[recipe["site"] % len(model.site_names)]
    site = sites.Site.parse(name)
    shape, factor = taps.value_shape(site, model.cfg), recipe["factor"]
    where = {"site": name, "positions": recipe["positions"] and tuple(recipe["positions"])}
    if site.has_heads and recipe["heads"] is not None:
        where["heads"] = tuple({head % shape[0] for head in recipe["heads"]})
    options = [
        I.Zero(**where),
        I.Scale(factor=factor, **where),
        I.Opaque(fn=lambda value, hook: value.mul_(2.0) if factor < 0 else value + 1, **where),
    ]
    if site.is_query_key:
        values = _array(*shape, 9, LENGTH)
        options += [I.Knockout(keys=tuple(recipe["keys"]), **where), I.Patch(values=values, start=4, **where)]
    else:
        options += [
            I.Steer(direction=_array(*shape), strength=factor, **where),
            I.Patch(values=_array(*shape), **where),
            I.Patch(values=_array(9, *shape), start=4, **where),
            I.Mean(values=_array(*shape), **where),
            I.Mean(**where),
            I.Noise(std=abs(factor), seed=3, **where),
        ]
    return options[recipe["option"] % len(options)]


def _foretold(spec, site, factor, clean, cells):
    """The Site's value under an intervention, cell by cell; None where only the place is foretold."""
    stored = torch.from_numpy(spec.values.copy()) if getattr(spec, "values", None) is not None else None
    if isinstance(spec, I.Zero):
        return torch.where(cells, 0.0, clean)
    if isinstance(spec, I.Scale):
        return torch.where(cells, clean * spec.factor, clean)
    if isinstance(spec, I.Steer):
        return torch.where(cells, clean + spec.strength * torch.from_numpy(spec.direction.copy()), clean)
    if isinstance(spec, I.Opaque):
        return torch.where(cells, clean * 2.0 if factor < 0 else clean + 1, clean)
    if isinstance(spec, I.Knockout):
        forbidden = torch.zeros(clean.shape[-1], dtype=torch.bool)
        forbidden[[key for key in spec.keys if key < clean.shape[-1]]] = True
        return clean.masked_fill(cells & forbidden, -torch.inf if "scores" in site.kind else 0.0)
    if isinstance(spec, I.Mean) and stored is None:
        return torch.where(cells, clean.mean(dim=1, keepdim=True), clean)
    if stored is None:
        return None
    axis = 2 if site.is_query_key else 1
    if stored.ndim == clean.ndim - 1 and getattr(spec, "start", 0) == 4:
        whole = clean.clone()
        whole.narrow(axis, 4, 9).copy_(stored[None])
        stored = whole
    return torch.where(cells, stored.expand_as(clean), clean)


def _cells(spec, site, clean):
    """Which cells an intervention may change, as a mask over the recorded value."""
    positions = range(LENGTH) if spec.positions is None else [p % LENGTH for p in spec.positions]
    axis, head_axis = (2, 1) if site.is_query_key else (1, 2)
    cells = torch.zeros_like(clean, dtype=torch.bool)
    cells.index_fill_(axis, torch.tensor(list(positions)), True)
    if spec.heads is not None:
        others = [head for head in range(clean.shape[head_axis]) if head not in spec.heads]
        cells.index_fill_(head_axis, torch.tensor(others, dtype=torch.long), False)
    if site.is_query_key and not isinstance(spec, I.Opaque):
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        cells &= seen & ~torch.isneginf(clean)
    return cells


def test_one_intervention_changes_exactly_the_cells_it_names(loaded):
    @SETTINGS
    @hypothesis.given(RECIPES)
    def check(recipe):
        spec, factor = _single(loaded, recipe), recipe["factor"]
        site = sites.Site.parse(spec.site)
        _, before = loaded.run_with_cache(TOKENS, spec.site)
        _, after = loaded.run_with_cache(TOKENS, spec.site, interventions=[spec])
        clean, changed = before[spec.site], after[spec.site]
        cells = _cells(spec, site, clean)
        assert torch.equal(changed[~cells], clean[~cells]), "a cell outside was touched"
        expected = _foretold(spec, site, factor, clean, cells)
        if expected is None:
            assert (changed != clean)[cells].float().mean() > 0.9
        else:
            torch.testing.assert_close(changed, expected, rtol=1e-6, atol=1e-6)

    check()


PROGRAMS = st.fixed_dictionaries(
    {
        "singles": st.lists(RECIPES, max_size=4),
        "path": st.none() | st.tuples(st.integers(0, 100), st.integers(0, 100), st.sets(st.integers(0, 3), min_size=1)),
        "fails": st.none() | st.tuples(st.integers(0, 10_000), st.integers(0, 4)),
        "order": st.none() | st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=2), min_size=1, max_size=6),
        "reverse": st.booleans(),
        "bare": st.booleans(),
    }
)


def _program(model, recipe):
    """Several interventions of any kind, perhaps one that fails, perhaps in another layer order."""
    specs = [_single(model, one) for one in recipe["singles"]]
    if recipe["path"] is not None:
        layer, kind = recipe["path"][0] % (model.cfg.n_layers - 1), paths.SENDERS[1:][recipe["path"][1] % 4]
        at = f"blocks.{layer + 1}."
        readers = (f"{at}attn.hook_k", f"{at}mlp.hook_pre", f"{at}hook_resid_pre", "ln_final.hook_out")
        values = _array(*taps.value_shape(sites.Site(kind, layer), model.cfg))
        receivers = tuple(readers[index] for index in sorted(recipe["path"][2]))
        specs.append(I.PathPatch(site=f"blocks.{layer}.{kind}", values=values, receivers=receivers))
    if recipe["fails"] is not None:
        calls = iter(range(recipe["fails"][1]))

        def failing(value, hook):
            if next(calls, None) is None:
                raise DeliberateError

        specs.append(I.Opaque(fn=failing, site=model.site_names[recipe["fails"][0] % len(model.site_names)]))
    specs = specs[::-1] if recipe["reverse"] else specs
    if recipe["order"] is not None:
        kinds = getattr(model.hf.config, "layer_types", None) or ["same"] * model.cfg.n_layers
        stages = [[layer % model.cfg.n_layers for layer in stage] for stage in recipe["order"]]
        stages = [stage if len({kinds[layer] for layer in stage}) == 1 else stage[:1] for stage in stages]
        specs.append(I.LayerOrder(order=tuple(stage[0] if len(stage) == 1 else tuple(stage) for stage in stages)))
    return specs


def test_after_any_program_the_model_is_as_it_was(loaded, kit):
    before = kit.fingerprint(loaded)

    @SETTINGS
    @hypothesis.given(PROGRAMS)
    def check(recipe):
        specs = _program(loaded, recipe)
        with contextlib.suppress(DeliberateError):
            if recipe["bare"]:
                loaded.run_with_hooks(TOKENS, specs)
            else:
                loaded.generate(TOKENS, max_new_tokens=3, interventions=specs)
        kit.assert_restored(loaded, before)

    check()


def test_a_clean_answer_after_random_programs_is_the_clean_answer(loaded, kit):
    """What interventions leave in the cache never reaches a request without them."""
    loaded.pool.entries.clear()
    plain = loaded.generate(TOKENS, max_new_tokens=4)

    @hypothesis.settings(SETTINGS, max_examples=15)
    @hypothesis.given(PROGRAMS)
    def check(recipe):
        with contextlib.suppress(DeliberateError):
            loaded.generate(TOKENS, max_new_tokens=4, interventions=_program(loaded, recipe))
        again = loaded.generate(TOKENS, max_new_tokens=4)
        assert again.tokens == plain.tokens
        assert kit.close(again.logprobs, plain.logprobs)

    check()


def test_a_program_in_the_engine_equals_the_same_program_in_a_bare_forward(loaded, kit):
    @hypothesis.settings(SETTINGS, max_examples=15)
    @hypothesis.given(st.lists(RECIPES, min_size=1, max_size=4))
    def check(recipes):
        specs = [_single(loaded, recipe) for recipe in recipes]
        specs = [spec for spec in specs if not (isinstance(spec, I.Mean) and spec.values is None)]
        loaded.pool.entries.clear()
        answer = loaded.generate(TOKENS, max_new_tokens=1, interventions=specs)
        expected = loaded.run_with_hooks(TOKENS, specs)[0, -1].log_softmax(dim=-1)
        assert kit.close(answer.logprobs[0], expected[answer.tokens[0]], 1e-3)

    check()


@pytest.mark.parametrize("std", [0.5])
def test_noise_depends_on_seed_site_and_position_only(gpt2, std):
    def noise(tokens, **fields):
        spec = I.Noise(std=std, **{"site": "blocks.1.hook_mlp_out", "seed": 1, **fields})
        _, clean = gpt2.run_with_cache(tokens, spec.site)
        _, noisy = gpt2.run_with_cache(tokens, spec.site, interventions=[spec])
        return (noisy[spec.site] - clean[spec.site])[0]

    first = noise(TOKENS)
    torch.testing.assert_close(noise(TOKENS[::-1]), first, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(noise(TOKENS[:5]), first[:5], rtol=1e-4, atol=1e-5)
    assert abs(float(first.std()) - std) < 0.05
    for other in (noise(TOKENS, seed=2), noise(TOKENS, site="blocks.2.hook_mlp_out")):
        assert abs(float(torch.corrcoef(torch.stack([first.flatten(), other.flatten()]))[0, 1])) < 0.2
