"""Labels come from running the program: right values, and a clear word for what does not run."""

import pytest

from sonde.core import errors
from sonde.programs import interpreter


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 3", 3),
        ("y = 4\nx = y\ny = 9", 4),
        ("x = 2\nfor i in range(1, 10, 3):\n    x += i", 14),
        ("x = 7\nfor i in range(0):\n    x += 1", 7),
        ("x = 1\ntry:\n    x = 5 // 0\nexcept ZeroDivisionError:\n    x = x - 8", -7),
        ("x = 1\ntry:\n    x = 5 % 0\nexcept:\n    x = 2\nelse:\n    x = 3", 2),
        ("x = 1\ntry:\n    x = 6 // 4\nexcept ZeroDivisionError:\n    x = 2\nelse:\n    x += 10", 11),
        ("x = 5\nif x > 3:\n    x = 1\nelse:\n    pass", 1),
        ("a = True\nb = False\nx = not a or b", False),
        ("x = 3 * (2 + 4) - -1", 19),
        ("x = 0 and 1 // 0", 0),
    ],
)
def test_programs_compute_what_python_computes(code, expected):
    found = interpreter.answer(f"{code}\n#x: ")
    scope = {}
    exec(code, scope)
    assert found == expected == scope["x"]
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("x = 3", "last line of a program must be a query"),
        ("x = 3\n#y: ", "'?asks for a variable that the program does not define"),
        ("xs = 3\n#x: ", "did you mean 'xs'"),
        ("x = y\n#x: ", "line 1: 'y' is used before it has a value"),
        ("x = \n#x: ", "does not parse: line 1"),
        ("x = 1 // 0\n#x: ", "does not run: line 1"),
        ("x = 3\nx = open('f')\n#x: ", "line 2: Call is not in the language"),
        ("import os\n#x: ", "line 1: Import is not in the language"),
        ("x = 2 ** 9\n#x: ", "Pow is not in the language"),
        ("x = ().__class__\n#x: ", "Attribute is not in the language"),
        ("x = 'a'\n#x: ", "Constant is not in the language"),
        ("while True:\n    pass\n#x: ", "While is not in the language"),
        ("x = 0\nfor i in range(10 * 10 * 10 * 10 * 10 * 10):\n    x += 1\n#x: ", "does not end within 20000 steps"),
        ("x = 9\nfor i in range(20):\n    x = x * x\n#x: ", "bits"),
        ("for i in range(1, 2, 0):\n    pass\n#x: ", "step of 0"),
        ("try:\n    x = 1\nexcept KeyError:\n    x = 2\n#x: ", "ExceptHandler is not in the language"),
        ("x = " + "-" * 50_000 + "1\n#x: ", "nested too deep|does not parse"),
        ("", "must be a query"),
    ],
)
def test_a_program_that_does_not_run_says_why_and_where(program, words):
    with pytest.raises(errors.RequestError, match=words):
        interpreter.answer(program)


def test_the_number_of_steps_is_the_callers_choice():
    program = "x = 0\nfor i in range(50):\n    x += 1\n#x: "
    assert interpreter.answer(program, max_steps=200) == 50
    with pytest.raises(errors.RequestError, match="within 20 steps"):
        interpreter.answer(program, max_steps=20)
