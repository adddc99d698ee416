"""Fuzzed Direction files: each is refused with a SondeError, or is a direction that steers."""

import json
import random

import numpy as np
import pytest

from sonde.analysis import directions
from sonde.core import errors

SITE = "blocks.1.hook_resid_post"
VALUES = (
    *(
        None,
        True,
        0,
        -1,
        3,
        2**70,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        "blocks.1.hook_q",
        "x" * 100_000,
        "9" * 5_000,
    ),
    *(f"blocks.{'9' * 5_000}.hook_q", "blocks.٣.hook_q", [], [[]], [1, 2], [-1], ["a"], {}, {"a": 1}),
    *(
        "object",
        "O",
        "V99999999999",
        "<f4",
        "float64",
        "int8",
        "complex64",
        "datetime64[ns]",
        [4, -2],
        [2**40],
        "AAAA",
        "!!!!",
    ),
)


def mutated(data, rng):
    for _ in range(rng.choice((1, 1, 2, 4))):
        holder = data if rng.random() < 0.6 or not isinstance(data.get("vector"), dict) else data["vector"]
        if not holder:
            continue
        key = rng.choice(list(holder))
        if rng.random() < 0.2:
            del holder[key]
        elif rng.random() < 0.2 and isinstance(holder[key], str):
            at = rng.randrange(len(holder[key]) + 1)
            holder[key] = holder[key][:at] + rng.choice("=A/é\0 ") + holder[key][at + rng.randrange(3) :]
        else:
            holder[key] = rng.choice(VALUES)
    return data


def read(text):
    """The direction in a text, if there is one; only a SondeError may say that there is none."""
    try:
        return directions.Direction.from_json(json.loads(text))
    except errors.SondeError:
        return None


@pytest.mark.parametrize(
    "cases", [range(400), pytest.param(range(400, 8_000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_fuzzed_direction_is_refused_or_steers(cases):
    original = directions.Direction(SITE, np.linspace(-1, 1, 8), 3, 4, (1, 2)).to_json()
    taken = 0
    for case in cases:
        found = read(json.dumps(mutated(json.loads(json.dumps(original)), random.Random(case))))
        if found is not None:
            taken += 1
            assert found.vector.ndim == 1
            assert np.isfinite(found.vector).all()
            found.steer(2.0)
            json.dumps(found.to_json(), allow_nan=False)
    assert 0 < taken < len(cases) / 2


@pytest.mark.parametrize("data", [None, [], "x", 7, {}, {"site": SITE}])
def test_what_is_no_direction_at_all_is_refused(data):
    with pytest.raises(errors.AnalysisError, match="direction"):
        directions.Direction.from_json(data)


@pytest.mark.parametrize("dtype", ["object", "V8", "S99999999999", "int64", "complex64", ["float32"], None])
def test_only_numbers_that_a_direction_has_are_read(dtype):
    data = directions.Direction(SITE, np.ones(8)).to_json()
    data["vector"]["dtype"] = dtype
    with pytest.raises(errors.InterventionError, match="no array as Sonde writes it"):
        directions.Direction.from_json(data)
