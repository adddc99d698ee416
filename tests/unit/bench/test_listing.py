"""Programs as text: operations in order, functions as written, constants filled in."""

import math

from sonde.bench import listing, rasp


def test_each_operation_has_a_line_with_its_inputs_and_its_place():
    flag = rasp.Map(lambda token: int(token == "x"), rasp.TOKENS, kind="numerical", name="flag")
    before = rasp.Select(rasp.INDICES, rasp.INDICES, lambda key, query: key <= query)
    assert listing.lines(rasp.Aggregate(before, flag, 0, kind="numerical", name="share")) == [
        "flag = Map(lambda token: int(token == 'x'), tokens)  # numerical, in m0",
        "share = Aggregate(Select(indices, indices, lambda key, query: key <= query), flag, default=0)"
        "  # numerical, in a1.h0",
    ]


def test_what_a_function_was_made_with_is_filled_in():
    def more(by, change):
        return rasp.Map(lambda number: change(number) + by, rasp.TOKENS, name="more")

    assert listing.lines(more(3, lambda number: number * 2)) == [
        "more = Map(lambda number: number * 2 + 3, tokens)  # in m0"
    ]


def test_functions_with_a_name_are_named():
    assert listing.lines(rasp.Map(math.sqrt, rasp.TOKENS, name="root")) == ["root = Map(sqrt, tokens)  # in m0"]


def test_two_lambdas_of_one_line_are_told_apart():
    one, two = rasp.Map(lambda x: x + 1, rasp.TOKENS, name="one"), rasp.Map(lambda x: x - 1, rasp.TOKENS, name="two")
    assert listing.lines(one) == ["one = Map(lambda x: x + 1, tokens)  # in m0"]
    assert listing.lines(two) == ["two = Map(lambda x: x - 1, tokens)  # in m0"]


def test_two_variables_of_one_name_get_different_names():
    one, two = (rasp.Map(str, rasp.TOKENS, name="text") for _ in range(2))
    lines = listing.lines(rasp.SequenceMap(lambda a, b: a + b, one, two, name="both"))
    assert [line.split(" = ")[0] for line in lines] == ["text", "text_2", "both"]
    assert "text, text_2)" in lines[-1]


def test_a_function_whose_source_is_not_there_is_called_a_function():
    made = eval("lambda x: x")
    assert listing.lines(rasp.Map(made, rasp.TOKENS, name="same")) == ["same = Map(function, tokens)  # in m0"]
