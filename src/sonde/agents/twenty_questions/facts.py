"""What does the table say of an object, and what is a word in the singular? Dictionary look-ups only."""

import functools
from collections.abc import Iterable, Sequence

from sonde.agents.twenty_questions import lexicon, objects

SHORTEST_MISSPELT = 6

IRREGULAR = {
    "knives": "knife", "mice": "mouse", "feet": "foot", "teeth": "tooth", "leaves": "leaf", "wolves": "wolf", "loaves": "loaf",
    "shelves": "shelf", "children": "child", "kids": "kid", "humans": "human", "men": "man", "women": "woman", "persons": "person",
    "geese": "goose", "scarves": "scarf", "batteries": "battery", "clothes": "clothes", "glass": "glass", "is": "is", "its": "its",
    "grass": "grass", "bus": "bus", "this": "this", "dress": "dress", "scissors": "scissors", "trousers": "trousers", "pants": "pants",
    "sunglasses": "sunglasses", "headphones": "headphones", "dice": "dice", "cactus": "cactus", "octopus": "octopus", "has": "has",
    "outdoors": "outdoors", "indoors": "indoors", "electronics": "electronics", "jeans": "jeans", "as": "as", "perhaps": "perhaps", "was": "was", "does": "does",
    "always": "always", "less": "less", "gas": "gas", "lens": "lens", "glasses": "glass", "buses": "bus", "dresses": "dress",
}  # fmt: skip
# From where on a thing is plainly so, and from where on plainly not; between them it depends.
WORKED_OUT = {
    "#big": ("size", 2.0, 0.6), "#tall": ("size", 2.0, 0.6), "#small": ("size", 0.2, 0.8), "#pocket": ("size", 0.12, 0.3),
    "#heavy": ("weight", 30.0, 5.0), "#light": ("weight", 1.0, 20.0), "#portable": ("weight", 8.0, 40.0),
}  # fmt: skip


def singular(word: str) -> str:
    """A noun in the singular; other words mostly as they are."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses", "oes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "'s", "us")) and len(word) > 3 else word


def fact(attribute: str, thing: objects.Thing) -> bool | None:
    """Whether an attribute of the lexicon is true of an object.

    `-a`: turned round; `a|b`: either; `a?`: true or not known, never false; `#a`: worked out from size or weight.
    """
    if attribute.startswith("-"):
        truth = thing.truth(attribute[1:])
        return None if truth is None else not truth
    if "|" in attribute:
        truths = [thing.truth(one) for one in attribute.split("|")]
        return True if True in truths else None if None in truths else False
    if attribute.endswith("?"):
        return thing.truth(attribute[:-1]) or None
    if not attribute.startswith("#"):
        return thing.truth(attribute)
    what, plainly, plainly_not = WORKED_OUT[attribute]
    value = thing.size if what == "size" else thing.weight
    if value is None:
        return None
    if plainly > plainly_not:
        return True if value >= plainly else False if value <= plainly_not else None
    return True if value <= plainly else False if value >= plainly_not else None


def why(attribute: str, thing: objects.Thing) -> str:
    """The attribute and its truth in words."""
    truth = fact(attribute, thing)
    said = {True: "true", False: "false", None: "it depends"}[truth]
    return f"{attribute.lstrip('#')} of {thing.name}: {said}"


def plain(name: str) -> str:
    """A name as questions are read: lower case, singular."""
    return " ".join(singular(word) for word in name.lower().replace("-", " ").split())


@functools.cache
def names() -> dict[str, tuple[float, float]]:
    """Every name in the table, in the singular, with the size and weight of what it names."""
    known: dict[str, tuple[float, float]] = {}
    for thing in objects.things():
        for name in thing.names:
            known.setdefault(plain(name), (thing.size or 1.0, thing.weight or 1.0))
    return known


def named(words: Sequence[str]) -> bool:
    """Whether the words, articles aside, are a name in the table."""
    return " ".join(singular(word) for word in words if word not in lexicon.DETERMINERS) in names()


def spelled(phrase: str, wanted: Iterable[str]) -> bool:
    """Whether a phrase is one of the wanted names written apart, in one word, or with one slip, and means nothing else."""
    if phrase in names() or phrase in lexicon.LOOKALIKES or (phrase,) in lexicon.KIND_PHRASES:
        return False
    close = phrase.replace(" ", "")
    return any(
        close == name.replace(" ", "") or (len(name) >= SHORTEST_MISSPELT and _slip(phrase, name)) for name in wanted
    )


def _slip(one: str, other: str) -> bool:
    """Whether two words differ by one letter more, less or other, or by two neighbours that changed places."""
    if abs(len(one) - len(other)) > 1:
        return False
    same = next(
        (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
    here, there = one[same:], other[same:]
    swapped = here[:2] == there[1::-1] and here[2:] == there[2:]
    return here[1:] == there or here == there[1:] or here[1:] == there[1:] or swapped
