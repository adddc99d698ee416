"""The kernel: what an experiment is, and the one way to run, resume, time and report it.

    result = experiments.run(layers.Layers(model), layers.LayersSettings(model="tiny-llama"), run="it")
    result.results["verdict"], result.folder, result.html

Every experiment has a kind, settings, stages, results and a report. `run` makes or resumes its Run: the folder that
`sonde runs` lists, verifies and exports.
"""

from sonde.experiments.experiment import Context, Experiment, Items, Stage
from sonde.experiments.kernel import Result, pending, pinned, recorded, run, run_async

__all__ = ["Context", "Experiment", "Items", "Result", "Stage", "pending", "pinned", "recorded", "run", "run_async"]
