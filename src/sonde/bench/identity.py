"""A digest of what a program does, node by node: a model that was trained for another program is known by it.

    identity.of_case(cases.get(3))                  # "1f0c66a0f4d2"

It covers the inputs that there are, how the operations of the program read each other and at which nodes they are computed, and the values of
all of them on 24 inputs. Names, comments and how a function is written do not matter. A trained model's log has the digest of the program
that it was trained for; if a case has another one today, its true circuit may be another as well.

Costs milliseconds: nothing is compiled.
"""

import hashlib
import json
from typing import Any

from sonde.bench import placing, rasp

ROWS = 24
DIGITS = 6


def of_case(case: Any) -> str:
    """The digest of one of `cases`."""
    places, order = placing.place(case.program).of, rasp.variables(case.program)
    index = {variable: at for at, variable in enumerate(order)}
    operations = [
        [
            type(one).__name__,
            one.kind,
            [index[read] for read in rasp.inputs(one)],
            places[one].nodes if one in places else (),
        ]
        for one in order
    ]
    inputs = [list(case.vocabulary), case.min_length, case.max_length, case.causal, case.kind]
    rows = [rasp.evaluate_all(case.program, row, causal=case.causal) for row in case.sample(ROWS)]
    values = [[_plain(row[one]) for one in order] for row in rows]
    return of([inputs, operations, values])


def of(what: Any) -> str:
    """The digest of anything that JSON can say."""
    return hashlib.sha256(json.dumps(what, default=repr).encode()).hexdigest()[:12]


def _plain(values: list[rasp.Value]) -> list[Any]:
    """Values without the noise of rounding."""
    return [round(value, DIGITS) if isinstance(value, float) else value for value in values]
