"""Indirect object identification: two people, one of whom gives something to the other. To whom?

    When Anna and Paul went to the market, Paul handed a lamp to        -> " Anna", not " Paul"

Templates times places, objects and names; each template in both orders of the names (ABBA and BABA). Corruption by
swapping the second mention (`swap`: "... Anna handed a lamp to", after which the answer would be Paul), which leaves every
other token as it is; or by three other names (`others`), which removes the answer altogether.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from sonde.circuits import pairs
from sonde.circuits.tasks import building
from sonde.core import errors

NAMES = (
    "Adam Alan Albert Alex Alice Amanda Amy Andrew Anna Anthony Arthur Ben Betty Brian Carl Charles Chris Claire Clara "
    "Dan Daniel David Diana Edward Elizabeth Ella Emily Emma Eric Ethan Eva Frank Fred Gary George Grace Hannah Harry "
    "Helen Henry Ian Jack Jacob James Jane Jason Jennifer Jessica Jim Joe John Joseph Joshua Julia Karen Kate Kevin "
    "Larry Laura Lee Leo Lily Linda Lisa Louis Lucy Luke Maria Mark Martin Mary Matthew Max Michael Michelle Mike Nancy "
    "Nathan Neil Nick Oliver Oscar Patrick Paul Peter Philip Rachel Ralph Rebecca Richard Robert Roger Ruth Ryan Sam "
    "Sarah Scott Sean Simon Sophie Stephen Steve Susan Thomas Tim Tom Tony Victor Walter William"
)
PLACES = (
    "market library station garden museum bakery harbour school theatre office hospital beach kitchen park cafe "
    "workshop church river castle stadium farm hotel"
)
OBJECTS = (
    "lamp book ring basket letter drink candle map ticket flower coat bottle camera key painting bag sandwich hammer "
    "necklace blanket guitar bicycle"
)
TEMPLATES = (
    "When {one} and {two} went to the {place}, {giver} handed a {object} to",
    "After {one} and {two} had met at the {place}, {giver} gave a {object} to",
    "Then {one} and {two} walked to the {place}. There {giver} offered a {object} to",
    "While {one} and {two} were waiting at the {place}, {giver} passed a {object} to",
    "That day {one} and {two} spent some hours at the {place}. Before leaving, {giver} lent a {object} to",
    "Yesterday {one} and {two} drove to the {place}, where {giver} sold a {object} to",
    "On Sunday {one} and {two} were seen at the {place}, and {giver} brought a {object} to",
    "As soon as {one} and {two} reached the {place}, {giver} showed a {object} to",
    "Because {one} and {two} both liked the {place}, {giver} promised a {object} to",
    "The friends {one} and {two} were talking near the {place}. In the end {giver} gave a {object} to",
    "Last winter {one} and {two} worked together at the {place}. Every week {giver} sent a {object} to",
    "It was late when {one} and {two} left the {place}. On the way home {giver} returned a {object} to",
    "Once {one} and {two} had found the {place}, {giver} quietly slipped a {object} to",
    "Although {one} and {two} had quarrelled at the {place}, {giver} later presented a {object} to",
    "In the old photograph {one} and {two} stand before the {place}, and {giver} is giving a {object} to",
    "With {one} and {two} alone in the {place}, {giver} decided to give a {object} to",
)


def make(model: Any, *, n: int = 64, seed: int = 0, corruption: str = "swap") -> tuple[pairs.Pairs, building.Report]:
    """Indirect object identification: who is given something, of the two people named before.

    Args:
        model: Whose tokenizer decides which names can be used.
        n: How many pairs.
        seed: Of the drawing.
        corruption: `swap` the second mention, or put three `others`.

    Raises:
        RequestError: The corruption is unknown, or the tokenizer fits nothing.
    """
    if corruption not in ("swap", "others"):
        raise errors.RequestError(f"corruption {corruption!r} is unknown: expected 'swap' or 'others'")
    builder = building.Builder(model, "ioi")
    names = builder.single(NAMES.split(), least=5)
    builder.fill(_drafts(random.Random(seed), names, corruption), n=n)
    return builder.finish()


def _drafts(rng: random.Random, names: list[str], corruption: str) -> Iterator[building.Draft]:
    """Templates and orders in turn, everything else drawn."""
    for number in itertools.count():
        template, order = TEMPLATES[number // 2 % len(TEMPLATES)], ("ABBA", "BABA")[number % 2]
        receiver, giver, *others = rng.sample(names, 5)
        fixed = {"place": rng.choice(PLACES.split()), "object": rng.choice(OBJECTS.split())}
        one, two = (receiver, giver) if order == "ABBA" else (giver, receiver)
        clean = template.format(one=one, two=two, giver=giver, **fixed)
        if corruption == "swap":
            corrupt = template.format(one=one, two=two, giver=receiver, **fixed)
        else:
            corrupt = template.format(one=others[0], two=others[1], giver=others[2], **fixed)
        yield building.Draft(
            clean, corrupt, [f" {receiver}"], [f" {giver}"], cluster=f"template {number // 2 % len(TEMPLATES)}"
        )
