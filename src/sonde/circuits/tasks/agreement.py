"""Agreement: the verb follows the number of its subject, not that of a noun in between. Which form comes next?

    The keys near the old door        -> " are", " were", " have", not " is", " was", " has"

Corruption: the subject in the other number, and nothing else.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from sonde.circuits import pairs
from sonde.circuits.tasks import building

NOUNS = (
    "key keys, book books, doctor doctors, teacher teachers, student students, king kings, friend friends, "
    "picture pictures, letter letters, house houses, car cars, dog dogs, cat cats, bird birds, horse horses, tree trees, "
    "farmer farmers, writer writers, actor actors, singer singers, table tables, river rivers, ship ships, plant plants, "
    "judge judges, painter painters, engine engines, road roads, bridge bridges, cloud clouds"
)
STRUCTURES = (
    "The {subject}",
    "The {subject} near the {other}",
    "The {subject} behind the old {other}",
    "The {subject} with the {other}",
    "Last year the {subject} that the {other} liked",
    "I know that the {subject} beside the {other}",
    "The {subject} from the story about the {other}",
    "The {subject} that we saw close to the {other}",
)
SINGULAR, PLURAL = (" is", " was", " has"), (" are", " were", " have")


def make(model: Any, *, n: int = 64, seed: int = 0) -> tuple[pairs.Pairs, building.Report]:
    """Agreement: the verb in the number of its subject, with another noun in between."""
    builder = building.Builder(model, "agreement")
    both = [tuple(forms.split()) for forms in NOUNS.split(", ")]
    fit = set(builder.single([form for forms in both for form in forms]))
    nouns = [(one, many) for one, many in both if {one, many} <= fit]
    builder.fill(_drafts(random.Random(seed), nouns), n=n)
    return builder.finish()


def _drafts(rng: random.Random, nouns: list[tuple[str, str]]) -> Iterator[building.Draft]:
    if len(nouns) < 2:
        return
    for number in itertools.count():
        structure = STRUCTURES[number % len(STRUCTURES)]
        forms, others = rng.sample(nouns, 2)
        many, other = rng.randrange(2), others[rng.randrange(2)]
        clean, corrupt = (structure.format(subject=forms[which], other=other) for which in (many, 1 - many))
        answers, wrongs = (PLURAL, SINGULAR) if many else (SINGULAR, PLURAL)
        yield building.Draft(clean, corrupt, answers, wrongs, cluster=structure)
