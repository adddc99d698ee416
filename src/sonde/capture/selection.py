"""Which positions of a step are kept: words and numbers.

| filter        | keeps, in each step |
|---------------|---------------------|
| `all`         | the whole context |
| `prompt`      | the prompt |
| `last_prompt` | the last token of the prompt, where the model is about to speak |
| `generated`   | the tokens generated in the step that were fed back (all but the last) |
| `last`        | the last token of the context |
| numbers       | episode positions, as they are in the step; negative ones count back from the end of its prompt |
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from sonde.core import errors

WORDS = ("all", "prompt", "last_prompt", "generated", "last")
Positions = str | Sequence[int]


def check(positions: Positions) -> None:
    """Refuses a word that is none.

    Raises:
        CaptureError: No such filter.
    """
    if isinstance(positions, str) and positions not in WORDS:
        raise errors.CaptureError(f"no position filter {positions!r}; known: {', '.join(WORDS)}, or numbers")


def chosen(positions: Positions, where: Int[np.ndarray, " pos"], prompt_length: int) -> Bool[np.ndarray, " pos"]:
    """Which slots of a step's context a filter chooses.

    Args:
        positions: The filter.
        where: Episode positions of the slots, in this step.
        prompt_length: Slots of the prompt.
    """
    slots = np.arange(len(where))
    match positions:
        case "all":
            return np.ones(len(slots), dtype=bool)
        case "prompt":
            return slots < prompt_length
        case "last_prompt":
            return slots == prompt_length - 1
        case "generated":
            return slots >= prompt_length
        case "last":
            return slots == len(slots) - 1
        case numbers:
            end = int(where[prompt_length - 1]) + 1 if prompt_length else 0
            return np.isin(where, [int(number) if int(number) >= 0 else end + int(number) for number in numbers])


def reusable(positions: Positions, prompt_length: int, length: int) -> int:
    """How many leading slots a later step need not encode again: there everything it could want was kept.

    A later step's prompt holds what this one generated, and counts from an end of its own.
    """
    if positions == "prompt":
        return prompt_length
    if not isinstance(positions, str) and any(int(number) < -1 for number in positions):
        return 0
    return length
