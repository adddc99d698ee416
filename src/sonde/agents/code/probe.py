"""Which values does a repository compute? Runs in the sandbox, and only there; knows no answer.

    python -I -S -B probe.py MARKER REPOSITORY TEST_FILE...

Runs test files whose expected values were taken out (see `judging`) and reports, line by line, the value that stands
at each place. Standard library only, isolated: the repository comes last on the search path, so that nothing in it can
stand in for a module of Python, and no start-up file of an agent is read.
"""

import importlib.util
import json
import os
import sys
import traceback
import unittest
from collections.abc import Callable
from typing import Any

Say = Callable[[Any, Any], None]


def plain(value: Any) -> Any:
    """A value as JSON data from which it can be told apart from all others; objects of own classes are just that."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [plain(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((plain(item) for item in value), key=json.dumps)}
    if isinstance(value, dict):
        return {"dict": sorted(([plain(key), plain(item)] for key, item in value.items()), key=json.dumps)}
    return {"other": type(value).__name__}


class Raising:
    """Reports what is raised in its block."""

    def __init__(self, number: int, say: Say) -> None:
        """Stands at the place of that number."""
        self.number, self.say = number, say

    def __enter__(self) -> None:
        """Starts."""

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        """Reports, and swallows what it reported."""
        self.say(self.number, {"raised": [one.__name__ for one in kind.__mro__] if kind else []})
        return kind is not None and issubclass(kind, Exception)


def run(path: str, say: Say) -> None:
    """Runs one test file."""
    spec = importlib.util.spec_from_file_location("hidden", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        say("unloaded", traceback.format_exc(limit=-2)[-2000:])
        return
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    for test, trace in [*result.errors, *result.failures]:
        say("error", f"{test.id().split('.')[-1]}: {trace.strip().splitlines()[-1]}"[:300])


def main(marker: str, repository: str, *paths: str) -> None:
    """Runs test files against a repository; everything they print is dropped."""
    report = os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)

    def say(place: Any, value: Any) -> None:
        try:
            line = json.dumps([place, value])
        except (TypeError, ValueError, RecursionError):
            line = json.dumps([place, {"other": "value"}])
        os.write(report, f"{marker} {line}\n".encode())

    def record(self: unittest.TestCase, number: int, value: Any) -> None:
        say(number, plain(value))

    def raising(self: unittest.TestCase, number: int) -> Raising:
        return Raising(number, say)

    cases: Any = unittest.TestCase
    cases.sonde_record, cases.sonde_raising = record, raising
    sys.path.append(repository)
    for path in paths:
        run(path, say)


if __name__ == "__main__":
    main(*sys.argv[1:])
