"""What is on disk: runs, episodes, steps and activations, written so that nothing finished is ever lost.

    run = store.Run.create(kind="demo", model="tiny-gpt2", seed=0)
    with run.new_episode(metadata={"task": "20q"}) as episode:
        episode.append_step({"action": "ask"}, {"blocks.0.hook_resid_post": store.Array.from_numpy(rows)})
    for episode in run.episodes():
        episode.steps, episode.array("blocks.0.hook_resid_post").to_numpy()

No torch, no pickle. The format is described in docs/store.md.
"""

from sonde.store.arrays import Array
from sonde.store.damage import Damage
from sonde.store.documents import FORMAT
from sonde.store.export import export_json, export_parquet
from sonde.store.index import Index, RunRow, runs_within
from sonde.store.names import default_runs_dir
from sonde.store.plain import jsonable
from sonde.store.reader import EpisodeReader
from sonde.store.run import Run
from sonde.store.verify import verify_episode, verify_run
from sonde.store.writer import EpisodeWriter

__all__ = [
    "FORMAT",
    "Array",
    "Damage",
    "EpisodeReader",
    "EpisodeWriter",
    "Index",
    "Run",
    "RunRow",
    "default_runs_dir",
    "export_json",
    "export_parquet",
    "jsonable",
    "runs_within",
    "verify_episode",
    "verify_run",
]
