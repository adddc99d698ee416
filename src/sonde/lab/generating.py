"""Where do more tasks come from? A language model writes examples, in rounds, and nothing it says is taken on trust.

    client = openai_client.OpenAIClient("my-model", base_url="http://127.0.0.1:8000/v1")
    made = await generating.generate(client, generating.blank("opposites", "Gives the opposite of a word."), wanted=30)
    made.task, made.rejected

1. Each round asks for some examples as JSON, and shows what was kept so far, so that it is not written again.
2. Every example is checked as those of a task file are; what does not pass is counted with its reason and left out.
3. An example whose prompt was there before, up to case and spaces, is left out.
4. It ends when there are enough, or after so many rounds. What a round brought is handed on before the next begins.

Works with any OpenAI-compatible server. Cost: a request a round. Whether an answer is right nobody checks but you: look at
the file, and let `sonde lab tasks check --model` say what a model makes of it.
"""

import collections
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from sonde.core import errors, records
from sonde.lab import tasks

BATCH = 10
MOST_TOKENS = 2000
SHOWN = 30
_RULES = (
    "You write test examples for a language model that completes text. Reply with a JSON list only, no other words: "
    '[{"prompt": "...", "answers": ["..."]}, ...]. The prompt is a text that breaks off right before the answer, and does '
    "not end in a space. Each answer is how the text goes on, begins with a space if a word follows, and is short: one "
    "to three words. List every answer that is right, the most natural one first. All prompts follow one pattern and "
    "no two ask the same."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """What came of it.

    Attributes:
        task: The task.
        rounds: How often the server was asked.
        rejected: Why examples were left out, and how many each.
    """

    task: tasks.Task
    rounds: int
    rejected: dict[str, int]


async def generate(
    client: records.LLMClient,
    task: tasks.Task,
    *,
    wanted: int = tasks.ENOUGH,
    rounds: int = 8,
    seed: int = 0,
    keep: Callable[[tasks.Task], None] = lambda task: None,
) -> Generated:
    """Adds examples to a task until there are enough.

    Args:
        client: The model that writes them.
        task: Name, description and what examples there are; see `blank`.
        wanted: How many examples to have in the end.
        rounds: How often to ask at most.
        seed: Sent to the server, plus one for each round.
        keep: Called with the task after every round that brought something.

    Raises:
        RequestError: Nothing is wanted.
        ServerError: The server is down, or nothing it wrote could be used.
    """
    if wanted < 1 or rounds < 1:
        raise errors.RequestError(f"ask for at least one example and one round, got {wanted} and {rounds}")
    rejected: collections.Counter[str] = collections.Counter()
    asked = 0
    while len(task.examples) < wanted and asked < rounds:
        reply = await client(_request(task, wanted, seed + asked))
        asked += 1
        grown = _grown(task, reply.text, wanted, rejected)
        if len(grown.examples) > len(task.examples):
            task = grown
            keep(task)
    if not task.examples:
        reasons = "; ".join(f"{why} ({count})" for why, count in rejected.most_common(3))
        raise errors.ServerError(
            f"{asked} rounds brought no usable example of {task.name!r}: {reasons or 'no examples'}"
        )
    return Generated(task, asked, dict(rejected))


def blank(name: str, description: str) -> tasks.Task:
    """A task without examples, to be filled.

    Raises:
        RequestError: The name or the description will not do.
    """
    example = {"prompt": "x", "answers": ["y"]}
    whole = tasks.of_json({"name": name, "description": description, "examples": [example]}, "the new task")
    return dataclasses.replace(whole, examples=())


def _request(task: tasks.Task, wanted: int, seed: int) -> records.LLMRequest:
    return records.LLMRequest(
        messages=[{"role": "user", "content": _question(task, wanted)}],
        system_prompt=_RULES,
        max_output_tokens=MOST_TOKENS,
        temperature=1.0,
        seed=seed,
    )


def _question(task: tasks.Task, wanted: int) -> str:
    count = min(BATCH, wanted - len(task.examples))
    lines = [f"Task: {task.name}. {task.description}", f"Write {count} new examples."]
    if task.preamble:
        lines.append(f"The model sees this before every prompt; follow its pattern: {json.dumps(task.preamble)}")
    if task.examples:
        known = [one.prompt.removeprefix(task.preamble) for one in task.examples[-SHOWN:]]
        lines.append(f"These are there already, do not repeat them: {json.dumps(known, ensure_ascii=False)}")
    return "\n".join(lines)


def _grown(task: tasks.Task, reply: str, wanted: int, rejected: "collections.Counter[str]") -> tasks.Task:
    known = {tasks.sameness(one.prompt) for one in task.examples}
    examples = list(task.examples)
    for entry in _entries(reply, rejected):
        try:
            example = tasks.example_of(entry, "an example", task.preamble)
        except errors.RequestError as error:
            rejected[str(error)[:120]] += 1
            continue
        if tasks.sameness(example.prompt) in known:
            rejected["the same prompt again"] += 1
        elif len(examples) < wanted:
            known.add(tasks.sameness(example.prompt))
            examples.append(example)
    return dataclasses.replace(task, examples=tuple(examples))


def _entries(reply: str, rejected: "collections.Counter[str]") -> list[Any]:
    """The list in a reply, whatever stands around it."""
    first, last = reply.find("["), reply.rfind("]")
    try:
        found = json.loads(reply[first : last + 1]) if 0 <= first < last else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        rejected["a reply that is no JSON list"] += 1
        return []
    return found
