"""What is the model asked? Task sets: prompts, their answers, and what one would like to find out.

    tasks.load()["addition"].examples[0]        # Example(prompt='…4 + 3 =', answers=(' 7',))
    tasks.load("mine.json")

A task file is JSON: `{"format": 1, "tasks": [{"name": …, "description": …, "questions": […], "preamble": …, "examples":
[{"prompt": …, "answers": […]}]}]}`. The preamble (a few solved examples, mostly) stands before every prompt of the task.
An answer begins where the prompt ends, with its space if there is one. The first answer is the one whose likelihood is
measured; what begins with any of them is right. Costs milliseconds; no model is needed.

What is refused: a task without examples, an empty prompt or answer, a prompt that ends in a space, names that are no
words of lower-case letters. Two examples of one prompt are one, whatever their case and spaces.
"""

import dataclasses
import hashlib
import importlib.resources
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.core import errors
from sonde.store import disk

FORMAT = 1
#: A task set is complete with so many examples; fewer can be measured, with wider intervals.
ENOUGH = 20
NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
LONGEST_TEXT = 4000


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A prompt, preamble included, and its right answers, the most natural one first."""

    prompt: str
    answers: tuple[str, ...]

    def is_right(self, completion: str) -> bool:
        """Whether a completion begins with an answer, and does not go on with the same word or number."""
        for answer in self.answers:
            after = completion[len(answer) :][:1]
            if completion.startswith(answer) and not (answer[-1].isalnum() and after.isalnum()):
                return True
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Something a model may be able to do.

    Attributes:
        name: One word, with hyphens.
        description: A sentence.
        questions: What one would like to find out with it.
        preamble: What stands before every prompt.
        examples: At least one.
    """

    name: str
    description: str
    questions: tuple[str, ...]
    preamble: str
    examples: tuple[Example, ...]

    def to_json(self) -> dict[str, Any]:
        """The task as it stands in a file."""
        bare = [one.prompt.removeprefix(self.preamble) for one in self.examples]
        return {
            **dataclasses.asdict(self),
            "examples": [
                {"prompt": prompt, "answers": list(one.answers)}
                for prompt, one in zip(bare, self.examples, strict=True)
            ],
        }


def load(path: Path | str | None = None) -> dict[str, Task]:
    """Reads a task file, the one that comes with Sonde if none is named; tasks by name.

    Raises:
        StoreError: There is no such file.
        RequestError: It is no task file, or a task makes no sense; says which and why.
    """
    found, problems = read(path)
    if problems:
        raise errors.RequestError(f"{problems[0]}; `sonde lab tasks check` lists all problems")
    return found


def read(path: Path | str | None = None) -> tuple[dict[str, Task], list[str]]:
    """Reads what can be read: the good tasks, duplicates left out, and what is wrong with the others.

    Raises:
        StoreError: There is no such file.
        RequestError: It is no task file at all.
    """
    where = Path(path) if path is not None else None
    if where is None:
        text = importlib.resources.files("sonde.lab").joinpath("data", "tasks.json").read_text(encoding="utf-8")
    else:
        with disk.explained(where, doing="read"):
            text = where.read_text(encoding="utf-8", errors="replace")
    entries = _entries(text, where.name if where else "tasks.json")
    found: dict[str, Task] = {}
    problems: list[str] = []
    for at, entry in enumerate(entries):
        try:
            task = of_json(entry, f"task {at + 1}")
        except errors.RequestError as error:
            problems.append(str(error))
            continue
        if task.name in found:
            problems.append(f"two tasks are called {task.name!r}; rename one")
        found.setdefault(task.name, task)
    return found, problems


def digest(tasks: Iterable[Task]) -> str:
    """What tells tasks from any others: SHA-256 of all they hold."""
    held = [one.to_json() for one in tasks]
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def write(tasks: Sequence[Task], path: Path | str) -> None:
    """Writes a task file, as a whole or not at all.

    Raises:
        StoreError: It cannot be written.
    """
    content = {"format": FORMAT, "tasks": [task.to_json() for task in tasks]}
    with disk.explained(Path(path)):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        disk.write_atomic(Path(path), (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def get(tasks: Mapping[str, Task], name: str) -> Task:
    """A task by name.

    Raises:
        RequestError: There is none; says which there are.
    """
    if name not in tasks:
        raise errors.RequestError(f"no task {name!r}{errors.suggest(name, tasks)} Known: {', '.join(tasks)}")
    return tasks[name]


def of_json(entry: Any, where: str) -> Task:
    """Reads and checks one task; examples whose prompt was there before are left out.

    Raises:
        RequestError: It makes no sense; says where and why.
    """
    if not isinstance(entry, dict):
        raise errors.RequestError(f"{where} must be an object with name, description, questions and examples")
    name = entry.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise errors.RequestError(f"{where}: the name must be lower-case letters, digits and hyphens, got {name!r}")
    where = f"task {name!r}"
    preamble = entry.get("preamble", "")
    description = _text(entry.get("description"), f"{where}: the description")
    questions = entry.get("questions", [])
    if not isinstance(questions, list) or not isinstance(preamble, str) or len(preamble) > LONGEST_TEXT:
        raise errors.RequestError(f"{where}: questions must be a list of texts, and the preamble a text")
    asked = tuple(_text(one, f"{where}: a question") for one in questions)
    given = entry.get("examples")
    if not isinstance(given, list) or not given:
        raise errors.RequestError(f"{where} has no examples; give at least one, better {ENOUGH}")
    examples: dict[str, Example] = {}
    for at, one in enumerate(given):
        example = example_of(one, f"{where}, example {at + 1}", preamble)
        examples.setdefault(sameness(example.prompt), example)
    return Task(name, description, asked, preamble, tuple(examples.values()))


def example_of(entry: Any, where: str, preamble: str = "") -> Example:
    """Reads and checks one example.

    Raises:
        RequestError: It makes no sense; says where and why.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("answers"), list) or not entry["answers"]:
        raise errors.RequestError(f"{where} must be an object with a prompt and a list of answers")
    prompt = _text(entry.get("prompt"), f"{where}: the prompt")
    answers = tuple(_text(answer, f"{where}: an answer") for answer in entry["answers"])
    if prompt[-1] in " \t":
        raise errors.RequestError(
            f"{where}: the prompt {prompt[-20:]!r} ends in a space; put the space at the start of the answers, because "
            "that is where tokenizers have it"
        )
    return Example(preamble + prompt, answers)


def sameness(prompt: str) -> str:
    """What two prompts have in common if they ask the same: case and spaces do not count."""
    return " ".join(prompt.casefold().split())


def _entries(text: str, name: str) -> list[Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.RequestError(f"{name} is not JSON: {error}") from error
    entries = content.get("tasks") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise errors.RequestError(
            f'{name} is no task file: expected {{"format": 1, "tasks": [...]}} with at least one task'
        )
    if content.get("format") != FORMAT:
        raise errors.RequestError(f"{name} has format {content.get('format')!r}, this Sonde reads {FORMAT}")
    return entries


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_TEXT:
        raise errors.RequestError(f"{what} must be a text of 1 to {LONGEST_TEXT} characters, got {str(value)[:40]!r}")
    return value
