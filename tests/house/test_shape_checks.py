"""The suite runs under runtime shape checks: a wrong shape anywhere in sonde fails the test that met it."""

import importlib
import sys

import jaxtyping
import numpy as np
import pytest

import sonde

MODULE = '''
"""A module that sonde does not have."""
import dataclasses
from typing import Self

import numpy as np
from jaxtyping import Float


@dataclasses.dataclass(frozen=True, slots=True)
class Direction:
    vector: Float[np.ndarray, "d_model"]
    mean: Float[np.ndarray, "d_model"]

    def itself(self) -> Self:
        return self


def project(rows: Float[np.ndarray, "pos d_model"], vector: Float[np.ndarray, "d_model"]) -> Float[np.ndarray, "pos"]:
    return rows @ vector


def broken(rows: Float[np.ndarray, "pos d_model"]) -> Float[np.ndarray, "pos"]:
    return rows.sum(0)
'''


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """A throw-away module imported as part of sonde."""
    (tmp_path / "_shape_probe.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setattr(sonde, "__path__", [*sonde.__path__, str(tmp_path)])
    yield importlib.import_module("sonde._shape_probe")
    del sys.modules["sonde._shape_probe"]
    del sonde._shape_probe


def test_right_shapes_pass(checked):
    assert checked.project(np.ones((3, 4)), np.ones(4)).shape == (3,)
    assert checked.Direction(np.ones(4), np.ones(4)).itself().mean.shape == (4,)


def test_axes_of_one_name_must_agree_between_arguments(checked):
    with pytest.raises(jaxtyping.TypeCheckError):
        checked.project(np.ones((3, 4)), np.ones(5))


def test_a_wrong_result_is_caught(checked):
    with pytest.raises(jaxtyping.TypeCheckError):
        checked.broken(np.ones((3, 4)))


def test_dataclass_fields_are_checked(checked):
    with pytest.raises(jaxtyping.TypeCheckError):
        checked.Direction(np.ones(4), np.ones(5))
