"""Argument copying: a function's documentation names its arguments in order. Which comes next?

    def fetch(self, size, color, node, range, limit):
        \"\"\"Return the next record.

        :param size: how many to take
        :param color: what to look for
        :param        -> " node", not " range" nor " limit"

Corruption: the arguments from the asked one on are others in the definition; the documentation stays as it is.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from sonde.circuits import pairs
from sonde.circuits.tasks import building

WORDS = (
    "size color node range limit name value file path data key text line word list table user group image model state "
    "event field label level offset page point port price query rate root rule score shape source speed start step style "
    "target task time title token total tree type unit url version view width height weight window"
)
FUNCTIONS = "fetch load build parse merge scan move draw send open pick sort"
PURPOSES = (
    "Return the next record.",
    "Prepare what the caller needs.",
    "Check the input and store it.",
    "Update the cache in place.",
    "Compute one part of the answer.",
)
HINTS = (
    "how many to take", "what to look for", "where it comes from", "used by the caller", "as given before",
    "one of the known ones", "kept for later", "must not be empty",
)  # fmt: skip
BEFORE, BEHIND = 2, 2


def make(model: Any, *, n: int = 64, seed: int = 0) -> tuple[pairs.Pairs, building.Report]:
    """Argument copying: the next argument of a function, in its documentation."""
    builder = building.Builder(model, "docstring")
    words = builder.single(WORDS.split(), least=2 * (BEFORE + 1 + BEHIND))
    builder.fill(_drafts(random.Random(seed), words), n=n)
    return builder.finish()


def _drafts(rng: random.Random, words: list[str]) -> Iterator[building.Draft]:
    for number in itertools.count():
        purpose, function = PURPOSES[number % len(PURPOSES)], rng.choice(FUNCTIONS.split())
        drawn = rng.sample(words, BEFORE + 2 * (1 + BEHIND))
        documented, asked, others = drawn[:BEFORE], drawn[BEFORE : BEFORE + 1 + BEHIND], drawn[BEFORE + 1 + BEHIND :]
        hints = rng.sample(HINTS, BEFORE)
        lines = [f"    :param {word}: {hint}" for word, hint in zip(documented, hints, strict=True)]
        body = "\n".join([f'    """{purpose}', "", *lines, "    :param"])
        clean, corrupt = (
            f"def {function}(self, {', '.join([*documented, *behind])}):\n{body}" for behind in (asked, others)
        )
        yield building.Draft(
            clean,
            corrupt,
            [f" {asked[0]}"],
            [f" {word}" for word in (*asked[1:], *others)],
            cluster=f"purpose {number % len(PURPOSES)}",
        )
