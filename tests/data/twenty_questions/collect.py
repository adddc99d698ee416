"""Collects real messages of the embedded model at Twenty Questions, before any rule judges them.

Run from the repository's root: `python tests/data/twenty_questions/collect.py out.jsonl 0 56`,
then with `100 114`. Answers are drawn at random,
so what is collected does not depend on any oracle. Takes about ten minutes on two cores.
"""

import asyncio
import json
import pathlib
import random
import sys

import sonde

RULES = (
    "You are playing Twenty Questions. I am thinking of an everyday object. Ask exactly one yes/no question per message "
    "to find out what it is. I answer Yes, No or Invalid question. Guess the object only when you are sure."
)
EXAMPLES = (
    ("Is it alive?", "Is it found in a kitchen?", "Is it made of metal?", "Is it a spoon?"),
    ("Is it an animal?", "Does it have four legs?", "Can you ride it?", "Is it a horse?"),
    ("Can you eat it?", "Is it used outdoors?", "Does it have wheels?", "Is it a bicycle?"),
    ("Is it bigger than a person?", "Is it soft?", "Do people wear it?", "Is it a hat?"),
    ("Does it use electricity?", "Is it green?", "Does it grow in the ground?", "Is it a tree?"),
)
QUESTIONS = (
    "Is it alive?", "Is it an animal?", "Can you eat it?", "Is it bigger than a car?", "Is it made of metal?",
    "Is it used outdoors?", "Does it have legs?", "Can it fly?", "Is it found in a house?", "Does it make a sound?",
    "Is it soft?", "Do people wear it?", "Can you hold it in one hand?", "Is it red?", "Does it use electricity?",
    "Is it used for cooking?", "Does it live in water?", "Is it heavy?", "Do children play with it?", "Is it expensive?",
)  # fmt: skip
SECOND_PART = 100
TEMPERATURES = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2)


def opening(kind: str, example: tuple[str, ...]) -> list[dict[str, str]]:
    """The chat before the first message: with the example game, or with the rules alone."""
    messages = [{"role": "system", "content": RULES}]
    if kind == "rules":
        return [*messages, {"role": "user", "content": "New game. Ask your first question."}]
    messages.append({"role": "user", "content": "New game. Ask your first question."})
    for question, answer in zip(example, ("No", "Yes", "Yes", "Yes"), strict=True):
        messages += [{"role": "assistant", "content": question}, {"role": "user", "content": answer}]
    messages[-1]["content"] = "Yes, you won! New game. Ask your first question."
    return messages


async def converse(client: sonde.HookedTransformerLLMClient, index: int, steps: int) -> list[dict[str, object]]:
    """One conversation of so many steps."""
    draw = random.Random(index)
    kind = "rules" if index % 10 == 9 else "example"
    temperature = TEMPERATURES[index % len(TEMPERATURES)] if kind == "example" else draw.choice(TEMPERATURES)
    example = draw.choice(EXAMPLES)
    if index >= SECOND_PART:  # questions drawn anew for each conversation: the first part hardly left its few examples
        example = (*draw.sample(QUESTIONS, 3), example[-1])
        temperature = draw.choice((0.6, 0.7, 0.8, 0.9))
    messages, rows = opening(kind, example), []
    for step in range(steps):
        request = sonde.LLMRequest(messages=messages, temperature=temperature, seed=1000 * index + step)
        text = (await client(request)).text
        rows.append({"text": text, "temperature": temperature, "prompt": kind, "step": step})
        answer = draw.choice(["Yes", "No", "No", "Invalid question"])
        messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": answer}]
    return rows


async def main(path: str, first: int, last: int, steps: int = 10, wave: int = 14) -> None:
    """Plays the conversations from `first` to `last` in waves, and writes after each."""
    client = sonde.HookedTransformerLLMClient(sonde.load("smollm2-135m-instruct"), max_new_tokens=48)
    with pathlib.Path(path).open("w", encoding="utf-8") as out:  # noqa: ASYNC230
        for start in range(first, last, wave):
            played = await asyncio.gather(*(converse(client, start + one, steps) for one in range(wave)))
            out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for rows in played for row in rows)
            out.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
