"""A lab on a model in which exactly two layers matter, and an empty log."""

import pytest

from sonde.lab import budget, desk, experiments, log, loop, tasks
from sonde.testing import layered

NEEDED = (2, 5)


def letters_task(seed=0):
    examples = tuple(tasks.Example(prompt, (answer,)) for prompt, answer in layered.answers(seed).items())
    return tasks.Task("letters", "From a letter to its sign.", (), "", examples)


@pytest.fixture(scope="session")
def letters():
    """Experiments on the letters task; layers 2 and 5 are needed."""
    with layered.model(NEEDED) as model:
        yield experiments.Experiments(model, letters_task())


@pytest.fixture
def book(tmp_path):
    with log.Log.of(tmp_path) as opened:
        yield opened


@pytest.fixture
def begun(book, letters):
    """Begins an inquiry and sits down at its desk."""

    def begin(experiments=30, **settings):
        limits = settings.pop("limits", budget.Limits(experiments))
        return desk.Desk(letters, loop.begin(book, letters, most=8, limits=limits, **settings))

    return begin
