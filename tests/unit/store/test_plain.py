"""Whatever metadata is made of, it becomes standard JSON and nothing is lost."""

import collections
import dataclasses
import enum
import json
import types
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde import store
from sonde.core import records as core_records

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ANYTHING = st.recursive(
    st.none() | st.floats() | st.binary() | st.complex_numbers() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text() | st.tuples(st.floats()), inner),
)


def standard(value):
    return json.loads(json.dumps(store.jsonable(value), allow_nan=False))


@settings(max_examples=60)
@given(JSON)
def test_what_json_can_say_is_unchanged(value):
    assert standard(value) == value


@settings(max_examples=60)
@given(ANYTHING)
def test_anything_becomes_standard_json_and_marking_twice_changes_nothing(value):
    once = standard(value)
    assert store.jsonable(once) == once


class Nasty:
    def __repr__(self):
        raise RuntimeError("no repr")

    def __getattr__(self, name):
        raise RuntimeError("no attributes")


class Silent:
    def __str__(self):
        return "silent"


class NastyDict(dict):
    def items(self):
        raise RuntimeError("no items")


class Colour(enum.StrEnum):
    RED = "red"


Point = collections.namedtuple("Point", "x y")


ODD = [
    (float("nan"), "nan"), (float("-inf"), "-inf"), (b"\x00\xff", r"b'\x00\xff'"), ({1, 2}, "{1, 2}"),
    (Point(1, 2), "Point(x=1, y=2)"), (Colour.RED, "<Colour.RED: 'red'>"), (1 << 50_000, "0x1000"),
    (Nasty(), "its repr raised RuntimeError"), (NastyDict(a=1), "{'a': 1}"), (3 + 4j, "(3+4j)"), (object, "object"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "seen"), ODD, ids=[seen for _, seen in ODD])
def test_what_json_lacks_is_kept_as_its_repr(value, seen):
    mark = standard({"field": value})["field"]
    assert seen in mark["__repr__"]
    assert mark["__type__"]


def test_numpy_values_keep_all_their_numbers_where_the_repr_is_shortened():
    mark = standard(np.arange(5000))
    assert "..." in mark["__repr__"]
    assert mark["__value__"] == list(range(5000))
    assert mark["__type__"] == "numpy.ndarray"
    assert standard(np.float32(0.5))["__value__"] == 0.5
    assert standard(np.array([1.0, np.nan]))["__value__"][1]["__repr__"] == "nan"


def test_tensors_keep_all_their_numbers():
    torch = pytest.importorskip("torch")
    assert standard(torch.ones(2, 2, requires_grad=True))["__value__"] == [[1, 1], [1, 1]]
    assert standard(torch.empty(2, device="meta"))["__type__"] == "torch.Tensor"


def test_one_key_that_is_no_string_hides_no_other():
    assert standard({"action": "ls", 0: "x"}) == {"action": "ls", "0": "x"}
    kinds = {None: 1, True: 2, 2.5: 3, (2, 3): 4, np.int64(7): 5, Colour.RED: 6, b"x": 7, Nasty: 8}
    assert list(standard(kinds)) == ["None", "True", "2.5", "(2, 3)", "7", "red", "b'x'", str(Nasty)]


def test_keys_that_become_the_same_string_stay_apart():
    assert standard({0: "a", "0": "b"}) == {"0": "b", "0 (int)": "a"}
    assert standard({"0": "b", 0: "a"}) == {"0": "b", "0 (int)": "a"}
    assert standard({0: "a", "0 (int)": "c", "0": "b"}) == {"0 (int) 2": "a", "0 (int)": "c", "0": "b"}
    first, second = Silent(), Silent()
    assert standard({first: 1, second: 2}) == {"silent": 1, "silent (Silent)": 2}
    assert standard({first: 1, second: 2, Silent(): 3})["silent (Silent) 2"] == 3


def test_a_key_without_a_text_of_its_own_is_named_by_its_type():
    (name,) = standard({Nasty(): 1})
    assert "Nasty" in name


def test_records_are_kept_as_their_fields():
    response = core_records.LLMResponse(
        data=(core_records.TextData("hello"),), usage=core_records.Usage(3, 2), token_ids=(5, 6), logprobs=(-0.5, -1.5)
    )
    kept = standard(response)
    assert kept["data"] == [{"content": "hello"}]
    assert kept["usage"] == {"prompt_tokens": 3, "generated_tokens": 2, "encoded_tokens": None}
    assert set(kept) == {field.name for field in dataclasses.fields(response)}
    asked = core_records.LLMRequest(messages=(types.MappingProxyType({"role": "user", "content": "hi"}),), seed=4)
    now = core_records.TimeStep(core_records.StepType.MID, 1.0, None, asked)
    told = standard(now)
    assert (told["reward"], told["observation"]["seed"]) == (1.0, 4)
    assert told["observation"]["messages"] == [{"role": "user", "content": "hi"}]
    assert told["step_type"]["__value__"] == "mid"


@dataclasses.dataclass
class Node:
    """One that refers to itself."""

    name: str
    other: Any = None


def test_a_record_within_itself_or_half_made_is_named_instead_of_followed():
    node = Node("a", Node("b"))
    node.other.other = node
    assert standard(node)["other"]["other"]["__repr__"] == "<the same Node 2 levels up>"
    half = object.__new__(core_records.Usage)  # no field is set
    assert standard({"half": half, "whole": 1})["half"]["__type__"] == "sonde.core.records.Usage"


def test_cycles_are_named_instead_of_followed():
    value = {"name": "top", "inner": []}
    value["inner"].append(value)
    assert standard(value)["inner"][0]["__repr__"] == "<the same dict 2 levels up>"


def test_shared_values_are_not_cycles():
    shared = [1]
    assert standard([shared, shared]) == [[1], [1]]


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"k": inner}, lambda inner: (inner,)])
def test_endless_nesting_is_kept_as_text(wrap):
    value = "the core"
    for _ in range(20_000):
        value = wrap(value)
    text = json.dumps(standard(value))
    assert "the core" in text
    while value != "the core":  # taken apart by hand: Python's own clean-up would recurse
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]


def test_a_deep_cycle_ends():
    bottom = []
    bottom.append(bottom)
    value = bottom
    for _ in range(70):
        value = [value]
    assert "..." in json.dumps(standard(value))


def test_mocks_and_lone_surrogates_survive():
    assert "MagicMock" in standard(mock.MagicMock())["__repr__"]
    assert standard("\ud800") == "\ud800"
