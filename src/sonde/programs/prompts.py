"""How is a model asked what a program computes? Templates; `{code}` is where the program goes.

A program ends with its query line, `#x: `, so the shortest prompts leave it last and the model continues it with the
value. The longer ones ask in words and want `Answer: …` at the end, which the parsers look for.

Tokenizers join a word to the space before it: a model that has learned ` True` cannot write it after a prompt that ends
with that space. So the prompt for an answer that is a word ends without. Costs nothing.
"""

from sonde.core import errors

PLACE = "{code}"

MINIMAL = "{code}"

VARIABLE_BINDING = """# Each line gives a variable a number, or the value of another variable. The last line gives the value asked for.
a = 3
b = 8
c = b
#c: 8

{code}"""

ENTITY_TRACKING = """# Follow the variables line by line. After "#name:" comes the value of that variable.
m = 6
n = 2
k = m
n = k
#n: 6

{code}"""

RANGE_TRACKING = """# The last line gives the value of the variable after the program has run.
t = 5
for i in range(3):
    t += 2
#t: 11

{code}"""

BOOLEAN_LOGIC = """# The last line gives the value of the variable, True or False, after the program has run.
p = True
q = not p
r = p or q
#q: False

{code}"""

EXCEPTION_HANDLING = """# A division by zero raises ZeroDivisionError. The last line gives the value of the variable after the program has run.
z = 7
try:
    z = z + 4 // 0
except ZeroDivisionError:
    z = z - 1
#z: 6

{code}"""

STEP_BY_STEP = """Run this program line by line. The last line, "#name:", asks for the value of a variable.

{code}

Write the value of each variable after each line. Then write the value asked for as "Answer: value".
"""

CHAIN_OF_THOUGHT = """What is the value asked for in the last line of this program?

{code}

Let's think step by step, and end with "Answer: value".
"""


def filled(template: str, program: str) -> str:
    """Returns the template with the program in the place of `{code}`; other braces stay as they are.

    Raises:
        RequestError: There is no `{code}` in the template, or more than one.
    """
    check(template)
    return template.replace(PLACE, program)


def asking(template: str, program: str, answer: int | bool) -> str:
    """Returns the prompt that asks for an answer of this type.

    Raises:
        RequestError: There is no `{code}` in the template, or more than one.
    """
    prompt = filled(template, program)
    return prompt.rstrip(" ") if isinstance(answer, bool) else prompt


def check(template: str) -> None:
    """Refuses a template without exactly one place for the program."""
    if (found := template.count(PLACE)) != 1:
        raise errors.RequestError(f"a prompt template needs exactly one {PLACE}, got {found} in {template[:80]!r}")
