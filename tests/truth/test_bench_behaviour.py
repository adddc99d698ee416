"""The 129 cases against the behaviour of InterpBench's programs: 60 inputs of the greatest length each.

The file holds facts: the vocabulary of each case, and for each input what the original says at every position (`null` where
it says nothing; there Sonde may say anything). Tokens are indices into the vocabulary, answers indices into the values.
"""

import json
import pathlib

import pytest

from sonde.bench import cases

FILE = pathlib.Path(__file__).parents[1] / "data/bench/behaviour.json"
FACTS = json.loads(FILE.read_text(encoding="utf-8"))
ALL, CORE = cases.ids("all"), cases.ids("core")


def original(number):
    """Inputs, and what the original says to each."""
    facts = FACTS[str(number)]
    words, values = facts["vocabulary"], facts["values"]
    for tokens, answers in facts["rows"]:
        said = [None if answer is None else values[answer] for answer in answers]
        yield tuple(words[token] for token in tokens), said


def disagreements(number, answers):
    """Inputs and positions at which answers differ from the original's."""
    found = []
    for (tokens, expected), said in zip(original(number), answers, strict=True):
        assert len(said) == len(expected)
        for place, (one, other) in enumerate(zip(said, expected, strict=True)):
            if other is not None and not same(one, other):
                found.append((tokens, place, one, other))
    return found


def same(said, expected):
    """Equal words and truth values; numbers but for rounding."""
    if isinstance(expected, str) or isinstance(said, str) or said is None:
        return said == expected
    return float(said) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


def test_the_behaviour_of_every_case_is_known():
    assert tuple(int(number) for number in FACTS) == ALL
    assert all(len(facts["rows"]) == 60 for facts in FACTS.values())
    for number in ALL:
        longest = cases.get(number).lengths[-1]
        assert {len(tokens) for tokens, _ in original(number)} == {longest}, number


@pytest.mark.parametrize("number", ALL)
def test_a_case_has_the_vocabulary_of_the_original(number):
    words = FACTS[str(number)]["vocabulary"]
    ours = cases.get(number).vocabulary
    assert {(type(word), word) for word in ours} == {(type(word), word) for word in words}
    assert len(ours) == len(words)


@pytest.mark.parametrize("number", ALL)
def test_a_program_says_what_the_original_says(number):
    case = cases.get(number)
    assert not disagreements(number, [case.evaluate(tokens) for tokens, _ in original(number)])


@pytest.mark.parametrize(
    "number", [number if number in CORE else pytest.param(number, marks=pytest.mark.slow) for number in ALL]
)
def test_a_compiled_case_says_what_the_original_says(number):
    case = cases.get(number)
    inputs, expected = zip(*original(number), strict=True)
    said = case.compiled().run(inputs)
    if case.kind == "reg":
        for ours, theirs in zip(said, expected, strict=True):
            assert ours == pytest.approx([float(one) for one in theirs], abs=1e-5)
    else:
        assert not disagreements(number, said)


@pytest.mark.parametrize("number", ALL)
def test_answers_have_the_type_of_the_original_s(number):
    """True and 1 are equal to Python, but not to a reader."""
    case = cases.get(number)
    theirs = {type(one) for _, said in original(number) for one in said if one is not None}
    ours = {type(one) for tokens, _ in original(number) for one in case.evaluate(tokens)}
    assert (bool in theirs and case.kind == "cls") == (bool in ours)
    assert (str in theirs) == (str in ours)
