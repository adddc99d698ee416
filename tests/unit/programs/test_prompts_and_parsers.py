"""Prompts take the program as it is; parsers read whole answers and do not guess."""

import pytest

from sonde.core import errors
from sonde.programs import interpreter, parsers, prompts

NAMES = (
    "EXCEPTION_HANDLING", "RANGE_TRACKING", "BOOLEAN_LOGIC", "STEP_BY_STEP", "CHAIN_OF_THOUGHT", "MINIMAL",
    "ENTITY_TRACKING", "VARIABLE_BINDING",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_template_of_the_seed_takes_a_program(name):
    filled = prompts.filled(getattr(prompts, name), "x = {y}\n#x: ")
    assert filled.count("x = {y}\n#x: ") == 1
    assert "{code}" not in filled


@pytest.mark.parametrize("name", [name for name in NAMES if getattr(prompts, name).endswith("\n\n{code}")])
def test_the_example_in_a_prompt_is_right(name):
    template = getattr(prompts, name)
    lines = [line for line in template.partition("\n\n{code}")[0].split("\n") if not line.startswith("# ")]
    query, _, shown = lines[-1].partition(": ")
    assert str(interpreter.answer("\n".join([*lines[:-1], f"{query}: "]))) == shown


@pytest.mark.parametrize("template", ["", "no place", "{code} and {code}"])
def test_a_template_without_exactly_one_place_is_refused(template):
    with pytest.raises(errors.RequestError, match="exactly one"):
        prompts.filled(template, "x = 1\n#x: ")


def test_a_prompt_for_a_word_ends_without_the_space_that_belongs_to_the_word():
    program = "p = True\n#p: "
    assert prompts.asking(prompts.BOOLEAN_LOGIC, program, True).endswith("\n#p:")
    assert prompts.asking(prompts.MINIMAL, program, False) == "p = True\n#p:"
    assert prompts.asking(prompts.VARIABLE_BINDING, "p = 1\n#p: ", 1).endswith("\n#p: "), (
        "digits are tokens of their own"
    )
    assert prompts.asking(prompts.STEP_BY_STEP, program, True) == prompts.filled(prompts.STEP_BY_STEP, program)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" 42\n#y: 7", 42),
        ("7\nb = 4", 7),
        (" -12\n", -12),
        ("23", 23),
        ("-17.", -17),
        ("−5", -5),
        ("8  # the value of c\n", 8),
        ("7\n\n# The last line. Answer: 3", 7),
        ("1. x is 3.\n2. So y is 3.\nAnswer: 3", 3),
        ("x = 3, y = 4. Answer: 12", 12),
        ("The answer is 8", 8),
        ("**Answer: `8`**", 8),
        ("Answer: y = 8", 8),
        ("Answer:\n8", 8),
        ("The answer is found line by line.\nThe answer is: 8", 8),
        ("Answer: 3. No, wait. Answer: -4", -4),
        ("Answer: 3\n\nAnother program.\nAnswer: 5", 3),
        ("It is 1597, I think.", None),
        ("b = 7", None),
        ("#n: 7", None),
        ("a\n\n#n: 7", None),
        ("4x", None),
        ("3.5", None),
        ("3.5 or 6", None),
        ("x1 2", None),
        ("nothing", None),
        ("Answer: unknown", None),
        ("Answer: unknown, or 7", None),
        ("Answer: unknown\n\nAnother program.\nAnswer: 5", None),
        ("", None),
        ("9" * 300, None),
    ],
)
def test_integers(text, expected):
    assert parsers.parse_integer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("True", True),
        (" false\n", False),
        (" True\n\n#n: False", True),
        ("1\n\n#n: False", None),
        ("\n#n: False", None),
        ("not True", None),
        ("It is TRUE. Answer: False", False),
        ("Answer: **True**", True),
        ("untrue", None),
        ("Trueish", None),
        ("1", None),
    ],
)
def test_booleans(text, expected):
    assert parsers.parse_boolean(text) is expected


def test_an_answer_must_have_the_type_of_the_truth():
    assert parsers.is_correct(3, 3)
    assert not parsers.is_correct(1, True)
    assert not parsers.is_correct(None, None)
    assert parsers.parser_for(True) is parsers.parse_boolean
    assert parsers.parser_for(1) is parsers.parse_integer
