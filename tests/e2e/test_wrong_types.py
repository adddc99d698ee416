"""What does somebody meet who passes things of the wrong type, in a process without the suite's type checks?"""

import subprocess
import sys

SCRIPT = """
import asyncio

import numpy as np

import sonde
from sonde.core import errors

model = sonde.load("tiny-gpt2")
client = sonde.HookedTransformerLLMClient(model, max_new_tokens=2)
untouched = model.generate([1, 2], max_new_tokens=2).tokens


def ask(message):
    asyncio.run(client(sonde.LLMRequest(messages=[message])))


def refused(kind, told, call, *args, **kwargs):
    try:
        got = call(*args, **kwargs)
    except kind as error:
        assert told in str(error), (args, kwargs, error)
    else:
        raise AssertionError((args, kwargs, got))


for tokens in ([1.5, 2], [[True]], [[[1]]], [None], [object()]):
    refused(errors.RequestError, "token ids", model.run_with_cache, tokens)
for prompts in ([1.5, 2], [[1, 2.0]], [[1], 2], [None], [["1"]], 3.0, None):
    refused(errors.RequestError, "token ids", model.generate, prompts)
for spec in ("skip", lambda value, hook: value, {"site": "hook_embed"}, None):
    for run in (model.run_with_cache, model.generate):
        refused(errors.InterventionError, "intervention", run, [1, 2], interventions=[spec])
for message in ("hello", 3, None, ["role", "content"], {"role": "user", "content": 3}, {"role": "user", "content": [1]}):
    refused(errors.RequestError, "message", ask, message)
assert model.generate([np.int64(1), np.int64(2)], max_new_tokens=2).tokens == untouched
assert model.generate(np.array([[1, 2]]), max_new_tokens=2)[0].tokens == untouched
print("all refused")
"""


def test_wrong_types_get_a_clear_error_and_change_nothing():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("all refused\n", 0), done.stderr
