"""Interventions as data: stored, compared, read back."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from sonde.core import errors, spans
from sonde.core import interventions as I

EXAMPLES = [
    I.Zero(site="blocks.0.attn.hook_z", heads=(1, 2), positions=(0, -1), steps=(3,), phase="decode"),
    I.Mean(site="hook_embed", scope="new"),
    I.Mean(values=np.arange(4.0)),
    I.Patch(site="blocks.1.hook_mlp_out", values=np.ones((2, 3), dtype=np.float32), start=5),
    I.Steer(direction=[1, 2, 3], strength=-2.5, after="persist"),
    I.Scale(factor=0.5, site="blocks.*.hook_mlp_out"),
    I.Noise(std=1.0, seed=9),
    I.Knockout(site="blocks.0.attn.hook_pattern", keys=(4, 5)),
    I.PathPatch(
        site="blocks.0.attn.hook_z", values=np.zeros((2, 2)), receivers=("blocks.1.attn.hook_q",), receiver_heads=(0,)
    ),
    I.LayerOrder(order=(0, (1, 2), 3), steps=(1,)),
]


@pytest.mark.parametrize("spec", EXAMPLES, ids=lambda spec: spec.name)
def test_every_kind_survives_json(spec):
    data = json.loads(json.dumps(spec.to_json()))
    again = I.from_json(data)
    assert type(again) is type(spec)
    assert again.digest == spec.digest
    assert again.effect == spec.effect
    for field in dataclasses.fields(spec):
        left, right = getattr(spec, field.name), getattr(again, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right


def test_every_kind_has_an_example_here():
    assert {spec.name for spec in EXAMPLES} == set(I.KINDS)


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(errors.InterventionError, match=r"'Explode'; known: \['Knockout', 'LayerOrder'"):
        I.from_json({"kind": "Explode"})


def test_where_and_when_change_the_digest_but_not_the_effect():
    spec = I.Steer(site="hook_embed", direction=[1.0, 2.0])
    others = [
        dataclasses.replace(spec, **change)
        for change in (
            {"positions": (1,)},
            {"steps": (1,)},
            {"phase": "decode"},
            {"scope": "new"},
            {"after": "persist"},
        )
    ]
    assert len({one.digest for one in (spec, *others)}) == 6
    assert {one.effect for one in others} == {spec.effect}


def test_what_and_where_in_the_model_change_the_effect():
    spec = I.Steer(site="blocks.0.attn.hook_z", direction=[1.0, 2.0])
    others = [
        dataclasses.replace(spec, **change)
        for change in ({"strength": 2.0}, {"direction": [1.0, 3.0]}, {"site": "blocks.1.attn.hook_z"}, {"heads": (0,)})
    ]
    assert len({one.effect for one in (spec, *others)}) == 5


def test_the_scope_of_a_prompt_mean_is_part_of_its_effect():
    assert I.Mean(site="hook_embed").effect != I.Mean(site="hook_embed", scope="new").effect
    assert I.Mean(values=[1.0]).effect == I.Mean(values=[1.0], scope="new").effect


@pytest.mark.parametrize("make", [np.array, torch.tensor, lambda v: torch.tensor(v, dtype=torch.bfloat16), list])
def test_arrays_are_private_read_only_copies(make):
    source = make([1.0, 2.0])
    spec = I.Steer(direction=source)
    source[0] = 99.0
    assert spec.direction.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        spec.direction[0] = 5.0


def test_an_array_that_needs_gradients_or_holds_integers_is_taken_as_numbers():
    assert I.Steer(direction=torch.ones(2, requires_grad=True)).direction.tolist() == [1.0, 1.0]
    assert I.Steer(direction=[1, 2]).direction.dtype == np.float32
    with pytest.raises(errors.InterventionError, match="array of numbers"):
        I.Steer(direction=np.array(["a"]))


def test_numbers_of_any_library_become_plain_ones():
    spec = I.Steer(direction=[1.0], strength=np.float64(2.0))
    assert type(spec.strength) is float
    assert spec.digest == I.Steer(direction=[1.0], strength=2.0).digest
    assert all(type(position) is int for position in I._integers(np.arange(3), "positions"))


def test_positions_may_be_spans_and_must_be_integers():
    assert I._integers([spans.Span(2, 5), 9], "positions") == (2, 3, 4, 9)
    assert I._integers(7, "positions") == (7,)
    for wrong in ([1.5], ["a"], "12"):
        with pytest.raises(errors.InterventionError, match="positions must be integers or Spans"):
            I._integers(wrong, "positions")


def test_a_plain_function_refuses_to_be_stored_and_is_equal_to_itself_alone():
    def double(value, hook):
        return value * 2

    spec = I.Opaque(fn=double, site="hook_embed")
    with pytest.raises(errors.OpaqueError, match=r"double.* at hook_embed.*cannot be stored"):
        spec.to_json()
    assert spec.digest != I.Opaque(fn=double, site="hook_embed").digest
    assert dataclasses.replace(spec, positions=(1,)).effect == spec.effect


def test_at_moves_an_intervention_and_checks_it_there():
    assert I.Zero(heads=(1,)).at("blocks.1.attn.hook_z").site == "blocks.1.attn.hook_z"
    with pytest.raises(errors.InterventionError, match="no head axis"):
        I.Zero(heads=(1,)).at("blocks.1.hook_mlp_out")


def test_a_description_is_one_line_without_the_numbers_of_arrays():
    told = I.Patch(site="hook_embed", values=np.zeros((3, 4)), positions=(1,)).describe()
    assert told == "Patch at hook_embed (positions=(1,), values=array(3, 4))"
    assert I.Zero().describe() == "Zero at any site"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, range(12)),
        ({"phase": "prefill"}, range(8)),
        ({"phase": "decode"}, range(8, 12)),
        ({"scope": "new"}, range(5, 12)),
        ({"scope": "new", "phase": "prefill"}, range(5, 8)),
        ({"positions": (1, 6, 9, 50)}, (1, 6, 9)),
        ({"positions": (-1, -8, -9)}, (0, 7)),
        ({"positions": (-1, 9, 2), "scope": "new", "phase": "prefill"}, (7,)),
        ({"positions": ()}, ()),
    ],
)
def test_selected_reads_positions_phase_and_scope(fields, expected):
    found = I.selected(I.Zero(**fields), prompt_length=8, new_start=5, length=12)
    assert [p for span in found for p in span] == list(expected)


@pytest.mark.parametrize(
    "data",
    [
        "Zero",
        None,
        {},
        {"kind": ["Zero"]},
        {"kind": "Zero", "sight": "blocks.0.hook_resid_post"},
        {"kind": "Steer"},
        {"kind": "Steer", "direction": [1, 2]},
        {"kind": "Steer", "direction": {"dtype": "float32", "shape": [3], "base64": "AAAA"}},
        {"kind": "Steer", "direction": {"dtype": "object", "shape": [1], "base64": "AAAAAAAAAAA="}},
        {"kind": "Scale", "factor": "much"},
    ],
    ids=str,
)
def test_what_is_no_intervention_is_refused_by_name(data):
    with pytest.raises(errors.InterventionError):
        I.from_json(data)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(number):
    with pytest.raises(errors.InterventionError, match="strength must be a finite number"):
        I.Steer(direction=[1.0], strength=number)
    with pytest.raises(errors.InterventionError, match="factor must be a finite number"):
        I.Scale(factor=number)
    with pytest.raises(errors.InterventionError, match="1 of 2 numbers are NaN"):
        I.Steer(direction=[1.0, math.nan])
