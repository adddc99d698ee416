"""One experiment of an inquiry: what a corrupted model still knows, for one corruption, one task, some examples.

    bench = experiments.Experiments(model, task)
    bench.solved                                        # examples the intact model gets right
    found = bench.measure(bench.parse("skip:3"), examples=[4, 7, 9])
    found.body["kept"]                                  # the share of those that it still gets right

The measure a planner reasons with is `kept`: of the examples that the intact model solves, how many does the corrupted
one still solve, with the exact binomial interval. Beside it stand the accuracy, the loss on the answer and its change.
The intact model runs once over the whole task. Costs one batch of short generations per experiment.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sonde.analysis import stats
from sonde.core import errors
from sonde.lab import controls, corruptions, measuring, tasks
from sonde.models import identity
from sonde.models import model as models_model

#: With fewer examples on each side of the split than this, nothing can be shown at the 5 % level.
LEAST_PER_SPLIT = 6
#: Tokens that are generated, at least; longer answers get two more than they need.
NEW_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """What an experiment gave: the fields of a run, and what each example gave."""

    body: dict[str, Any]
    examples: tuple[dict[str, Any], ...]


class Experiments:
    """Measures corruptions of one model on one task."""

    def __init__(self, model: models_model.Model, task: tasks.Task) -> None:
        """Takes a model and a task; nothing runs yet."""
        self.model, self.task = model, task
        self.n_layers = int(model.cfg.n_layers)
        self._intact: measuring.TaskScores | None = None
        self.intact_seconds = 0.0
        self._sizes: dict[tuple[int, ...], tuple[list[float], list[float]]] = {}

    @property
    def intact(self) -> measuring.TaskScores:
        """The scores of the intact model on all examples; measured when first asked for."""
        if self._intact is None:
            began = time.monotonic()
            self._intact = measuring.score_task(self.model, self.parse("none"), self.task, max_new_tokens=NEW_TOKENS)
            self.intact_seconds = round(time.monotonic() - began, 3)
        return self._intact

    @functools.cached_property
    def held(self) -> dict[str, Any]:
        """The model's record, made when first asked for."""
        return identity.of(self.model)

    def check(self, held: Mapping[str, Any], *, what: str) -> None:
        """Refuses to go on with what is about another model; a record of earlier versions is empty.

        Raises:
            RequestError: It is; says what differs.
        """
        identity.check(held, self.held, what=what)

    @property
    def solved(self) -> list[int]:
        """The examples that the intact model solves."""
        return [index for index, right in zip(self.intact.indices, self.intact.correct, strict=True) if right]

    def parse(self, spec: str) -> corruptions.Corruption:
        """A corruption of this model.

        Raises:
            InterventionError: It cannot be read, or names layers that the model has not.
        """
        return corruptions.parse(spec, self.n_layers)

    def controls(
        self, corruption: corruptions.Corruption, examples: Sequence[int], *, seed: int, count: int
    ) -> list[corruptions.Corruption]:
        """The same thing done to random other layers, or noise of the same size; fewer if there are no more."""
        prompts = [self.task.examples[index].prompt for index in examples]
        return controls.for_task(self.model, corruption, prompts, seed=seed, count=count)

    def sizes(self, examples: Sequence[int]) -> tuple[list[float], list[float]]:
        """How large each layer is on some prompts: mean log norm of what it writes, and block influence."""
        key = tuple(examples)
        if key not in self._sizes:
            last = self.n_layers - 1
            names = [f"blocks.{layer}.hook_resid_pre" for layer in range(last + 1)] + [f"blocks.{last}.hook_resid_post"]
            norms, turns = [], []
            for index in key:
                _, cache = self.model.run_with_cache(self.task.examples[index].prompt, names)
                streams = torch.stack([cache[name][0].float().cpu() for name in names])
                norms.append((streams[1:] - streams[:-1]).norm(dim=-1).clamp(min=1e-12).log())
                turns.append(1 - torch.nn.functional.cosine_similarity(streams[1:], streams[:-1], dim=-1))
            self._sizes[key] = (torch.cat(norms, 1).mean(1).tolist(), torch.cat(turns, 1).mean(1).tolist())
        return self._sizes[key]

    def alike(
        self, corruption: corruptions.Corruption, examples: Sequence[int], *, count: int
    ) -> list[corruptions.Corruption]:
        """The same thing done to the layers that are nearest in norm and block influence.

        Raises:
            RequestError: The corruption is not of a single layer.
        """
        if corruption.kind != "skip" or len(corruption.layers) != 1:
            raise errors.RequestError(
                f"{corruption.spec}: only a single layer, such as skip:3, has others that are alike"
            )
        norms, turns = self.sizes(examples)
        points = np.stack([norms, np.log(np.maximum(turns, 1e-9))], axis=1)
        points = (points - points.mean(axis=0)) / np.maximum(points.std(axis=0), 1e-9)
        far = np.linalg.norm(points - points[corruption.layers[0]], axis=1)
        return [self.parse(f"skip:{layer}") for layer in np.argsort(far, kind="stable")[1 : count + 1]]

    def measure(self, corruption: corruptions.Corruption, examples: Sequence[int]) -> Measured:
        """Measures a corruption on some examples."""
        began, before = time.monotonic(), self.intact
        if corruption.kind == "none" and tuple(examples) == before.indices:
            after = before
        else:
            after = measuring.score_task(
                self.model, corruption, self.task, examples=examples, max_new_tokens=NEW_TOKENS
            )
        places = {index: at for at, index in enumerate(before.indices)}
        rows = []
        for at, index in enumerate(after.indices):
            example, place = self.task.examples[index], places[index]
            row = {"example": index, "prompt": example.prompt, "answer": example.answers[0]}
            row |= _scored(after, at, "") | _scored(before, place, "intact_")
            rows.append(row)
        body = {
            "model": self.model.cfg.model_name,
            "task": self.task.name,
            "corruption": corruption.spec,
            "corruption_kind": corruption.kind,
            "layers": list(corruption.layers),
            "examples": [int(one) for one in examples],
            "n": len(rows),
            **summary(rows),
            "seconds": round(time.monotonic() - began, 3),
        }
        return Measured(body, tuple(rows))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a run: kept, accuracy and loss, with intervals where they are reasoned with."""
    right, before = (np.array([bool(row[name]) for row in rows]) for name in ("correct", "intact_correct"))
    losses, intact = (np.array([row[name] for row in rows], dtype=float) for name in ("loss", "intact_loss"))
    kept, moved = interval(right[before]), interval(losses - intact)
    return {
        "kept": kept[0],
        "kept_low": kept[1],
        "kept_high": kept[2],
        "solved_intact": int(before.sum()),
        "accuracy": float(right.mean()),
        "intact_accuracy": float(before.mean()),
        "loss": _mean(losses),
        "intact_loss": _mean(intact),
        "loss_delta": moved[0],
        "loss_delta_low": moved[1],
        "loss_delta_high": moved[2],
    }


def interval(values: Any) -> tuple[float | None, float | None, float | None]:
    """Mean and 95 % interval over examples, of what is finite; None where there are too few to have one."""
    values = np.asarray(values)
    values = values[np.isfinite(values.astype(float))]
    if len(values) < 2:
        return (float(values[0]) if len(values) else None), None, None
    found = stats.mean_interval(values, np.arange(len(values)))
    return found.value, found.low, found.high


def split(solved: Sequence[int], seed: int, *, most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Examples to explore with, and examples held out, drawn from those the intact model solves.

    Raises:
        AnalysisError: There are too few to learn anything from.
    """
    if len(solved) < 2 * LEAST_PER_SPLIT:
        raise errors.AnalysisError(
            f"the intact model solves {len(solved)} examples of this task and {2 * LEAST_PER_SPLIT} are needed: what a "
            "model cannot do cannot be broken. Choose a task it can do (`sonde lab tasks check --model NAME`)"
        )
    drawn = np.random.default_rng(seed).permutation(sorted(solved))
    size = min(most, len(drawn) // 2)
    return tuple(sorted(map(int, drawn[:size]))), tuple(sorted(map(int, drawn[size : 2 * size])))


def _mean(values: Any) -> float | None:
    good = values[np.isfinite(values)]
    return float(good.mean()) if len(good) else None


def _scored(scores: measuring.TaskScores, at: int, prefix: str) -> dict[str, Any]:
    loss = float(scores.losses[at])
    return {
        f"{prefix}completion": scores.completions[at],
        f"{prefix}loss": loss if np.isfinite(loss) else None,
        f"{prefix}correct": bool(scores.correct[at]),
    }
