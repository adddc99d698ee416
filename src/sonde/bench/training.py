"""How does a model learn its program's circuit? Several seeds at once, resumable, each stopped when it is good.

    found = training.train(task, training.Recipe(seeds=(0, 1, 2)), folder)     # again: goes on where it was stopped
    found[0].status, found[0].measured["iia"]

1. All seeds are one matrix of weights. Nodes outside the circuit start with a tenth of their output: a model that begins by using
   them takes long to stop. A step takes one batch for all of them, adds the three losses with their weights,
   and takes one step of Adam, each seed's gradient clipped to a norm of 0.1 (`optimising`). `separate` takes three steps
   instead, one per loss. There are `pool` batches, taken in turn, because judging one costs as much as learning from it;
   which nodes strict swaps touch is drawn anew at every step.
2. The rate rises over 100 steps and falls to nothing along a cosine. The running mean of the weights is what counts.
3. Every `check` steps the seeds are measured. One that reaches the threshold on accuracy, IIA and strict accuracy, there and on
   ten times the rows, is done and leaves the matrix. One that has fallen by 0.3 from its best goes back to its best weights,
   and on at half its rate. One whose loss is no number any more stops, with its best weights.
4. Weights and moments are written every minute and at the end; a seed's best weights count.

In the folder: recipe.json; state.safetensors while it runs; seed-0/model.safetensors and seed-0/log.json per seed; training.lock,
which one process at a time holds. Batches come from the step alone, so a run that was stopped sees what it would have seen.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from jaxtyping import Float
from torch import Tensor

from sonde import experiments
from sonde.bench import batched, correspondence, high, measuring, optimising, recipes, siit, sizes, starting
from sonde.circuits import graph as circuits_graph
from sonde.core import errors, progress
from sonde.store import disk

RECIPE, STATE, LOCK = "recipe.json", "state.safetensors", "training.lock"
MODEL, LOG = starting.MODEL, starting.LOG
SAVE_SECONDS = 60.0
COLLAPSE = 0.3
Recipe = recipes.Recipe


@dataclasses.dataclass(frozen=True, slots=True)
class Trained:
    """A seed whose training has ended.

    Attributes:
        seed: Which.
        status: `reached` the threshold, `ended` without, or `diverged`.
        step: Of the weights.
        measured: Accuracy, IIA, strict accuracy and their parts, on ten times the rows.
        folder: Where weights and log are.
    """

    seed: int
    status: str
    step: int
    measured: Mapping[str, Any]
    folder: Path

    def to_json(self) -> dict[str, Any]:
        """All but the folder."""
        return {"seed": self.seed, "status": self.status, "step": self.step, "measured": dict(self.measured)}

    def copy(self, folder: Path) -> None:
        """Puts weights and log into another folder."""
        for name in (MODEL, LOG):  # the log last: with it, all is there
            with disk.explained(folder / name):
                disk.make_dirs(folder)
                disk.write_atomic(folder / name, (self.folder / name).read_bytes())


def shape_of(task: high.Task, size: sizes.Sizes) -> batched.Shape:
    """The shape of a model that is trained on a task."""
    return batched.Shape(
        n_layers=size.n_layers,
        n_heads=size.n_heads,
        d_model=size.d_model,
        d_head=size.d_head,
        d_mlp=4 * size.d_model,
        d_vocab=task.d_vocab,
        d_out=task.d_out,
        n_positions=task.n_positions,
        causal=task.causal,
    )


def pupils_of(task: high.Task, shape: batched.Shape, recipe: Recipe) -> siit.Pupils:
    """The models of a recipe's seeds, with their places."""
    low = circuits_graph.Graph(shape.n_layers, shape.n_heads, shape.n_heads)
    places = [places_of(task, low, seed, same_place=recipe.same_place) for seed in recipe.seeds]
    return siit.Pupils(task, shape, places)


def places_of(task: high.Task, low: circuits_graph.Graph, seed: int, *, same_place: bool = False) -> dict[str, str]:
    """Where the nodes of a task stand in the trained model of a seed."""
    name = task.seated or task.name
    return correspondence.draw(task.program.circuit, low, name=name, seed=seed, same_place=same_place)


def train(
    task: high.Task,
    shape: batched.Shape,
    recipe: Recipe,
    folder: Path,
    *,
    start: Sequence[Trained] = (),
    tell: progress.Tell = progress.silent,
) -> list[Trained]:
    """Trains every seed to its end, or goes on with what is in the folder.

    Args:
        task: What is learned.
        shape: Of the models.
        recipe: What fixes the run.
        folder: Where it is.
        start: Earlier trainings whose weights their seeds begin with; others begin anew.
        tell: Called after every step with what is done, how many steps, and of how many.

    Raises:
        RequestError: The folder holds a run of another recipe or task.
        StoreError: It cannot be written, or another training is in it.
    """
    with alone(folder), experiments.pinned(1):
        run, saved = _Run(task, shape, recipe, folder, start), time.monotonic()
        while run.learning and run.step < recipe.steps:
            run.learn()
            if run.step % recipe.check == 0 or run.step == recipe.steps:
                run.check()
            tell(task.name, run.step, recipe.steps)
            if run.learning and time.monotonic() - saved > SAVE_SECONDS:
                run.save()
                saved = time.monotonic()
        run.end()
    return finished(folder, recipe.seeds)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps other trainings out of a folder while the block runs, also those of other processes.

    Raises:
        StoreError: Another one is in it, or it cannot be written.
    """
    path = folder / LOCK
    with disk.explained(path):
        folder.mkdir(parents=True, exist_ok=True)
        if is_busy(folder):
            raise errors.StoreError(
                f"{folder} is being trained by another process: wait until it has ended, or choose another folder (--out)"
            )
        lock = disk.AppendFile(path)
    try:
        yield
    finally:
        lock.close()


def is_busy(folder: Path) -> bool:
    """Whether a process is training in a folder."""
    return disk.is_locked(folder / LOCK)


def under_way(folder: Path) -> tuple[int, ...]:
    """The seeds in a folder whose training was stopped half-way."""
    if not (folder / STATE).exists():
        return ()
    with safetensors.safe_open(folder / STATE, framework="pt") as stored:
        return tuple(one["seed"] for one in json.loads(stored.metadata()["where"])["learning"])


def finished(folder: Path, seeds: tuple[int, ...]) -> list[Trained]:
    """The seeds in a folder that have ended."""
    found = []
    for seed in seeds:
        place = folder / f"seed-{seed}"
        if (place / LOG).is_file():
            log = starting.read_log(place)
            found.append(Trained(seed, log["status"], log["step"], log["measured"], place))
    return found


@dataclasses.dataclass(slots=True)
class _Pupil:
    """A seed that still learns: its best weights so far, and what was measured."""

    seed: int
    best: Float[Tensor, "parameter"]
    step: int = 0
    score: float = -1.0
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    slow: float = 1.0


class _Run:
    """Training under way."""

    def __init__(
        self, task: high.Task, shape: batched.Shape, recipe: Recipe, folder: Path, start: Sequence[Trained] = ()
    ) -> None:
        self.task, self.shape, self.recipe, self.folder = task, shape, recipe, folder
        self.step, self.seconds, self.losses = 0, 0.0, torch.zeros(len(recipe.seeds), 3)
        self._claim()
        done = {one.seed for one in finished(folder, recipe.seeds)}
        seeds = [seed for seed in recipe.seeds if seed not in done]
        self.pupils, self.judged = pupils_of(task, shape, recipe), dict[int, siit.Batch]()
        earlier = {one.seed: one.folder for one in start}
        self.state = optimising.State.fresh(starting.weights(self.pupils, recipe.seeds, earlier))
        self.begun = {one.seed: f"{one.folder.parent.name}/{one.folder.name}" for one in start}
        self.learning = [_Pupil(seed, row) for seed, row in zip(recipe.seeds, self.state.weights, strict=True)]
        self._keep([recipe.seeds.index(seed) for seed in seeds])
        if seeds and (folder / STATE).exists():
            self._restore()

    def learn(self) -> None:
        """One step for every seed."""
        start, recipe, batch = time.monotonic(), self.recipe, self._batch()
        weights = torch.tensor([recipe.iit, recipe.strict, recipe.behaviour])
        slow, self.losses = torch.tensor([pupil.slow for pupil in self.learning]), torch.zeros(len(self.learning), 3)
        asked = [index for index, weight in enumerate(weights.tolist()) if weight > 0]
        for part in [[index] for index in asked] if recipe.separate else [asked]:
            kinds = [siit.KINDS[index] for index in part]
            leaf = self.state.weights.requires_grad_()
            losses = self.pupils.losses(leaf, batch, kinds=kinds, strict=recipe.way, detached=recipe.detached)
            (gradient,) = torch.autograd.grad((losses * weights[part]).sum(), leaf)
            leaf.requires_grad_(False)
            self.state = self.state.stepped(gradient, rate=recipe.rate_at(self.step), slow=slow)
            self.losses[:, part] = losses.detach()
        self.step, self.seconds = self.step + 1, self.seconds + time.monotonic() - start
        sane = torch.isfinite(self.losses).all(dim=1) & torch.isfinite(self.state.weights).all(dim=1)
        if not bool(sane.all()):
            self._leave([index for index, good in enumerate(sane.tolist()) if not good], "diverged")

    def _batch(self) -> siit.Batch:
        """The batch of this step."""
        number = self.step % self.recipe.pool
        if number not in self.judged:
            self.judged[number] = self.pupils.batch(np.random.default_rng([1, number]), self.recipe.batch)
        one, rng = self.judged[number], np.random.default_rng([5, self.step])
        luck = torch.from_numpy(rng.random(tuple(one.luck.shape), dtype=np.float32))
        return dataclasses.replace(one, luck=luck)

    def check(self) -> None:
        """Measures all seeds; those that are good leave."""
        found = self._measure(self.recipe.rows)
        reached = []
        for index, (pupil, one) in enumerate(zip(self.learning, found, strict=True)):
            lost = dict(zip(siit.KINDS, self.losses[index].tolist(), strict=True))
            brief = {"accuracy": one.accuracy, "iia": one.iia, "strict": one.strict}
            pupil.rows.append({"step": self.step, "seconds": round(self.seconds, 1), "loss": lost, **brief})
            if one.lowest > pupil.score:
                pupil.best, pupil.step, pupil.score = self.state.mean[index].clone(), self.step, one.lowest
            elif one.lowest < pupil.score - COLLAPSE:
                pupil.slow *= 0.5
                self.state = self.state.put_back(index, pupil.best)
            if self.recipe.threshold is not None and one.reached(self.recipe.threshold):
                reached.append(index)
        if reached and self.recipe.threshold is not None:
            sure = self._measure(10 * self.recipe.rows, reached)
            good = [index for index, one in zip(reached, sure, strict=True) if one.reached(self.recipe.threshold)]
            for index in good:
                self.learning[index].best, self.learning[index].step = self.state.mean[index].clone(), self.step
            self._leave(good, "reached")

    def end(self) -> None:
        """Writes the seeds that are left, and drops the state."""
        self._leave(list(range(len(self.learning))), "ended")
        (self.folder / STATE).unlink(missing_ok=True)

    def save(self) -> None:
        """Writes all that is needed to go on."""
        tensors = {name: getattr(self.state, name) for name in ("weights", "first", "second", "mean")}
        tensors["best"] = torch.stack([pupil.best for pupil in self.learning])
        names = ("seed", "step", "score", "rows", "slow")
        kept = [{name: getattr(one, name) for name in names} for one in self.learning]
        where = {"step": self.step, "seconds": self.seconds, "updates": self.state.updates, "learning": kept}
        self._write(STATE, safetensors.torch.save(tensors, metadata={"where": json.dumps(where)}))

    def _restore(self) -> None:
        with safetensors.safe_open(self.folder / STATE, framework="pt") as stored:
            where = json.loads(stored.metadata()["where"])
            values = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # it is no mapping
        still = {pupil.seed for pupil in self.learning}
        if not still <= (there := {one["seed"] for one in where["learning"]}):
            raise errors.RequestError(
                f"{self.folder} holds an unfinished run of seeds {sorted(there)}; asked for {sorted(still)}: go on with "
                "those first, or choose another folder"
            )
        self.step, self.seconds = where["step"], where["seconds"]
        best = values.pop("best")
        self.state = optimising.State(**values, updates=where["updates"])
        self.learning = [
            _Pupil(one["seed"], row, one["step"], one["score"], one["rows"], one.get("slow", 1.0))
            for one, row in zip(where["learning"], best, strict=True)
        ]
        kept = [index for index, one in enumerate(self.learning) if one.seed in still]
        self.state, self.learning = self.state.select(kept), [self.learning[index] for index in kept]
        asked = self.recipe.model_copy(update={"seeds": tuple(one.seed for one in self.learning)})
        self.pupils, self.losses = pupils_of(self.task, self.shape, asked), torch.zeros(len(self.learning), 3)

    def _keep(self, rows: list[int]) -> None:
        self.state, self.pupils, self.losses = self.state.select(rows), self.pupils.select(rows), self.losses[rows]
        self.learning = [self.learning[index] for index in rows]

    def _leave(self, rows: list[int], status: str) -> None:
        """Writes the best weights of some seeds, which learn no more."""
        if not rows:
            return
        pupils, leaving = self.pupils.select(rows), [self.learning[index] for index in rows]
        best = torch.stack([one.best for one in leaving])
        found = measuring.measure(pupils, best, rows=10 * self.recipe.rows, key=1)
        for pupil, places, one in zip(leaving, pupils.places, found, strict=True):
            at = f"seed-{pupil.seed}"
            log = {
                "task": self.task.name, "program": self.task.digest, "seed": pupil.seed, "status": status, "step": pupil.step,
                "stopped": self.step, "seconds": round(self.seconds, 1), "weight_id": self.recipe.weight_id,
                "recipe": self.recipe.told(), "shape": dataclasses.asdict(self.shape),
                "begun": self.begun.get(pupil.seed), "places": dict(places), "measured": one.to_json(), "rows": pupil.rows,
            }  # fmt: skip
            self._write(f"{at}/{MODEL}", safetensors.torch.save(batched.named(self.shape, pupil.best)))
            self._write(f"{at}/{LOG}", json.dumps(log, indent=1).encode())
        self._keep([index for index in range(len(self.learning)) if index not in rows])

    def _measure(self, rows: int, which: list[int] | None = None) -> list[measuring.Measured]:
        if which is None:
            return measuring.measure(self.pupils, self.state.mean, rows=rows)
        return measuring.measure(self.pupils.select(which), self.state.mean[which], rows=rows, key=1)

    def _claim(self) -> None:
        """Writes the recipe, or checks it against the one that is there; seeds may be others."""
        mine = {"task": self.task.name, "program": self.task.digest, **self.recipe.told()}
        del mine["seeds"]
        path = self.folder / RECIPE
        if not path.exists():
            self._write(RECIPE, json.dumps(mine, indent=1).encode())
        elif (there := json.loads(path.read_text())) != mine:
            different = [f"{name} {there.get(name)} / {mine[name]}" for name in mine if there.get(name) != mine[name]]
            raise errors.RequestError(
                f"{self.folder} holds a run of another recipe or program (there / asked: {', '.join(different)}): "
                "choose another folder"
            )

    def _write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        with disk.explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            disk.write_atomic(path, data)
