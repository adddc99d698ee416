"""Is a task file sound, and can a model do its tasks? One line per task.

    for line in checking.check(tasks.load(), model): …

Without a model: examples, answers, duplicates that were left out. With one: how many examples it completes rightly; how
likely it finds the answers, against those of other examples of the task (the control: a model that only knows what answers
look like scores the same on both); and whether prompt and answer, put together, would be cut into other tokens than
apart, which makes the answer look less likely than it is. Cost: a `score_task` and its control per task.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sonde.analysis import stats
from sonde.lab import corruptions, measuring, tasks
from sonde.lab import rows as lab_rows
from sonde.models import model as models_model


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """What is known of a task.

    Attributes:
        task: Its name.
        examples: How many it has.
        accuracy: Share of examples that the model completes rightly.
        logprob: Mean log-probability of the answers.
        control: That of other examples' answers in their place.
        able: Whether the model can do the task; None without a model.
        remarks: What to look at.
    """

    task: str
    examples: int
    accuracy: stats.Estimate | None = None
    logprob: stats.Estimate | None = None
    control: stats.Estimate | None = None
    able: bool | None = None
    remarks: tuple[str, ...] = ()


def check(found: Mapping[str, tasks.Task], model: models_model.Model | None = None) -> Iterator[Line]:
    """Goes through tasks, one line each."""
    for task in found.values():
        yield _bare(task) if model is None else _with_model(task, model)


def _bare(task: tasks.Task) -> Line:
    remarks = []
    if len(task.examples) < tasks.ENOUGH:
        remarks.append(f"fewer than {tasks.ENOUGH} examples")
    if not task.questions:
        remarks.append("no evaluation questions")
    if len({one.answers[0] for one in task.examples}) == 1 and len(task.examples) > 1:
        remarks.append("all examples have one answer")
    return Line(task.name, len(task.examples), remarks=tuple(remarks))


def _with_model(task: tasks.Task, model: models_model.Model) -> Line:
    line = _bare(task)
    none = corruptions.Corruption(kind="none", n_layers=model.cfg.n_layers)
    scores = measuring.score_task(model, none, task)
    shifted = measuring.score_task(model, none, _with_other_answers(task), max_new_tokens=1)
    clusters = np.array(scores.indices)
    able = scores.accuracy >= measuring.ABLE
    remarks = [*line.remarks]
    if not able:
        remarks.append("the model cannot do it")
    moved = sum(_moves(model.tokenizer, one) for one in task.examples)
    if moved:
        remarks.append(f"{moved} answers grow together with their prompt in this tokenizer")
    return dataclasses.replace(
        line,
        accuracy=lab_rows.mean(scores.correct.astype(np.float64), clusters, rate=True),
        logprob=lab_rows.mean(scores.logprobs, clusters),
        control=lab_rows.mean(shifted.logprobs, clusters),
        able=able,
        remarks=tuple(remarks),
    )


def _with_other_answers(task: tasks.Task) -> tasks.Task:
    """Each example with the answers of the next one that has others."""
    made, count = [], len(task.examples)
    for at, one in enumerate(task.examples):
        following = (task.examples[(at + step) % count] for step in range(1, count))
        other = next((two for two in following if two.answers[0] not in one.answers), one)
        made.append(dataclasses.replace(one, answers=other.answers))
    return dataclasses.replace(task, examples=tuple(made))


def _moves(tokenizer: Any, example: tasks.Example) -> bool:
    apart = tokenizer.encode(example.prompt) + tokenizer.encode(example.answers[0], add_special_tokens=False)
    return apart != tokenizer.encode(example.prompt + example.answers[0])
