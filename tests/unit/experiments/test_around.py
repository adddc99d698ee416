"""The block that an experiment's stages are computed in."""

import contextlib

import pytest

from sonde import experiments, store
from sonde.core import settings
from sonde.store import schemas

DATA = schemas.register("seen by a stage", schemas.Data)
INSIDE = []


class Watching(settings.Settings):
    """Nothing to set."""


class Watched(experiments.Experiment[Watching]):
    """Notes whether its stage is inside of its block."""

    kind, settings_type, results_kind = "watched", Watching, DATA
    stages = (experiments.Stage("look", lambda context: context.experiment.look(), DATA),)
    fails = False

    def look(self):
        if self.fails:
            raise RuntimeError("no")
        return {"inside": bool(INSIDE)}

    @contextlib.contextmanager
    def around(self):
        INSIDE.append(True)
        try:
            yield
        finally:
            INSIDE.pop()


def test_stages_are_computed_inside_and_the_block_is_left_whatever_happens(tmp_path):
    found = experiments.run(Watched(), Watching(), run="it", runs_dir=tmp_path)
    assert found.results["look"] == {"inside": True}
    assert INSIDE == []
    broken = Watched()
    broken.fails = True
    with pytest.raises(RuntimeError):
        experiments.run(broken, Watching(), run="other", runs_dir=tmp_path)
    assert INSIDE == []
    assert store.Run.open(tmp_path / "other").manifest["error"] == "RuntimeError: no"
