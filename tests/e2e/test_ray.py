"""Waves on a Ray cluster of two nodes give what they give in process."""

import pytest

from sonde import testing
from sonde.agents import playing
from sonde.core import errors

ray = pytest.importorskip("ray", reason='needs the extra: pip install "sonde[ray]"')

OPTIONS = {"episodes": 6, "wave": 3, "seed": 2, "capture": "blocks.*.hook_resid_post", "max_steps": 3}


@pytest.fixture(scope="module")
def cluster():
    from ray import cluster_utils

    found = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    found.add_node(num_cpus=1)
    ray.init(address=found.address, log_to_driver=False)
    yield found
    ray.shutdown()
    found.shutdown()


def contents(played):
    return {
        str(path.relative_to(played.run.episodes_dir)): path.read_bytes()
        for path in sorted(played.run.episodes_dir.rglob("*"))
        if path.is_file() and path.suffix != ".json"
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_two_node_cluster_gives_the_same_bytes_as_one_process(cluster, tmp_path):
    told = []
    with playing.pinned(1):
        here = playing.play("20q:0:6", "tiny-llama", runs_dir=tmp_path / "here", run="it", **OPTIONS)
        there = playing.play(
            "20q:0:6",
            "tiny-llama",
            runs_dir=tmp_path / "there",
            run="it",
            engine="ray",
            on_progress=told.append,
            **OPTIONS,
        )
    assert len(ray.nodes()) == 2
    assert contents(there) == contents(here)
    assert len(contents(here)) >= 12
    assert there.rewards == here.rewards
    assert there.progress.steps == here.progress.steps


@pytest.mark.slow
def test_what_cannot_travel_is_refused(cluster, tmp_path):
    with pytest.raises(errors.OpaqueError, match="given as a function"):
        playing.play(testing.ScriptedEnvironment, "tiny-llama", runs_dir=tmp_path, engine="ray")
