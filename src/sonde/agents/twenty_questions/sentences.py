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

from sonde.agents.twenty_questions import lexicon, phrasings

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
    q question thanks good nice actually finally sure if a b c""")
TAGS = (
    "right", "correct", "yes", "no", "true", "ok", "okay", "or not", "is it", "isn't it", "is it not", "does it", "doesn't it",
    "can it", "can't it", "can you", "can't you", "don't you", "do you", "don't they", "aren't they", "wouldn't you", "wasn't it",
    "hasn't it", "am i right", "isn't that right", "yes or no", "true or false", "don't people", "won't it", "am i correct",
    "is that right", "is that correct", "is this right", "is this correct", "aren't you", "didn't you", "isn't this", "must it",
)  # fmt: skip
INDIRECT = re.compile(
    r"^(?:(?:can|could|would|will) you (?:please )?)?(?:tell me|let me know|say|answer|do you know|i would like to know|"
    r"i'd like to know|i want to know|i wonder|i am wondering|i'm wondering|i ask) (?:if|whether) "
)
REQUEST = re.compile(
    r"^(?:(?:can|could|would|will) you (?:please )?)?(?:tell me|give me|show me|describe|explain|print|name|reveal|list)\b"
)
WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
SENTENCE_END = re.compile(r"[?!\n…]+|\.(?!\d)")
CLAUSE_END = re.compile(r"[,;:()\"“”]| - | – |—")


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
    asked: dict[tuple[str, ...], str] = {}
    before = ""
    for sentence, marked in sentences(text):
        found = clauses(sentence, marked)
        if phrasings.confirms(" ".join(_unfilled(WORD.findall(sentence)))):
            found = clauses(before, True) if before else []
            found = found if found and found[0][1] != "aside" else [((sentence,), "aside")] * marked
        asked |= {words: kind for words, kind in found if words not in asked}
        before = sentence
    return _judge(asked, len(WORD.findall(text)))


def _judge(asked: dict[tuple[str, ...], str], words: int) -> Reading:
    count = {kind: list(asked.values()).count(kind) for kind in ("yes/no", "choice", "open", "aside")}
    own = [question for question, kind in asked.items() if kind == "yes/no"]
    if count["choice"]:
        return Reading("several", None, "offers a choice")
    if len(own) == 1 and not count["open"] and not count["aside"]:
        return Reading("valid", own[0], "one yes/no question")
    if own:
        return Reading("several", None, f"{len(asked)} different questions")
    if count["open"] and words <= LONGEST_OPEN:
        return Reading("open", None, "asks for more than yes or no")
    if asked:
        return Reading("rambling", None, "asks about something else than the secret")
    if words > LONGEST_STATEMENT:
        return Reading("rambling", None, f"more than {LONGEST_STATEMENT} words and no question about the secret")
    return Reading("statement", None, "no question")


def clean(message: str) -> str:
    """Lower case, plain quotes, no control characters, no markup."""
    text = unicodedata.normalize("NFKC", message).lower()
    text = text.replace("’", "'").replace("‘", "'").replace("`", "'")
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


def clauses(sentence: str, marked: bool) -> list[tuple[tuple[str, ...], str]]:
    """The questions in a sentence, each with its kind: `yes/no`, `choice`, `open` or `aside`; none for a statement."""
    parts = [WORD.findall(part) for part in CLAUSE_END.split(sentence)]
    parts = [words for part in parts if part for words in _conjoined(part)]
    whole = [word for part in parts for word in part]
    tag = marked and _tag(whole)
    if tag:
        return _tagged(_unfilled(whole[: -len(tag.split())]))
    found: list[tuple[tuple[str, ...], str]] = []
    start = None
    for index, part in enumerate(parts):
        kind = _form(_unfilled(part), marked)
        if kind and start is not None:
            found += _question(parts[start:index], marked)
        start = index if kind else start
    if start is not None:
        return found + _question(parts[start:], marked)
    return _question([whole], marked)


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
        start += 1
    return words[start:]


def _tag(words: list[str]) -> str:
    """The question tag a declarative sentence ends in."""
    body = _unfilled(words)
    if body[0] in HELPERS or body[0] in ASKING:
        return ""
    ends = (" ".join(words[-3:]), " ".join(words[-2:]), words[-1])
    return next((end for end in ends if end in TAGS and len(words) > len(end.split())), "")


def _form(words: list[str], marked: bool) -> bool:
    """Whether a question starts with these words."""
    text = " ".join(words)
    if INDIRECT.match(text) or phrasings.announces(text) or REQUEST.match(text):
        return True
    if words[0] in ASKING:
        return marked or (len(words) > 1 and words[1] in HELPERS) or words[0].endswith("'s")
    if words[0] not in HELPERS or len(words) < 2:
        return False
    return marked or words[1] in POINTING or words[1:2] == ["the"]


def _question(parts: list[list[str]], marked: bool) -> list[tuple[tuple[str, ...], str]]:
    words = _unfilled([word for part in parts for word in part])
    text = " ".join(words)
    if found := INDIRECT.match(text):
        return _yes_no(phrasings.claimed(text[found.end() :]).split())
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


def _tagged(words: list[str]) -> list[tuple[tuple[str, ...], str]]:
    """What a question tag asks about: a claim, an announced guess, or the name of a thing."""
    text = " ".join(words)
    if (guess := phrasings.announced(text)) is not None:
        return _about_it(guess.split())
    words = phrasings.labelled(phrasings.claimed(text)).split()
    return _fragment(words) or _yes_no(words)


def _about_it(words: list[str]) -> list[tuple[tuple[str, ...], str]]:
    """A question made of a claim ("it is a dog", "you can eat it") or of a name; none of "dogs are nice"."""
    if words[0] in ("it", "they", "you", "people"):
        return _yes_no(words)
    named = not (BE | ASKING | {"i", "we"}) & set(words)
    return _yes_no(["is", "it", *words]) if named else []


def _fragment(words: list[str]) -> list[tuple[tuple[str, ...], str]]:
    """A question made of a name or a quality alone; none if the words are too many, or more than that."""
    if len(words) > 4 or set(words) & (SPEAKERS | HELPERS) or phrasings.foreign(words):
        return []
    return _yes_no(["is", "it", *words])


def _asked(words: list[str], marked: bool) -> list[tuple[tuple[str, ...], str]]:
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


def _yes_no(words: list[str]) -> list[tuple[tuple[str, ...], str]]:
    if words[-2:] == ["or", "not"]:
        words = words[:-2]
    if len(words) < 2 or (words[0] in HELPERS and len(words) == 2 and words[1] in POINTING):  # "Is it?" asks nothing
        return []
    again = [index for index, word in enumerate(words[:-1]) if word == "or"]
    harmless = {"so", "more", "less", "something", "anything", "similar"}
    if any(words[index + 1] not in harmless for index in again):
        return [(tuple(words), "choice")]
    return [(tuple(words), "yes/no")]
