"""A program's digest changes with what it does, node by node, and with nothing else."""

import dataclasses

import pytest

from sonde.bench import cases, identity, ioi, rasp
from sonde.bench.cases import parts

BEFORE = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key <= query)


def share_of(token, name="share", mark="mark"):
    marked = rasp.Map(lambda one: int(one == token), rasp.TOKENS, kind="numerical", name=mark)
    return rasp.Aggregate(BEFORE, marked, 0, name=name, kind="numerical")


def digest(program, **changes):
    return identity.of_case(dataclasses.replace(cases.get(3), program=program, **changes))


def test_names_and_the_text_of_functions_do_not_matter():
    marked = rasp.Map(lambda letter: 1 - int(letter != "x"), rasp.TOKENS, kind="numerical", name="other")
    assert digest(share_of("x")) == digest(rasp.Aggregate(BEFORE, marked, 0, kind="numerical", name="it"))
    assert digest(share_of("x")) == digest(share_of("x", "one", "two"))


@pytest.mark.parametrize(
    ("program", "changes"),
    [
        (share_of("a"), {}),
        (share_of("x"), {"vocabulary": tuple("abx")}),
        (share_of("x"), {"max_length": 6}),
        (share_of("x"), {"causal": False}),
        (rasp.LinearSequenceMap(share_of("x"), share_of("a"), 1.0, 0.0, name="same"), {}),
        (parts.length(), {}),
    ],
)
def test_what_a_node_does_and_which_inputs_there_are_matters(program, changes):
    assert digest(program, **changes) != digest(share_of("x"))


def test_every_case_has_a_digest_of_its_own():
    digests = [identity.of_case(cases.get(number)) for number in cases.ids("core")]
    digests += [ioi.task(next_token=one).digest for one in (False, True)]
    assert len(set(digests)) == len(digests)
