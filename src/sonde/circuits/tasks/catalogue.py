"""Which tasks are there? A generator for each name, and for the name of a user's file."""

import functools
from collections.abc import Callable
from typing import Any

from sonde.circuits import pairs
from sonde.circuits.tasks import agreement, building, docstring, greater_than, induction, ioi, jsonl
from sonde.core import errors

Generator = Callable[..., tuple[pairs.Pairs, building.Report]]

TASKS: dict[str, Generator] = {
    "ioi": ioi.make,
    "greater-than": greater_than.make,
    "docstring": docstring.make,
    "agreement": agreement.make,
    "induction": induction.make,
}


def get(name: str) -> Generator:
    """The generator of a task: call it with the model, `n` and `seed`; a name that ends in `.jsonl` is a file of pairs.

    Raises:
        RequestError: There is no such task.
    """
    if name.endswith(".jsonl"):
        return _of_file(name)
    if name not in TASKS:
        raise errors.RequestError(
            f"no task {name!r}{errors.suggest(name, TASKS)} (tasks: {', '.join(TASKS)}; or a file of pairs, *.jsonl)"
        )
    return TASKS[name]


def _of_file(path: str) -> Generator:
    def make(model: Any, *, n: int | None = None, seed: int = 0) -> tuple[pairs.Pairs, building.Report]:
        return jsonl.make(model, path, n=n, seed=seed)

    return functools.wraps(jsonl.make)(make)
