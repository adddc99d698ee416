"""Whatever cannot work is refused before anything runs, by the right class, with what, where, got and expected."""

import pytest
import torch

from sonde.core import errors
from sonde.core import interventions as I
from sonde.models import requests

TOKENS = tuple(range(10))


def _bare(model, *specs):
    model.run_with_hooks(list(TOKENS), list(specs))


def _engine(model, *specs):
    model.generate(list(TOKENS), max_new_tokens=2, interventions=list(specs))


WAYS = pytest.mark.parametrize("run", [_bare, _engine], ids=["bare", "engine"])


@WAYS
def test_an_unknown_layer_is_told_with_the_layers_there_are(model, run):
    last = model.cfg.n_layers - 1
    with pytest.raises(errors.SiteError, match=rf"blocks\.40\.hook_mlp_out.*layers 0 to {last}"):
        run(model, I.Zero(site="blocks.40.hook_mlp_out"))


def test_a_misspelt_site_is_told_with_the_nearest(gpt2):
    with pytest.raises(errors.SiteError, match=r"'blocks\.3\.hook_mlpout'; did you mean 'blocks\.3\.hook_mlp_out'\?"):
        I.Zero(site="blocks.3.hook_mlpout")
    with pytest.raises(errors.SiteError, match=r"'blocks\.\*\.hook_mlpout' in this model"):
        _bare(gpt2, I.Zero(site="blocks.*.hook_mlpout"))
    with pytest.raises(errors.SiteError, match=r"did you mean 'unembed\.hook_out'"):
        gpt2.run_with_cache(list(TOKENS), "unembd.hook_out")
    with pytest.raises(errors.SiteError, match="chose none of the model's"):
        gpt2.run_with_cache(list(TOKENS), lambda name: False)


@WAYS
def test_a_site_that_the_family_lacks_is_refused(model, run):
    for name in {"blocks.0.hook_resid_mid", "blocks.0.mlp.hook_pre_linear", "hook_pos_embed"} - set(model.site_names):
        with pytest.raises(errors.SiteError, match=name):
            run(model, I.Zero(site=name))


@WAYS
def test_an_intervention_without_a_site_is_refused(gpt2, run):
    with pytest.raises(errors.InterventionError, match="Zero names no site"):
        run(gpt2, I.Zero())


@WAYS
def test_a_head_out_of_range_is_told_with_the_heads_there_are(model, run):
    cfg = model.cfg
    with pytest.raises(
        errors.InterventionError, match=rf"attn\.hook_z has heads 0 to {cfg.n_heads - 1}, got \({cfg.n_heads},\)"
    ):
        run(model, I.Zero(site="blocks.0.attn.hook_z", heads=(cfg.n_heads,)))
    shared = cfg.n_key_value_heads
    with pytest.raises(errors.InterventionError, match=rf"attn\.hook_k has heads 0 to {shared - 1}, got"):
        run(model, I.Zero(site="blocks.0.attn.hook_k", heads=(shared,)))
    with pytest.raises(errors.InterventionError, match="heads count from 0"):
        I.Zero(site="blocks.0.attn.hook_z", heads=(-1,))


def test_heads_at_a_site_without_heads_are_refused(gpt2):
    with pytest.raises(
        errors.InterventionError, match=r"blocks\.2\.hook_resid_post has no head axis.*blocks\.2\.attn\.hook_z"
    ):
        I.Zero(site="blocks.2.hook_resid_post", heads=(0,))
    with pytest.raises(errors.InterventionError, match="no head axis"):
        _engine(gpt2, I.Zero(site="blocks.*.hook_mlp_out", heads=(0,)))


def test_a_position_out_of_range_is_refused(gpt2):
    for position in (10, -11):
        with pytest.raises(errors.InterventionError, match=rf"position {position} is out of range.*10 tokens"):
            _bare(gpt2, I.Zero(site="blocks.0.hook_mlp_out", positions=(position,)))
    with pytest.raises(errors.InterventionError, match=r"position 5000 at blocks\.0\.hook_mlp_out.*context of 2048"):
        _engine(gpt2, I.Zero(site="blocks.0.hook_mlp_out", positions=(5000,)))


@WAYS
def test_a_wrong_patch_shape_is_told_with_the_expected_one(model, run):
    width = model.cfg.d_model
    for shape in ((width + 1,), (3, width + 1), (1, 1, 3, width), ()):
        with pytest.raises(
            errors.InterventionError, match=rf"Patch\.values at blocks\.1\.hook_mlp_out: expected shape \({width}\)"
        ):
            run(model, I.Patch(site="blocks.1.hook_mlp_out", values=torch.zeros(shape)))
    with pytest.raises(errors.InterventionError, match=r"Steer\.direction.*got \(3, \d+\)"):
        run(model, I.Steer(site="blocks.1.hook_mlp_out", direction=torch.zeros(3, width)))
    with pytest.raises(errors.InterventionError, match=r"expected shape \(4, queries, keys\)"):
        run(model, I.Patch(site="blocks.1.attn.hook_pattern", values=torch.zeros(3, 5, 5)))


@WAYS
def test_a_knockout_elsewhere_than_in_attention_is_refused(gpt2, run):
    with pytest.raises(
        errors.InterventionError, match=r"hook_attn_scores' or 'attn\.hook_pattern', got blocks\.0\.attn\.hook_z"
    ):
        I.Knockout(site="blocks.0.attn.hook_z", keys=(0,))
    with pytest.raises(errors.InterventionError, match=r"got blocks\.0\.hook_mlp_out"):
        run(gpt2, I.Knockout(site="blocks.*.hook_mlp_out", keys=(0,)))
    with pytest.raises(errors.InterventionError, match="absolute positions"):
        I.Knockout(site="blocks.0.attn.hook_pattern", keys=(-1,))


@WAYS
def test_kinds_without_a_meaning_at_attention_sites_are_refused(gpt2, run):
    for spec in (I.Steer(direction=[1.0]), I.Noise(std=1.0), I.Mean(), I.Mean(values=[1.0])):
        with pytest.raises(
            errors.InterventionError, match=rf"{spec.name} has no meaning at blocks\.0\.attn\.hook_pattern"
        ):
            run(gpt2, spec.at("blocks.0.attn.hook_pattern"))


def test_a_mean_over_the_prompt_cannot_persist(gpt2):
    with pytest.raises(errors.InterventionError, match="cannot persist"):
        _engine(gpt2, I.Mean(site="blocks.0.hook_mlp_out", after="persist"))


@WAYS
def test_a_function_that_returns_another_shape_is_told(gpt2, run, kit):
    for wrong, got in ((lambda value, hook: value[:, :2], r"\(1, 2, 32\)"), (lambda value, hook: 3.0, "float")):
        with pytest.raises(
            errors.InterventionError, match=rf"at blocks\.0\.hook_mlp_out must return shape .*got {got}"
        ):
            run(gpt2, I.Opaque(fn=wrong, site="blocks.0.hook_mlp_out"))
    assert kit.count_hooks(gpt2) == 0


def test_impossible_prompts_are_refused(gpt2):
    for empty in ("", [], ()):
        with pytest.raises(errors.RequestError, match="prompt is empty"):
            gpt2.generate(empty)
    with pytest.raises(errors.RequestError, match="prompt is empty"):
        gpt2.run_with_cache(torch.zeros(1, 0, dtype=torch.long))
    with pytest.raises(errors.RequestError, match="token ids must be 0 to 259, got 1 to 260"):
        gpt2.generate([1, 260])
    with pytest.raises(errors.RequestError, match="got -1 to 5"):
        gpt2.generate([5, -1])
    forced = requests.Request(tokens=(1,), forced=(260,))
    with pytest.raises(errors.RequestError, match="forced token ids must be 0 to 259, got 260"):
        gpt2.submit([forced])
    with pytest.raises(errors.RequestError, match="3 tokens need as many positions, got 2"):
        gpt2.submit([requests.Request(tokens=(1, 2, 3), positions=(0, 1))])


@pytest.mark.parametrize("tokens", [[[1, 2], [3]], [10**6], [-1, 2]], ids=str)
def test_token_ids_that_are_none_are_refused(gpt2, tokens):
    with pytest.raises(errors.RequestError, match="token ids"):
        gpt2.run_with_cache(tokens)


@pytest.mark.parametrize(
    "tokens",
    [torch.ones(3), torch.ones(3).cdouble(), torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 1, 3).long()],
    ids=str,
)
def test_tensors_that_are_no_token_ids_are_refused(gpt2, tokens):
    for run in (gpt2.run_with_cache, gpt2.generate):
        with pytest.raises(errors.RequestError, match="expected a text, or token ids"):
            run(tokens)


def test_interventions_given_to_run_with_cache_are_checked(gpt2):
    with pytest.raises(errors.SiteError, match="layers 0 to"):
        gpt2.run_with_cache(list(TOKENS), interventions=[I.Zero(site="blocks.40.hook_mlp_out")])
    with pytest.raises(errors.InterventionError, match="expected shape"):
        gpt2.run_with_cache(list(TOKENS), interventions=[I.Patch(site="blocks.1.hook_mlp_out", values=torch.zeros(3))])


def test_what_does_not_fit_the_context_is_refused(gpt2):
    with pytest.raises(errors.ContextError, match=r"2049 tokens do not fit the context of 2048"):
        gpt2.run_with_cache([1] * 2049)
    with pytest.raises(errors.ContextError, match=r"2048 prompt tokens and max_new_tokens=1 make 2049.*2048"):
        gpt2.generate([1] * 2048, max_new_tokens=1)
    with pytest.raises(errors.ContextError, match=r"max_new_tokens=3000 make 3004"):
        gpt2.generate([1] * 4, max_new_tokens=3000)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"temperature": -0.1}, "temperature must be 0 or more, got -0.1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"top_k": 0}, "top_k must be at least 1, or None, got 0"),
        ({"stop": ("",)}, "stop must be strings that are not empty"),
        ({"temperature": float("nan")}, "temperature must be 0 or more, got nan"),
    ],
)
def test_impossible_sampling_settings_are_refused(settings, told):
    with pytest.raises(errors.RequestError, match=told):
        requests.Sampling(**settings)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"phase": "later"}, "phase must be one of"),
        ({"scope": "all"}, "scope must be one of"),
        ({"after": "never"}, "after must be one of"),
    ],
)
def test_unknown_words_for_when_are_refused_by_the_types_or_by_name(fields, told):
    """Without runtime type checks the class says it itself."""
    spec = I.Zero(site="hook_embed")
    for name, value in fields.items():
        object.__setattr__(spec, name, value)
    with pytest.raises(errors.InterventionError, match=told):
        spec.__post_init__()
