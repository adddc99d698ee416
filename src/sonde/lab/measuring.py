"""What does a corruption do to the answers? Tasks measured on the intact and on the corrupted model, example by example.

    task = tasks.load()["capitals"]
    corruption = corruptions.parse("skip:11", model.cfg.n_layers)
    found = measuring.measure_task(model, corruption, task)
    found.measures             # accuracy, log-probability and loss of the answer: baseline, corrupted, change, interval
    found.rows[0].completion   # what it said instead

1. The prompt is encoded as the model reads prompts; the answer follows without any special token in between.
2. The answer's tokens are forced one after another, and the log-probability of every one of them is counted.
3. The prompt is also completed greedily; a completion that begins with an accepted answer is right.
4. Baseline and corruption see the same prompts, and changes are paired by example.

The engine does the work, so caches, batches and positions mean what they always mean; what all prompts of a task begin
with is encoded once. Results do not depend on what the model did before. Cost: one encoding of the prompts and
`max_new_tokens` forward passes, for the baseline too unless it is given.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sonde.core import errors, interventions
from sonde.lab import controls as lab_controls
from sonde.lab import corruptions, tasks
from sonde.lab import rows as lab_rows
from sonde.models import model as models_model
from sonde.models import requests

#: The share of examples that the intact model must answer for the task to say anything.
ABLE = 0.5
ACCURACY, LOGPROB, LOSS = "accuracy", "answer log-probability (nats)", "answer loss (nats per token)"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TaskScores:
    """How one model, intact or corrupted, does on a task.

    Attributes:
        task: The task's name.
        spec: What was done to the model.
        indices: Which examples.
        completions: What it said.
        correct: Whether that was right.
        logprobs: Of the whole answer.
        lengths: Tokens of the answer.
    """

    task: str
    spec: str
    indices: tuple[int, ...]
    completions: tuple[str, ...]
    correct: Bool[np.ndarray, "item"]
    logprobs: Float[np.ndarray, "item"]
    lengths: tuple[int, ...]

    @property
    def losses(self) -> Float[np.ndarray, "item"]:
        """Nats per token of the answer."""
        return -self.logprobs / np.array(self.lengths)

    @property
    def accuracy(self) -> float:
        """Share of right completions."""
        return float(self.correct.mean())

    def columns(self) -> dict[str, Float[np.ndarray, "item"]]:
        """The values of every measure."""
        return {ACCURACY: self.correct.astype(np.float64), LOGPROB: self.logprobs, LOSS: self.losses}


@dataclasses.dataclass(frozen=True, slots=True)
class ExampleRow:
    """One example under a corruption, and under none."""

    index: int
    prompt: str
    answer: str
    completion: str
    correct: bool
    answer_logprob: float
    answer_loss: float
    baseline_completion: str
    baseline_correct: bool
    baseline_logprob: float
    baseline_loss: float


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TaskResult:
    """What a corruption does to a task.

    Attributes:
        task: The task's name.
        corruption: How the corruption is spelled.
        rows: Example by example.
        measures: Means with intervals, of baseline, corruption and controls.
        flags: What a reader must know before believing them.
    """

    task: str
    corruption: str
    rows: tuple[ExampleRow, ...]
    measures: tuple[lab_rows.Row, ...]
    flags: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data."""
        examples = [dataclasses.asdict(one) for one in self.rows]
        for one in examples:
            one |= {name: lab_rows.finite(value) for name, value in one.items() if isinstance(value, float)}
        measures = [one.to_json() for one in self.measures]
        flags = list(self.flags)
        return {
            "task": self.task,
            "corruption": self.corruption,
            "measures": measures,
            "flags": flags,
            "rows": examples,
        }


def measure_task(
    model: models_model.Model,
    corruption: corruptions.Corruption,
    task: tasks.Task,
    *,
    examples: Sequence[int] | None = None,
    baseline: TaskScores | None = None,
    max_new_tokens: int = 8,
) -> TaskResult:
    """Measures a task on the corrupted model, and on the intact one.

    Args:
        model: The model.
        corruption: What is done to it.
        task: What it is asked.
        examples: Which examples; None for all.
        baseline: What `score_task` found for `none` on the same examples, if that was done before.
        max_new_tokens: Length of the completions, at least; longer answers get what they need.

    Raises:
        RequestError: No such example, or the baseline is of other examples.
        InterventionError: The corruption does not fit the model.
    """
    none = corruptions.Corruption(kind="none", n_layers=corruption.n_layers)
    if baseline is None:
        baseline = score_task(model, none, task, examples=examples, max_new_tokens=max_new_tokens)
    scored = score_task(model, corruption, task, examples=baseline.indices, max_new_tokens=max_new_tokens)
    chosen = _chosen(task, examples)
    if (baseline.task, baseline.indices) != (task.name, chosen):
        raise errors.RequestError(
            f"the baseline is of {len(baseline.indices)} examples of {baseline.task!r}, expected {len(chosen)} of "
            f"{task.name!r}: score the same examples"
        )
    return result(task, baseline, scored)


def measure_with_controls(
    model: models_model.Model,
    corruption: corruptions.Corruption,
    task: tasks.Task,
    *,
    examples: Sequence[int] | None = None,
    seed: int = 0,
    count: int = 3,
) -> TaskResult:
    """The same with rows for controls: other layers, or noise of equal size, drawn by the seed."""
    chosen = _chosen(task, examples)
    prompts = [task.examples[index].prompt for index in chosen]
    beside = lab_controls.for_task(model, corruption, prompts, seed=seed, count=count)
    none = corruptions.Corruption(kind="none", n_layers=corruption.n_layers)
    baseline, scored, *rest = (score_task(model, one, task, examples=chosen) for one in (none, corruption, *beside))
    return result(task, baseline, scored, rest)


def score_task(
    model: models_model.Model,
    corruption: corruptions.Corruption,
    task: tasks.Task,
    *,
    examples: Sequence[int] | None = None,
    max_new_tokens: int = 8,
) -> TaskScores:
    """Scores one model, intact (`none`) or corrupted, on a task."""
    chosen = _chosen(task, examples)
    asked = [task.examples[index] for index in chosen]
    prompts = [tuple(model.tokenizer.encode(one.prompt)) for one in asked]
    answers = [tuple(model.tokenizer.encode(one.answers[0], add_special_tokens=False)) for one in asked]
    specs = corruption.bound(model)
    longest = max(max_new_tokens, 2 + max(map(len, answers)))
    with isolated(model):
        forced = _forced(model, prompts, answers, specs)
        said = model.generate(prompts, interventions=specs, max_new_tokens=longest)
    right = np.array([one.is_right(answer.text) for one, answer in zip(asked, said, strict=True)], dtype=bool)
    return TaskScores(
        task.name,
        corruption.spec,
        chosen,
        tuple(one.text for one in said),
        right,
        np.array([sum(one.logprobs) for one in forced], dtype=np.float64),
        tuple(map(len, answers)),
    )


def result(task: tasks.Task, baseline: TaskScores, scored: TaskScores, beside: Sequence[TaskScores] = ()) -> TaskResult:
    """Puts scores of the same examples together: rows, means, intervals and flags."""
    clusters = np.array(baseline.indices)
    made: list[lab_rows.Row] = []
    for measure, intact in baseline.columns().items():
        columns: list[tuple[lab_rows.Role, str, Any]] = [
            ("baseline", "none", intact),
            ("corrupted", scored.spec, scored.columns()[measure]),
            *(("control", one.spec, one.columns()[measure]) for one in beside),
        ]
        made += lab_rows.of(measure, clusters, columns)
    examples = tuple(_row(task, baseline, scored, at) for at in range(len(clusters)))
    return TaskResult(task.name, scored.spec, examples, tuple(made), tuple(_flags(baseline, scored)))


@contextlib.contextmanager
def isolated(model: models_model.Model) -> Iterator[None]:
    """A block that neither uses nor leaves behind cached conversations: results depend on nothing before."""
    kept, model.pool.entries = model.pool.entries, []
    try:
        yield
    finally:
        model.pool.entries = kept


def _forced(
    model: models_model.Model,
    prompts: Sequence[tuple[int, ...]],
    answers: Sequence[tuple[int, ...]],
    specs: tuple[interventions.Intervention, ...],
) -> list[requests.Generation]:
    """Log-probabilities of answers. The first goes alone, so that the others find what all begin with in the cache."""
    batch = [
        model.request(prompt, requests.Sampling(max_new_tokens=len(answer)), specs, forced=answer)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    found: list[requests.Generation] = []
    for part in (batch[:1], batch[1:]):
        found += model.wait(model.submit(part), part)
    return found


def _chosen(task: tasks.Task, examples: Sequence[int] | None) -> tuple[int, ...]:
    chosen = tuple(range(len(task.examples))) if examples is None else tuple(int(one) for one in examples)
    wrong = [index for index in chosen if not 0 <= index < len(task.examples)]
    if wrong or not chosen:
        raise errors.RequestError(
            f"task {task.name!r} has examples 0 to {len(task.examples) - 1}, got {wrong[:1] or 'none'}"
        )
    return chosen


def _row(task: tasks.Task, baseline: TaskScores, scored: TaskScores, at: int) -> ExampleRow:
    example = task.examples[baseline.indices[at]]
    return ExampleRow(
        baseline.indices[at],
        example.prompt,
        example.answers[0],
        scored.completions[at],
        bool(scored.correct[at]),
        float(scored.logprobs[at]),
        float(scored.losses[at]),
        baseline.completions[at],
        bool(baseline.correct[at]),
        float(baseline.logprobs[at]),
        float(baseline.losses[at]),
    )


def _flags(baseline: TaskScores, scored: TaskScores) -> list[str]:
    found = []
    if baseline.accuracy < ABLE:
        found.append(
            f"the intact model answers {baseline.accuracy:.0%} of {len(baseline.indices)} examples right: it cannot do "
            f"{baseline.task!r}, and what a corruption does to it says little"
        )
    lost = int((~np.isfinite(scored.logprobs)).sum())
    if lost:
        found.append(f"{lost} answers have no finite likelihood under {scored.spec}; they are left out of the means")
    if len(baseline.indices) < tasks.ENOUGH:
        found.append(f"{len(baseline.indices)} examples only: the intervals are wide")
    return found
