"""The family table: one row per architecture, and what is said where there is none."""

import types

import pytest

from sonde.core import errors
from sonde.models import families, taps, tiny


def test_an_unknown_family_is_told_with_the_known_ones_and_how_to_add_one():
    with pytest.raises(errors.FamilyError) as caught:
        families.of_config(types.SimpleNamespace(model_type="mamba"))
    told = str(caught.value)
    assert "no family row for model type 'mamba'" in told
    assert "gpt2" in told
    assert "families.register(families.Family(name='mamba'" in told


def test_a_registered_row_comes_first(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", families.FAMILIES)
    row = families.Family(name="mine", model_types=("gpt2", "mine"))
    families.register(row)
    assert families.of_config(types.SimpleNamespace(model_type="gpt2")) is row


def test_parallel_blocks_have_no_middle_and_serial_ones_have():
    parallel = types.SimpleNamespace(model_type="gpt_neox", use_parallel_residual=True)
    serial = types.SimpleNamespace(model_type="gpt_neox", use_parallel_residual=False)
    assert families.of_config(parallel).resid_mid is None
    assert families.of_config(serial).resid_mid == "post_attention_layernorm"


def test_a_row_that_names_a_missing_module_is_told():
    network, _ = tiny.make("tiny-gpt2")
    with pytest.raises(errors.FamilyError, match=r"the 'llama' row names module 'model.layers'.*GPT2LMHeadModel"):
        taps.submodule(network, families.LLAMA.layers, families.LLAMA)
