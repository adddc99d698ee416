"""Small episodes to write, read and break."""

import numpy as np
import pytest

from sonde import store


def rows(step: int, count: int = 2) -> store.Array:
    return store.Array.from_numpy((np.arange(count * 3, dtype="f4") + 100 * step).reshape(count, 3))


def write_steps(writer: store.EpisodeWriter, count: int) -> None:
    for _ in range(count):
        step = writer.step_count
        values = {
            "resid": rows(step, step % 3 + 1),
            "tokens": store.Array.from_numpy(np.array([step, step + 1], dtype="i8")),
        }
        writer.append_step({"index": step, "action": f"ask {step}"}, values)


@pytest.fixture
def closed(tmp_path):
    """The folder of a closed episode of 4 steps."""
    with store.EpisodeWriter.create(tmp_path / "closed", metadata={"task": "20q"}) as writer:
        write_steps(writer, 4)
    return tmp_path / "closed"


@pytest.fixture
def crashed(tmp_path):
    """The folder of an episode of 4 steps whose writer never closed it."""
    writer = store.EpisodeWriter.create(tmp_path / "crashed", metadata={"task": "20q"})
    write_steps(writer, 4)
    writer.abort()
    return tmp_path / "crashed"


@pytest.fixture
def steps_into():
    """The function that appends a number of steps to a writer."""
    return write_steps
