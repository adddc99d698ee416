"""Greater-than: something began in a year and ended in a later one of the same century. In which?

    The war lasted from the year 1743 to the year 17        -> 44 to 99, not 00 to 43

What the next token can be depends on the tokenizer: both digits at once, or one. Every year of the century is written out
and its first new token taken; a token with which both a possible and an impossible year begin is neither right nor wrong.
Corruption: the first year becomes the 01 of its century, after which nearly every year is possible.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from sonde.circuits import pairs
from sonde.circuits.tasks import building

EVENTS = (
    "war siege voyage reign dispute drought famine truce trial revolt embargo campaign expedition exile alliance plague "
    "project search strike lease boom"
)
TEMPLATES = (
    "The {event} lasted from the year {century}{year} to the year {century}",
    "The {event} began in {century}{year} and ended in {century}",
    "The {event} started in the year {century}{year} and was over by the year {century}",
    "Records say that the {event} went on from {century}{year} until {century}",
)
CENTURIES = ("11", "12", "13", "14", "15", "16", "17", "18", "19")
FIRST, LAST = 12, 88


def make(model: Any, *, n: int = 64, seed: int = 0) -> tuple[pairs.Pairs, building.Report]:
    """Greater-than: a year that is later than the one named before, in the same century."""
    builder = building.Builder(model, "greater-than")
    builder.fill(_drafts(random.Random(seed), builder), n=n)
    return builder.finish()


def _drafts(rng: random.Random, builder: building.Builder) -> Iterator[building.Draft]:
    for number in itertools.count():
        template, event, century = TEMPLATES[number % len(TEMPLATES)], rng.choice(EVENTS.split()), rng.choice(CENTURIES)
        year = rng.randint(FIRST, LAST)
        clean, corrupt = (template.format(event=event, century=century, year=f"{one:02}") for one in (year, 1))
        tokens = builder.continuations(clean, [f"{one:02}" for one in range(100)])
        early, late = (
            {token for token in part if token is not None} for part in (tokens[: year + 1], tokens[year + 1 :])
        )
        if late - early and early - late:
            yield building.Draft(
                clean,
                corrupt,
                sorted(late - early),
                sorted(early - late),
                cluster=f"template {number % len(TEMPLATES)}",
            )
        else:  # let the builder say why: no token tells possible years from impossible ones
            yield building.Draft(clean, corrupt, sorted(late), sorted(early))
