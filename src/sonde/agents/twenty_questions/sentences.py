"""Is a message one yes/no question about the secret, and if not, what is it?

The message is cut into sentences and these into clauses; each clause is asked whether it has the form of a yes/no
question, of an open one, or of none. One pass over the words: the cost grows with the length of the message, and
messages of more than `LONGEST` characters are not read at all.

    read("It is small. Is it alive?").kind   # 'valid'
"""

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Sequence

from sonde.agents.twenty_questions import facts, lexicon, phrasings

LONGEST = 4000
LONGEST_STATEMENT = 25
LONGEST_OPEN = 60

BE = lexicon.word_set("is are was were isn't aren't wasn't weren't")
HELPERS = BE | lexicon.word_set("""does do did can could would will has have had should may might must doesn't don't didn't can't couldn't wouldn't
    won't hasn't haven't shouldn't""")
ASKING = lexicon.word_set("what who whom whose which where when why how what's who's where's how's when's why's whats")
POINTING = lexicon.word_set("it this that they these those")
SPEAKERS = lexicon.word_set(
    "i you we me us my your our i'm you're we're i'll you'll i've you've he she him her they're"
)
FILLERS = lexicon.word_set("""so ok okay hmm hm well great now then and but or yes no please alright right next first oh ah also maybe perhaps
    q question thanks good nice actually finally sure if a b c namely""")
REQUEST = re.compile(
    r"^(?:(?:can|could|would|will) you (?:please )?)?(?:tell me|give me|show me|describe|explain|print|name|reveal|list)\b"
)
WORD = phrasings.WORD
TAG = re.compile(
    r"(?:right|correct|yes|no|true|ok|okay|or not|huh|eh|yeah|innit|yes or no|true or false|must it|or am i wrong"
    r"|(?:is|isn't|isnt|was|wasn't|aren't|are|does|doesn't|do|don't|did|didn't|can|can't|could|couldn't|would|wouldn't|won't|have|haven't"
    r"|has|hasn't|am) (?:it|they|you|i|we|people)(?: not| right| correct)?|(?:isn't|wasn't) (?:that|this)|(?:is|isn't) (?:that|this) (?:right|correct))$"
)
ASIDES = frozenset(
    {
        "you know",
        "tell me",
        "dare i say",
        "wait for it",
        "let me see",
        "let me think",
        "let us see",
        "i mean",
        "i wonder",
        "i ask",
    }
)
VOCATIVE = re.compile(
    r"(?:i (?:guess|think|suppose|believe|hope|wonder|reckon)|sir|madam|mate|oracle|buddy|pal|(?:my )?(?:dear )?friend)$"
)
RETRACTED = re.compile(
    r"(?:oh |no |well )*(?:wait|scratch that|never ?mind|forget (?:it|that)|i take (?:it|that) back|i changed my mind)\b"
)
UNFINISHED = re.compile(r"\b(is it|it's|is|a|an|the|be|say|called|guess|answer|so) ?\.\.+")
DESCRIBING = lexicon.word_set("what something someone one thing object")
SENTENCE_END = re.compile(r"[?!\n…]+|\.(?!\d)")
CLAUSE_END = re.compile(r"[,;:()\"“”]| - | – |—")
QUOTED = re.compile(r"[\"“”]([^\"“”,;:.?!\n]{1,40})[\"“”]")
NAMELY = re.compile(r"\b(?:i\. ?e\.?|viz\.) ?,?")


Question = tuple[tuple[str, ...], str]  # its words and its kind


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a message is.

    Attributes:
        kind: `valid`, `open`, `several`, `statement`, `rambling` or `empty`; whether a valid one is a guess is seen later.
        question: The words of the one question; None if there is not exactly one.
        why: The rule that decided.
    """

    kind: str
    question: tuple[str, ...] | None
    why: str


def read(message: str) -> Reading:
    """Says what a message is."""
    if len(message) > LONGEST:
        return Reading("rambling", None, f"longer than {LONGEST} characters")
    text = clean(message)
    if not any(letter.isalnum() for letter in text):
        said = any(unicodedata.category(letter) in ("So", "Sm", "Sc") for letter in text)
        return Reading("rambling", None, "symbols only") if said else Reading("empty", None, "says nothing")
    asked: dict[tuple[str, ...], Question] = {}
    before = ""
    for sentence, marked in sentences(text):
        retracted = asked and RETRACTED.match(" ".join(phrasings.words(sentence)))
        for question in [((sentence,), "aside")] if retracted else _after(before, sentence, marked):
            asked.setdefault(_key(question[0]), question)
        before = sentence
    return _judge(list(asked.values()), len(WORD.findall(text)))


def _after(before: str, sentence: str, marked: bool) -> list[Question]:
    """The questions in a sentence, or in the one before it and this one together: "A dog. Am I right?"."""
    words = phrasings.words(sentence)
    said = _unfilled(words)
    if phrasings.confirms(" ".join(said)) or phrasings.confirms(" ".join(words)):
        found = clauses(before, True) if before else []
        return found if found and found[0][1] != "aside" else [((sentence,), "aside")] * marked
    found = clauses(sentence, marked)
    if before and not any(kind == "yes/no" for _, kind in found):
        earlier = _parts(before)
        if (
            _names(said) and earlier and phrasings.announced(" ".join(_unfilled(earlier[-1]))) == ""
        ):  # "Let me guess. A dog."
            return _yes_no(["is", "it", *said])
        if phrasings.concludes(" ".join(said)) and len(earlier) == 1 and _names(earlier[0]):  # "A dog. Final answer."
            return _yes_no(["is", "it", *earlier[0]])
    return found


def _key(words: Sequence[str]) -> tuple[str, ...]:
    """What two ways to write the same question share."""
    return tuple(facts.singular(word) for word in words if word not in lexicon.DETERMINERS)


def _judge(asked: list[Question], words: int) -> Reading:
    asked = [one for one in asked if one[1] != "courtesy"] or asked
    kinds = [kind for _, kind in asked]
    own = [question for question, kind in asked if kind == "yes/no"]
    if "choice" in kinds:
        return Reading("several", None, "offers a choice")
    if len(own) == len(asked) == 1:
        return Reading("valid", own[0], "one yes/no question")
    if own:
        return Reading("several", None, f"{len(asked)} different questions")
    if "open" in kinds and words <= LONGEST_OPEN:
        return Reading("open", None, "asks for more than yes or no")
    if asked:
        return Reading("rambling", None, "asks about something else than the secret")
    if words > LONGEST_STATEMENT:
        return Reading("rambling", None, f"more than {LONGEST_STATEMENT} words and no question about the secret")
    return Reading("statement", None, "no question")


def clean(message: str) -> str:
    """Lower case, plain quotes, no control characters, no markup."""
    text = unicodedata.normalize("NFKC", message).lower()
    text = UNFINISHED.sub(r"\1 , ", text)
    text = NAMELY.sub("namely ", text.replace("’", "'").replace("‘", "'").replace("`", "'"))
    kept = (" " if unicodedata.category(one) in ("Cc", "Cf") and one != "\n" else one for one in text)
    return "".join(" " if one in "*_#<>|\\" else one for one in kept)


def sentences(text: str) -> list[tuple[str, bool]]:
    """The sentences, each with whether it ends in a question mark."""
    found, start = [], 0
    for end in SENTENCE_END.finditer(text):
        found.append((text[start : end.start()], "?" in end.group()))
        start = end.end()
    found.append((text[start:], False))
    return [(sentence, marked) for sentence, marked in found if WORD.search(sentence)]


def clauses(sentence: str, marked: bool) -> list[Question]:
    """The questions in a sentence, each with its kind: `yes/no`, `choice`, `open`, `aside` or `courtesy`; none for a statement."""
    parts = _parts(sentence)
    if len(parts) > 1 and " ".join(parts[0]) in ("yes or no", "true or false", "right or wrong"):
        parts, marked = parts[1:], True
    whole = [word for part in parts for word in part]
    if not whole:
        return []
    if (named := phrasings.framed(" ".join(_unfilled(whole)))) is not None:
        return _about_it(named.split())
    tag = marked and _tag(whole)
    if tag:
        return _tagged(parts, len(tag.split()))
    found: list[Question] = []
    start = None
    for index, part in enumerate(parts):
        kind = _form(_unfilled(part), marked)
        if kind and start is not None:
            found += _question(parts[start:index], marked)
        start = index if kind else start
    if start is not None:
        return found + _question(parts[start:], marked)
    last = phrasings.claimed(" ".join(_unfilled(parts[-1]))).split()
    if marked and len(parts) > 1 and (last[:2] == ["it", "is"] or _names(last)):  # "It barks, so a dog?"
        return _about_it(last)
    return _question([whole], marked)


def _parts(sentence: str) -> list[list[str]]:
    """The clauses of a sentence, as words."""
    parts = [phrasings.words(part) for part in CLAUSE_END.split(QUOTED.sub(r" \1 ", sentence))]
    parts = [["not", *part[1:]] if part[:1] == ["no"] and _names(part[1:]) else part for part in parts if part]
    said = [part for part in parts if " ".join(_unfilled(part)) not in ASIDES] or parts
    if len(said) > 1 and VOCATIVE.match(" ".join(said[-1])):
        said = said[:-1]
    return [words for part in said for words in _conjoined(part)]


def _conjoined(words: list[str]) -> list[list[str]]:
    """Cuts before "and does it", "or is it": a new question."""
    cuts = [
        index
        for index in range(1, len(words) - 2)
        if words[index] in ("and", "or", "but")
        and words[index + 1] in HELPERS
        and words[index + 2] in POINTING | SPEAKERS
    ]
    return [words[start:end] for start, end in zip([0, *cuts], [*cuts, len(words)], strict=True)]


def _unfilled(words: list[str]) -> list[str]:
    start = 0
    while start < len(words) - 1 and (words[start] in FILLERS or words[start].isdigit()):
        if words[start] == "a" and words[start + 1] not in HELPERS:  # an article, no number of a list
            break
        start += 1
    return words[start:]


def _tag(words: list[str]) -> str:
    """The question tag a declarative sentence ends in."""
    body = _unfilled(words)
    if body[0] in HELPERS or (body[0] in ASKING and not phrasings.claimed(" ".join(body)).startswith("it is ")):
        return ""
    ends = (" ".join(words[-4:]), " ".join(words[-3:]), " ".join(words[-2:]), words[-1])
    return next((end for end in ends if TAG.match(end) and len(words) > len(end.split())), "")


def _form(words: list[str], marked: bool) -> bool:
    """Whether a question starts with these words."""
    text = " ".join(words)
    if phrasings.asks_whether(text) is not None or phrasings.announces(text) or REQUEST.match(text):
        return True
    if words[0] in ASKING:
        return (
            (marked and not phrasings.topic(text))
            or (len(words) > 1 and words[1] in HELPERS)
            or words[0].endswith("'s")
        )
    if words[0] not in HELPERS or len(words) < 2:
        return False
    if words[0] == "don't" and words[1] not in POINTING | SPEAKERS | {"people", "most", "the", "a"}:  # "Don't laugh"
        return False
    return marked or words[1] in POINTING or words[1:2] == ["the"] or phrasings.plain(text) != text


def _question(parts: list[list[str]], marked: bool) -> list[Question]:
    found = _commented(_unfilled(parts[0]), parts[1:], marked) if len(parts) > 1 else []
    return found or _single([word for part in parts for word in part], marked)


def _commented(first: list[str], others: list[list[str]], marked: bool) -> list[Question]:
    """A guess made in one clause, while the others say why, or what such a thing is; none if they say anything else."""
    last = _unfilled(others[-1])
    announced = phrasings.announced(" ".join(first))
    if announced == "":
        said = [_unfilled(part) for part in others]
        claims = [
            phrasings.claimed(" ".join(["it", *part] if part[0] in HELPERS and _names(part[-2:]) else part)).split()
            for part in said
        ]
        return next((_about_it(claim) for claim in claims if claim[0] == "it" or _names(claim)), [])
    if (
        first[0] in HELPERS
        and first[1:2]
        and first[1] in POINTING
        and "not" not in first
        and DESCRIBING & set(first[2:4])
    ):
        return _yes_no(["is", "it", *last]) if _names(last) else []
    guess = _single(first, marked)
    if len(guess) != 1 or guess[0][1] != "yes/no" or not _names([word for word in guess[0][0][2:] if word != "be"]):
        return []
    if all(phrasings.comments(part) for part in others):
        return guess
    explained = len(others) == 1 and others[0][0] in ("the", "that", "this", "which") and "or" not in others[0]
    return [((*guess[0][0], ",", *others[0]), "yes/no")] if explained else []


def _names(words: list[str]) -> bool:
    """Whether the words are the name of a thing: one of the table, or one or two words after an article."""
    article, name = words[:1], [word for word in words if word not in lexicon.DETERMINERS]
    if not name or (HELPERS | SPEAKERS | POINTING | ASKING) & set(name):
        return False
    while name[1:2] == ["of"] and name[0] in lexicon.MEASURES and len(name) > 2:
        name = name[2:]
    return facts.named(name) or (article[0] in ("a", "an") and len(name) <= 2)


def _single(words: list[str], marked: bool) -> list[Question]:
    words = _unfilled(words)
    text = " ".join(words)
    if (asked := phrasings.asks_whether(text)) is not None:
        return _yes_no(asked.split())
    if marked and phrasings.courteous(text):
        return [(tuple(words), "courtesy")]
    if (guess := phrasings.announced(text)) is not None:
        return _about_it(guess.split())
    words = phrasings.plain(text).split()
    text = " ".join(words)
    if REQUEST.match(text) or (words[0] in ASKING and _form(words, marked)):
        return [(tuple(words), "open")]
    if words[0] in HELPERS and _form(words, marked):
        return _asked(words, marked)
    if not marked:
        return []
    words = phrasings.labelled(phrasings.claimed(text)).split()
    if words[0] in ("it", "they"):
        return _yes_no(words)
    return _fragment(words) or [(tuple(words), "aside")]


def _tagged(parts: list[list[str]], tag: int) -> list[Question]:
    """What a question tag of so many words asks about: a claim, an announced guess, or the name of a thing."""
    while tag >= len(parts[-1]):
        tag -= len(parts[-1])
        parts = parts[:-1]
    parts = [*parts[:-1], parts[-1][: len(parts[-1]) - tag]]
    last = phrasings.claimed(" ".join(_unfilled(parts[-1]))).split()
    if len(parts) > 1 and (last[:2] == ["it", "is"] or _names(last)):  # "You said it barks, so it is a dog, right?"
        first = phrasings.announced(" ".join(_unfilled(parts[0])))
        if first is None or first == "":
            return _about_it(last)
    text = " ".join(_unfilled([word for part in parts for word in part]))
    if (guess := phrasings.announced(text)) is not None:
        return _about_it(guess.split())
    words = phrasings.labelled(phrasings.claimed(text)).split()
    return _fragment(words) or _yes_no(words)


def _about_it(words: list[str]) -> list[Question]:
    """A question made of a claim ("it is a dog", "you can eat it") or of a name; none of "dogs are nice"."""
    if words[:1] and words[0] in ("it", "they", "you", "people"):
        return _yes_no(words)
    named = words and not (HELPERS | ASKING | {"i", "we", "cannot", "be"}) & set(words)
    return _yes_no(["is", "it", *words]) if named else []


def _fragment(words: list[str]) -> list[Question]:
    """A question made of a name or a quality alone; none if the words are too many, or more than that."""
    if (
        len(words) > 4 + (words[0] in lexicon.DETERMINERS)
        or set(words) & (SPEAKERS | HELPERS)
        or phrasings.foreign(words)
    ):
        return []
    return _yes_no(["is", "it", *words])


def _asked(words: list[str], marked: bool) -> list[Question]:
    """A clause that begins with a helping verb."""
    if "what" in words[1:] or ("how", "many") in itertools.pairwise(words):
        return [(tuple(words), "open")]
    about = words[1] in POINTING or bool({"it", "it's"} & set(words[2:])) or words[-1] == "one"
    if about:
        return _yes_no(words)
    rest = words[1:]
    if marked and words[0] in BE and (len(rest) == 1 or (rest[0] in ("a", "an") and len(rest) <= 4)):
        return [(("is", "it", *rest), "yes/no")]
    return [(tuple(words), "aside")] if marked else []


def _yes_no(words: list[str]) -> list[Question]:
    if words[-2:] == ["or", "not"]:
        words = words[:-2]
    if words[-3:] in (["yes", "or", "no"], ["true", "or", "false"]):
        words = words[:-3]
    if words[:1] == ["it"] and words[1:2] and words[1].endswith("n't"):  # "It isn't a dog, is it?"
        words = ["it", words[1][:-3], "not", *words[2:]]
    if len(words) < 2 or (words[0] in HELPERS and len(words) == 2 and words[1] in POINTING):  # "Is it?" asks nothing
        return []
    again = [index for index, word in enumerate(words[:-1]) if word == "or"]
    harmless = {"so", "more", "less", "something", "anything", "similar"}
    if any(words[index + 1] not in harmless for index in again):
        return [(tuple(words), "choice")]
    return [(tuple(words), "yes/no")]
