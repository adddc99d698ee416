"""Which models with a known circuit are there to be used: compiled, trained here, or shipped?

    subject = shipped.compiled(3)
    subject = shipped.trained("3", weight_id=510, seed=0)          # what `sonde bench train iit -i 3` made
    subject = shipped.embedded("3", seed=0)                        # what comes with Sonde
    subject.model, subject.truth, subject.task, subject.log

A Subject is a model, its true circuit and its task. Trained ones have their log: recipe, places of the nodes, accuracy, IIA and
strict accuracy. `collect` copies the best seeds of a suite into the package. Costs the loading of one tiny model.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch

from sonde.bench import batched, cases, correspondence, high, ioi, sizes, suite, training, words
from sonde.circuits import graph as circuits_graph
from sonde.core import errors
from sonde.models import model as models_model
from sonde.store import disk

RESULTS = Path("results") / "bench"
EMBEDDED = Path(__file__).parent / "weights"
IOI = "ioi"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model whose circuit is known.

    Attributes:
        name: Which case, and where the weights are from.
        model: The model.
        truth: Its true circuit.
        task: What it does.
        log: Of its training; empty for a compiled one.
    """

    name: str
    model: models_model.Model
    truth: circuits_graph.Circuit
    task: high.Task
    log: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def task_of(case: str) -> high.Task:
    """The task of a case, by number, or `ioi`.

    Raises:
        RequestError: There is no such case.
    """
    if case == IOI:
        return ioi.task()
    if not case.isdecimal():
        raise errors.RequestError(f"no case {case!r}: write a number, as in `sonde bench cases`, or {IOI}")
    return high.of_case(cases.get(int(case)))


def sizes_of(case: str) -> sizes.Sizes:
    """The sizes of a case's trained model."""
    return ioi.SIZES if case == IOI else sizes.of(int(case))


def compiled(case: str) -> Subject:
    """The compiled model of a case.

    Raises:
        RequestError: It has none.
    """
    if case == IOI:
        raise errors.RequestError("ioi has no compiled model: its program is no RASP; leave out --tracr")
    found = cases.get(int(case)).compiled()
    return Subject(f"case-{case}-compiled", found.model(f"case {case}, compiled"), found.circuit, task_of(case))


def folder_of(case: str, weight_id: int, results: Path = RESULTS) -> Path:
    """Where training puts a case."""
    return results / (case if case == IOI else f"case-{case}") / str(weight_id)


def trained(case: str, weight_id: int, *, seed: int = 0, results: Path = RESULTS) -> Subject:
    """A model that was trained here.

    Raises:
        RequestError: It was never trained; names the command that does it.
    """
    place = folder_of(case, weight_id, results) / f"seed-{seed}"
    if not (place / training.LOG).is_file():
        strict = (weight_id - 110) / 1000  # as with weights 1 for iit and behaviour
        how = f"ioi -s {strict:g}" if case == IOI else f"iit -i {case} -s {strict:g}"
        raise errors.RequestError(
            f"no trained model of case {case} with weights {weight_id} and seed {seed} in {place}: train it with "
            f"`sonde bench train {how} -iit 1 -b 1 --seeds {seed} --early-stop`"
        )
    return opened(case, place, f"case-{case}-{weight_id}-seed-{seed}")


def embedded(case: str, *, seed: int = 0) -> Subject:
    """A model that comes with Sonde.

    Raises:
        RequestError: There is none of this case and seed.
    """
    place = EMBEDDED / f"case-{case}" / f"seed-{seed}"
    if not (place / training.LOG).is_file():
        there = sorted({one for one, _ in list_embedded()}, key=lambda one: (len(one), one))
        raise errors.RequestError(
            f"no embedded model of case {case}, seed {seed}; there are cases {', '.join(there) or 'none'}. Train one "
            f"with `sonde bench train iit -i {case} -s 0.4 -iit 1 -b 1 --early-stop`"
        )
    return opened(case, place, f"case-{case}-embedded-seed-{seed}")


def list_embedded() -> list[tuple[str, int]]:
    """Cases and seeds of the models that come with Sonde."""
    found = [path.parent for path in EMBEDDED.glob(f"case-*/seed-*/{training.LOG}")]
    return sorted((place.parent.name.removeprefix("case-"), int(place.name.removeprefix("seed-"))) for place in found)


def opened(case: str, place: Path, name: str) -> Subject:
    """The model in a folder that training wrote.

    Raises:
        RequestError: It is one of another case.
    """
    task = task_of(case)
    with disk.explained(place, doing="read"):
        log = json.loads((place / training.LOG).read_text())
        weights = safetensors.torch.load_file(place / training.MODEL)
    if log["task"] != task.name:
        raise errors.RequestError(f"{place} holds a model of {log['task']}, not of {task.name}: name another folder")
    shape = batched.Shape(**log["shape"])
    hf = batched.to_plain(shape, batched.joined(shape, weights)[0])
    truth = correspondence.carried(
        task.program.circuit, log["places"], circuits_graph.Graph(shape.n_layers, shape.n_heads, shape.n_heads)
    )
    vocabulary = ioi.WORDS if case == IOI else cases.get(int(case)).compiled().vocabulary
    return Subject(name, models_model.Model(hf, words.tokenizer(vocabulary), name=name), truth, task, log)


def collect(folder: Path, target: Path = EMBEDDED, *, seeds: Iterable[int] = range(8), least: float = 0.995) -> int:
    """Copies each case's best seeds of a suite that are good enough into a folder to ship; returns how many."""
    count = 0
    for case in cases.ids("all"):
        for one in suite.best(folder, case, tuple(seeds)):
            if suite.score(one) >= least:
                place = target / f"case-{case}" / f"seed-{one.seed}"
                with disk.explained(place):
                    shutil.copytree(one.folder, place, dirs_exist_ok=True)
                count += 1
    return count
