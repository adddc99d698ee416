"""Runs in an environment with tracr and without torch: what tracr says to Sonde's programs, as JSON on standard output.

For each case: what its interpreter says. For each core case: what the model says that it compiles, or why there is none.
"""

import json
import random
import sys

from tracr.compiler import compiling
from tracr.rasp import causal_eval
from tracr.rasp import rasp as theirs

from sonde.bench import cases, rasp


def translated(program):
    """A program of Sonde's in tracr's words."""
    done = {}
    for variable in rasp.variables(program):
        found = _one(variable, done)
        if variable.kind == rasp.NUMERICAL:
            found = theirs.numerical(found)
        done[variable] = found
    return done[program]


def _one(variable, done):
    match variable:
        case rasp.Tokens():
            return theirs.tokens
        case rasp.Indices():
            return theirs.indices
        case rasp.Map(function=function, of=of):
            return theirs.Map(function, done[of], simplify=False)
        case rasp.SequenceMap(function=function, first=first, second=second):
            return theirs.SequenceMap(function, done[first], done[second])
        case rasp.LinearSequenceMap(first=first, second=second, first_weight=a, second_weight=b):
            return theirs.LinearSequenceMap(done[first], done[second], a, b)
        case rasp.Aggregate(select=select, values=values, default=default):
            return theirs.Aggregate(_select(select, done), done[values], default)
        case rasp.SelectorWidth(select=select):
            return theirs.SelectorWidth(_select(select, done))


def _select(select, done):
    def predicate(key, query):
        return key is not None and query is not None and bool(select.predicate(key, query))

    return theirs.Select(done[select.keys], done[select.queries], predicate)


def compiled(case, program, inputs):
    """What tracr's model says to each input; or why there is none."""
    try:
        model = compiling.compile_rasp_to_model(
            program, set(case.vocabulary), case.max_length - 1, causal=case.causal, compiler_bos="BOS"
        )
    except NotImplementedError as error:
        return str(error)
    return [(tokens, plain(model.apply(["BOS", *tokens]).decoded[1:])) for tokens in inputs]


def plain(values):
    """Values that JSON has."""
    return [value if value is None or isinstance(value, str) else float(value) for value in values]


def main(count):
    """Asks the interpreter about every case, and the compiler about the core ones.

    A model of tracr's takes seconds for the first input of each length, so it is given inputs of one length only.
    """
    found = {}
    for case in map(cases.get, cases.ids()):
        program, draw = translated(case.program), random.Random(case.id)
        inputs = [*(given for given, _ in case.examples), *case.sample(10 * count)]
        evaluate = causal_eval.evaluate if case.causal else theirs.evaluate
        found[case.id] = {"interpreted": [(tokens, plain(evaluate(program, list(tokens)))) for tokens in inputs]}
        if case.core:
            inputs = [tuple(draw.choices(case.vocabulary, k=min(case.lengths[-1], 9))) for _ in range(count)]
            found[case.id]["compiled"] = compiled(case, program, inputs)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
