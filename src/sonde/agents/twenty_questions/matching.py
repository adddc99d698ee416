"""What is the answer to a yes/no question about an object, by the table?

1. Take the question apart: who does it (the secret, or people with it), the helping verb, and the rest.
2. By the frame ("has", "made of", "found in", "bigger than", "a …", people's verbs, its own verbs) choose a table of phrases.
3. Find the longest phrases in the rest. One that is false of the object answers No; if all are true and no word is
   left over, the answer is Yes; else it is not known.
4. A "not" turns the answer round.

The cost is one pass over the words, at most six words looked at together.
"""

import dataclasses
from collections.abc import Sequence

from sonde.agents.twenty_questions import facts, lexicon, objects, sentences

LONGEST_PHRASE = 6
LONGEST_NAME = 4
PEOPLE = lexicon.word_set("you i we people one someone anyone somebody anybody children kids humans adults kid child")
ADVERBS = lexicon.word_set("""usually typically commonly often normally generally mostly mainly primarily sometimes always ever really actually
    also just very quite probably something perhaps maybe likely still currently ever possibly considered all""")
EATING, DRINKING = frozenset({"eat", "eating"}), frozenset({"drink", "drinking"})
SHADES = lexicon.word_set("color colour colored coloured shade shape shaped")
HAVING = lexicon.word_set("have has had having got contain contains possess include includes with")
LINKS = lexicon.word_set("of with made in that which who for on from like at about used by inside")
COMPARED = {
    "bigger": ("size", 1), "larger": ("size", 1), "taller": ("size", 1), "longer": ("size", 1), "smaller": ("size", -1),
    "shorter": ("size", -1), "heavier": ("weight", 1), "lighter": ("weight", -1),
}  # fmt: skip
PORTIONS, OF_A = (
    lexicon.word_set("piece slice bit bar item set"),
    (["of", "a"], ["of", "an"], ["of", "the"], ["of", "your"]),
)
OTHER_SENSE = lexicon.word_set("kind type sort one version brand model emoji movie film song band company name not")
CLEARLY = 1.3
NOTHING = "no attribute matches"


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """An answer.

    Attributes:
        truth: Yes, no, or None: not known.
        why: What matched.
        guess: Whether the question named a particular thing.
        won: Whether it named the secret.
    """

    truth: bool | None
    why: str
    guess: bool = False
    won: bool = False


def match(question: Sequence[str], thing: objects.Thing) -> Match:
    """Answers a question, given as its words, about an object."""
    words = [facts.singular(word) for word in question]
    subject, verb, rest = _apart(words)
    negated = "not" in rest or (verb in sentences.HELPERS and rest[:1] == ["no"]) or ("no" in rest[:2])
    rest = [word for word in rest if word not in ("not", "no")]
    if not rest:
        return Match(None, "nothing is asked of the secret")
    found = _explained(subject, verb, rest, thing) if "," in rest else _frame(subject, verb, rest, thing)
    if negated and found.truth is not None:
        return dataclasses.replace(found, truth=not found.truth, why=f"not ({found.why})", won=False)
    return found


def _apart(words: list[str]) -> tuple[str, str, list[str]]:
    """Who (`it` or `people`), the helping verb, and the rest; of questions and of declarative sentences."""
    verb, after = (words[0], words[1:]) if words[0] in sentences.HELPERS else ("", words)
    if after[:1] == ["most"]:
        after = after[1:]
    subject = (
        "people" if after and after[0] in PEOPLE else "it" if after and after[0] in sentences.POINTING else "other"
    )
    people_word = after[0] if after else ""
    rest = after[1:] if subject != "other" else after
    if not verb and rest and (rest[0] in sentences.HELPERS or subject == "it"):
        verb, rest = rest[0], rest[1:] if rest[0] in sentences.HELPERS else rest
    if people_word in ("child", "kid"):
        rest = [people_word, *rest]
    return subject, verb, rest


def _explained(subject: str, verb: str, rest: list[str], thing: objects.Thing) -> Match:
    """Reads "a tooth, the hard thing in the mouth": the explanation must be true of the secret as far as it is understood."""
    comma = rest.index(",")
    named, said = rest[:comma], rest[comma + 1 :]
    found = _frame(subject, verb, named, thing)
    if not found.guess:
        return _frame(subject, verb, named + said, thing)
    if not found.won:
        return found
    tables = (
        lexicon.ADJECTIVE_PHRASES,
        lexicon.KIND_PHRASES,
        lexicon.PLACE_PHRASES,
        lexicon.DONE_PHRASES,
        lexicon.DOES_PHRASES,
    )
    truths = [
        facts.fact(table[(word,)], thing) for word in said for table in tables if (word,) in table and word != "thing"
    ]
    if True in truths and False not in truths and not OTHER_SENSE & set(said):
        return found
    return Match(None, f"{found.why}; not understood: {' '.join(said)}", guess=True)


def _frame(subject: str, verb: str, rest: list[str], thing: objects.Thing) -> Match:
    rest = [word for word in rest if word not in ADVERBS] or rest
    if subject != "it":
        return _people(rest, thing)
    if rest[0] == "be" and len(rest) > 1:
        return _be(rest[1:], thing)
    if verb in sentences.BE:
        return _be(rest, thing)
    if verb in ("has", "have", "had", "hasn't"):
        return _has(rest, thing)
    if rest[0] in HAVING:
        return _has(rest[1:], thing)
    return _all(rest, lexicon.DOES_PHRASES, thing)


def _be(rest: list[str], thing: objects.Thing) -> Match:
    """What follows "is it"."""
    if rest[0] in ("like", "similar"):
        return Match(None, "a likeness the table cannot judge")
    if SHADES & set(rest):  # "the color grey" and "grey in color" are "grey"
        rest = [word for word in rest if word not in SHADES | lexicon.DETERMINERS] or rest
    if rest[:1] == ["more"] or any(word in COMPARED or word == "than" for word in rest):
        return _compared(rest, thing)
    if (
        rest[0] in ("made", "composed", "built", "constructed")
        and rest[1:2]
        and rest[1] in ("of", "from", "out", "with")
    ):
        return _all(rest[1:], lexicon.MATERIAL_PHRASES, thing)
    if rest[0] in ("used", "useful", "meant", "designed", "for", "good", "needed"):
        return _used(rest, thing)
    if rest[0] in ("found", "located", "kept", "stored", "seen", "in", "on", "at", "sold", "grown", "from"):
        return _first([(rest[1:], lexicon.PLACE_PHRASES), (rest, lexicon.ADJECTIVE_PHRASES)], thing)
    if rest[0] in ("that", "which", "you", "people"):
        return _people(rest[1:] if rest[0] in ("that", "which") else rest, thing)
    if any(word in PORTIONS and rest[index + 1 : index + 3] in OF_A for index, word in enumerate(rest[:3])):
        return Match(None, "a part of something")
    if rest[0] in lexicon.DETERMINERS or rest[0] in ("called", "named"):
        return named_thing([word for word in rest[1:] if word not in lexicon.DETERMINERS] or rest[1:], thing)
    said = _first([(rest, lexicon.ADJECTIVE_PHRASES), (rest, lexicon.DONE_PHRASES)], thing)
    named = named_thing(rest, thing, sure=False) if said.truth is None else said
    return named if named.guess or named.truth is not None else said


def _has(rest: list[str], thing: objects.Thing) -> Match:
    counted = {
        "one": 1,
        "two": 2,
        "three": 3,
        "four": 4,
        "five": 5,
        "six": 6,
        "eight": 8,
        "2": 2,
        "4": 4,
        "6": 6,
        "8": 8,
    }
    if rest[:2] == ["more", "than"] and "leg" in rest and not thing.truth("legs"):
        return Match(thing.truth("legs"), facts.why("legs", thing))
    if rest[:3] == ["more", "than", "two"] and "leg" in rest and (thing.truth("two_legs") or thing.truth("four_legs")):
        return Match(bool(thing.truth("four_legs")), facts.why("four_legs", thing))
    if rest[0] in counted and counted[rest[0]] not in (2, 4) and "leg" in rest[:3] and thing.truth("legs") is False:
        return Match(False, facts.why("legs", thing))
    return _all(rest, lexicon.PART_PHRASES, thing)


def _used(rest: list[str], thing: objects.Thing) -> Match:
    """Reads "used for cutting", "used in the kitchen", "used outdoors", "used by children"."""
    if rest[:3] == ["used", "by", "child"] or rest[:3] == ["used", "by", "kid"]:
        return Match(thing.truth("children"), facts.why("children", thing))
    for eating, attribute in ((EATING, "eat_with|edible"), (DRINKING, "drink?")):
        if rest[-1] in eating:
            return Match(facts.fact(attribute, thing), facts.why(attribute, thing))
    return _first([(rest[1:], lexicon.PLACE_PHRASES), (rest, lexicon.DONE_PHRASES)], thing)


def _people(rest: list[str], thing: objects.Thing) -> Match:
    """What people do with it: the place they find it in, or the verb."""
    words = [word for word in rest if word not in ("it", "can", "could", "would", "might", "this", "them")]
    people = [word for word in words if word not in PEOPLE or word in ("child", "kid")]
    if people[:1] and people[0] in ("find", "see", "keep", "use", "get", "buy", "put", "have", "store"):
        placed = _all(people[1:], lexicon.PLACE_PHRASES, thing)
        if placed.truth is not None and any(
            word in ("in", "on", "at", "outside", "indoors", "inside", "outdoors") for word in people
        ):
            return placed
    if not people:
        return Match(None, "nothing is asked of the secret")
    if people[0] in ("make", "be", "made"):
        return Match(None, NOTHING)
    return _all(people, lexicon.DONE_PHRASES, thing)


def named_thing(words: list[str], thing: objects.Thing, *, sure: bool = True) -> Match:
    """Whether the secret is what a noun phrase names.

    Args:
        words: The phrase, without its article.
        thing: The secret.
        sure: Whether the words are a noun phrase for certain; if not, only known nouns count.
    """
    if words[:1] and words[0] in ("something", "thing", "object", "item", "tool", "device") and len(words) > 1:
        return _described(words, thing)
    for _ in range(LONGEST_NAME):  # "a pair of", "a kind of"
        whole = tuple(words)
        if words[1:2] != ["of"] or words[0] not in lexicon.MEASURES or whole in lexicon.KIND_PHRASES or not words[2:]:
            break
        words = [word for word in words[2:] if word not in lexicon.DETERMINERS] or words[2:]
    called = next((index for index, word in enumerate(words) if word in ("called", "named")), 0)
    if called and words[called + 1 :]:  # "an instrument called a piano"
        kind = _all(words[:called], lexicon.KIND_PHRASES, thing)
        named = [word for word in words[called + 1 :] if word not in lexicon.DETERMINERS]
        return named_thing(named, thing) if kind.truth else kind
    phrase = " ".join(words).replace("-", " ")
    mine = {facts.plain(name) for name in thing.names}
    if phrase in mine or facts.spelled(phrase, mine):
        return Match(True, f"names the secret: {phrase}", guess=True, won=True)
    if phrase in {facts.plain(name) for name in thing.related}:
        return Match(None, f"{phrase} is near the secret, or a kind of it", guess=True)
    end = next((index for index, word in enumerate(words) if index and word in LINKS), len(words))
    head, tail = words[:end], words[end:]
    if phrase in facts.names():
        return Match(False, f"names something else: {phrase}", guess=True)
    return _headed(head, tail, thing, sure=sure)


def _headed(head: list[str], tail: list[str], thing: objects.Thing, *, sure: bool) -> Match:
    """A noun phrase by its last noun, and what stands before and after it."""
    mine = {facts.plain(name) for name in thing.names}
    for start in range(max(0, len(head) - LONGEST_NAME), len(head)):
        noun, before = tuple(head[start:]), head[:start]
        name = " ".join(noun)
        before = [word for word in before if word not in lexicon.NEUTRAL]
        if name in mine:
            before = [word for word in before if not lexicon.ADJECTIVE_PHRASES.get((word,), "").startswith("#")]
            said = _more(before, tail, thing)
            return Match(said.truth, f"names the secret: {name}; {said.why}", guess=True, won=bool(said.truth))
        if name in facts.names() and noun not in lexicon.KIND_PHRASES:
            return Match(False, f"names something else: {name}", guess=True)
        if noun in lexicon.KIND_PHRASES:
            kind = _all(list(noun), lexicon.KIND_PHRASES, thing)
            if kind.truth is False or not (before or tail):
                return kind
            more = _more(before, tail, thing)
            return Match(kind.truth and more.truth, f"{kind.why}; {more.why}")
    if not sure or not head or head[-1] in lexicon.VAGUE:
        return Match(None, NOTHING)
    return Match(False, f"names something else: {' '.join(head)}", guess=True)


def _more(before: list[str], tail: list[str], thing: objects.Thing) -> Match:
    """What stands before a noun ("red") and after it ("that can fly", "with wheels", "made of metal")."""
    found = [_all(before, lexicon.ADJECTIVE_PHRASES, thing)] if before else []
    if len(tail) == 1:
        found.append(Match(None, NOTHING))
    if tail[1:]:
        if tail[0] in ("that", "which", "who"):
            found.append(_described(["thing", *tail], thing))
        elif tail[0] == "with":
            found.append(_has(tail[1:], thing))
        else:
            found.append(_be(tail, thing))
    truths = [one.truth for one in found]
    truth = False if False in truths else None if None in truths else True
    return Match(truth, "; ".join(one.why for one in found))


def _described(words: list[str], thing: objects.Thing) -> Match:
    """Reads "something you can sit on", "a tool for cutting", "an object that flies"."""
    rest = words[1:]
    if words[0] == "tool" and thing.truth("tool") is False:
        return Match(False, facts.why("tool", thing))
    if rest[0] in ("that", "which"):
        rest = rest[1:]
    if not rest:
        return Match(None, NOTHING)
    if rest[0] in ("for", "used", "to"):
        return _used(["used", *rest], thing)
    if rest[0] in PEOPLE or rest[0] == "most":
        return _people(rest, thing)
    if rest[0] in ("is", "are"):
        return _be(rest[1:], thing) if rest[1:] else Match(None, NOTHING)
    if rest[0] in HAVING:
        return _has(rest[1:], thing) if rest[1:] else Match(None, NOTHING)
    return _all([word for word in rest if word not in ("can", "could")], lexicon.DOES_PHRASES, thing)


def _compared(rest: list[str], thing: objects.Thing) -> Match:
    """Reads "bigger than a person"."""
    index = next((index for index, word in enumerate(rest) if word in COMPARED), None)
    if index is None or rest[index + 1 : index + 2] != ["than"]:
        return Match(None, "a comparison the table cannot make")
    other = " ".join(word for word in rest[index + 2 :] if word not in lexicon.DETERMINERS)
    measures = lexicon.REFERENCES.get(other) or facts.names().get(other)
    if measures is None or thing.size is None or thing.weight is None:
        return Match(None, f"no size known of {other!r}")
    what, sign = COMPARED[rest[index]]
    bulk = (thing.size / measures[0], max(thing.weight, 1e-9) / max(measures[1], 1e-9))
    length, mass = bulk if sign > 0 else (1 / bulk[0], 1 / bulk[1])
    ratio, other_ratio = (length, mass) if what == "size" else (mass, CLEARLY)
    why = f"{thing.name} compared with {other} in {what}"
    if ratio >= CLEARLY and other_ratio >= 1 / CLEARLY:
        truth = True
    elif ratio <= 1 / CLEARLY and (what == "weight" or other_ratio <= CLEARLY):
        truth = False
    else:
        truth = None
    before = [word for word in rest[:index] if word not in ("much", "a", "lot")]
    if truth and before:
        also = _all([word for word in before if word != "and"], lexicon.ADJECTIVE_PHRASES, thing)
        truth = also.truth
    return Match(truth, why)


def _first(tries: Sequence[tuple[list[str], lexicon.Phrases]], thing: objects.Thing) -> Match:
    """The first of several tables in which something is found."""
    found = [_all(words, table, thing) for words, table in tries]
    return next((one for one in found if one.why != NOTHING), found[0])


def _all(words: list[str], table: lexicon.Phrases, thing: objects.Thing) -> Match:
    """Looks up every phrase in the words; see the module's steps 3."""
    truths: list[bool | None] = []
    reasons: list[str] = []
    left: list[str] = []
    kept = [word for word in words if word not in lexicon.DETERMINERS]
    index = 0
    while index < len(kept):
        for size in range(min(LONGEST_PHRASE, len(kept) - index), 0, -1):
            attribute = table.get(tuple(kept[index : index + size]))
            if attribute:
                truths.append(facts.fact(attribute, thing))
                reasons.append(facts.why(attribute, thing))
                index += size
                break
        else:
            left.append(kept[index])
            index += 1
    why = "; ".join(reasons) or NOTHING
    if not truths or lexicon.TWISTS & set(left):
        return Match(None, why)
    if False in truths:
        return Match(False, why)
    strange = [word for word in left if word not in lexicon.SMALL]
    if None in truths or strange:
        return Match(None, f"{why}; not understood: {' '.join(strange)}" if strange else why)
    return Match(True, why)
