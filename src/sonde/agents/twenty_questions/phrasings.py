"""In how many ways can one ask whether it is a dog? Rewrites them as "is it a dog".

    plain("is the secret word dog")             # 'is it dog'
    announced("my final guess would be a dog")  # 'a dog'
    claimed("i think it must be a dog")         # 'it is a dog'

A guess is one name in a frame, and the frame says nothing but these, each from one closed vocabulary below:

1. the secret: "it", "the answer", "the thing you are thinking of" (`SECRET`);
2. having it in mind: "you picked", "are we talking about", "have I been looking for" (`CHOICE`);
3. being right: "would … be correct", "am I right that" (`RIGHT`);
4. guessing: "my final guess is", "I'm going with" (`_ANNOUNCED`);
5. asking: "I'd like to ask whether" (`asks_whether`).

All work on lower-case words with single spaces between them, without contractions and hedges (see `words`). Every pattern is
tied to the beginning of the text and repeats nothing without bound that it could give back, so the cost is linear in the text.
"""

import re
from collections.abc import Sequence

from sonde.agents.twenty_questions import facts, lexicon

WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
CONTRACTED = {
    f"{who}{mark}{short}": f"{who} {full}"
    for short, full, whose in (
        ("m", "am", "i"), ("re", "are", "you we they"), ("ve", "have", "i you we they"), ("s", "is", "it that this there here"),
        ("ll", "will", "i you we it that they"), ("d", "would", "i you we it that they"),
    )
    for who in whose.split()
    for mark in ("'", "")
    if mark or f"{who}{short}" not in ("its", "were", "well", "ill", "id", "wed", "itd")
} | {"let's": "let us", "lets": "let us", "gotta": "got to", "gonna": "going to", "wanna": "want to", "isit": "is it"}  # fmt: skip
CONTRACTED |= {
    f"{verb}nt": f"{verb}n't" for verb in ("is", "are", "was", "would", "could", "does", "did", "do", "have")
}
_HEDGE = re.compile(
    r"(?:^| )(?:by (?:any |some |pure )?chance|possibly|perhaps|maybe|simply|just|merely|actually|indeed|in fact|after all|all along"
    r"|all this time|this (?:whole|entire) time|the (?:whole|entire) time|(?:plain|good|regular|simple) old|(?:pretty )?please"
    r"|kindly|surely|definitely|honestly|u+m+|u+h+|e+r+m*|h+m+)(?= |$)"
)
_TO_BE = re.compile(r" (?:happens?|happened|chances?|turns? out) to be(?= )| (?:end|ends) up being(?= )")
_LAST = re.compile(
    r"(?<=\S) (?:then|instead|though|anyway|thanks|thank you|or something|or what|(?<! if )(?<! can )(?<! may )(?<!could )(?<!shall )(?<!hould )(?<!might )i (?:guess|think|suppose|believe|hope|wonder|reckon|presume))$"
)

AUX = "is|are|am|was|were|be|been|being|have|had|has|got|do|did|does|will|would|could|might|must"
CHOICE = (
    r"(?:thinking (?:of|about)|thought of|think of|thinking|imagining|imagined|picturing|describing|hiding|(?:got )?in mind|talking(?: about)?"
    r"|(?:referring|hinting) (?:to|at)|(?:picked|pick|picking|chosen|chose|choose|choosing|selected|select)(?! up\b)|(?:settled|decided) on"
    r"|(?:meaning|meant|mean)(?! by\b)|(?:looking|searching|hunting|waiting|going|go|went|gone) for|seeking|after|dealing with"
    r"|want (?:me|us) to (?:guess|find|say)|(?:trying|supposed|meant) to (?:guess|find|figure out|identify))"
)
REL = rf"(?:(?:that|which|who|whom) )?(?:you|we|i)(?: both| all)?(?: (?:{AUX}|currently|all|secretly)){{0,3}} {CHOICE}"
NOUNS = "object|thing|item|answer|word|noun|one|secret|solution|mystery|target|subject"
CLASSES = "animal|creature|plant|fruit|vegetable|food|drink|vehicle|tool|instrument|machine|device|toy|place"
SECRET = (
    rf"(?:what(?:ever)? {REL}|what is (?:in|on) your mind|(?:the|your|our|this|that)(?: (?:secret|mystery|hidden|right|correct|final|chosen))?"
    rf" (?:{NOUNS}|{CLASSES})(?: (?:in|on) your mind| (?:in|of|to|for) (?:the|this|your) (?:game|round|riddle))?(?: {REL})?)"
)
RIGHT = r"(?:right|correct|true|accurate|spot on|the right (?:one|guess|answer|word|thing)|the winner)"
BEING = r"(?:is|was|must be|has to be|have to be|(?:(?:has|is) )?got to be|might be|may be|could be|would be|would have to be|should be|will be)"
SAY = "think|thinking|say|said|saying|guess|guessed|guessing|assume|assuming|believe|believing|suppose|supposing|answer|answered|went with"
CLAIM = rf"(?:it|this|that|they|you|people|what|{SECRET})"

_HELPER = r"(?:is|was|isn't|wasn't|are|were|aren't|weren't|does|doesn't|do|did|didn't|can|could|couldn't|would|wouldn't|will|won't|has|have|haven't|might|may|must|should)"
_SUBJECT = re.compile(rf"^({_HELPER} )(?:{SECRET}|it {REL})(?= )")
_CALLED = re.compile(
    r"^(?:(?:is|was|does|do|did|can|could|would|might|will) it (?:be )?(?:(?:go|going) by|called|named|known as|what (?:you|we|people|they)(?: would)? call)(?: the)?(?: name(?: of)?)?"
    r"|(?:has|had|could|might|would) (?:it|this|that) (?:have )?been) "
)
_AFTER = re.compile(rf"^(?:is|was|could|would|might) it (?:be )?(?!something|anything)((?:\S+ ){{1,4}}?){REL}$")
_TURNED = re.compile(
    rf"^(?:is|was|isn't|are|were|could|would|might|wouldn't|couldn't|does|will) (?!(?:it|this|that|these|those|they|there|my|your|our|i|you|we|he|she"
    rf"|what|not|the (?:{NOUNS})) )(?:(?:saying|guessing|answering) )?((?:\S+ ){{1,4}}?)(?:be |been |sound |seem )?(?:{SECRET}|{RIGHT})$"
)
_CHOSEN = re.compile(
    rf"^(?:is it (?:true )?that|are|were|aren't|weren't|have|haven't|had|could|couldn't|might|must|would|wouldn't|can) (?:you|we)(?: both| all)?"
    rf"(?: (?:be|been|have|are|were|had|got)){{0,2}} (?!(?:pick|choose|select|think of|go for|mean) )({CHOICE}) (.+?)(?: here| now)?$"
)
_PICKED = re.compile(
    rf"^(?:do|did|didn't|don't) (?:you|we)(?: (?:both|end up|decide to))? ({CHOICE}) (.+?)(?: here| in mind)?$"
)
_LOOKING = re.compile(
    r"^(?:am|was|have|had|could|might) i(?: (?:be|been)){0,1} (?:looking for|searching for|hunting for|after|seeking|(?:trying|supposed|meant) to (?:guess|find|identify)) (.+)$"
)
_IN_MIND = re.compile(
    r"^(?:do|did|have|had|don't|didn't|could|would|might) you(?: (?:have|got|still)){0,2} (.+?) (?:in|on)(?: your)? mind$"
)
_NOT_NAMED = re.compile(r"^(?:it|this|that|up|me|so|not|a word|to|with|in)\b")
_ASKED = re.compile(
    rf"^(?:(?:am|would|will|was|might|could) i (?:be )?(?:right|correct)(?: (?:in|to|if|that|when|i|were|{SAY}))+"
    rf"|(?:is|was|would|might|could) it (?:be )?(?:right|correct|fair|true|accurate|safe|the case|possible|likely)(?:(?: (?:to|if|that|i|we|{SAY}))+|(?= {CLAIM}\b))"
    rf"|(?:do|would|will|did|have) i (?:win|won|get it right|get a yes|get it)(?: (?:if|when|by|with|i|were|to|{SAY}))+"
    rf"|would you say yes(?: (?:if|to|i|{SAY}))+"
    rf"|(?:can|could|would|will|do|don't|wouldn't) you (?:confirm|verify|agree|admit|say|think)(?: to me| for me)?(?: that)?(?= {CLAIM} (?:is|was|are|must|has)\b)"
    rf"|(?:could|might|can) it be(?: that)?(?= {CLAIM} (?:is|was)\b)|(?:is there )?(?:a|any|some) (?:chance|possibility|way)(?: that)?(?= {CLAIM} (?:is|was|might|could)\b)"
    rf"|what if(?= {CLAIM} (?:is|was)\b)) "
)
_IF_SAID = re.compile(
    rf"^(?:(?:if|suppose|supposing) )?i (?:were to )?(?:{SAY})(?: that)? (.+?)(?: then)? (?:(?:would|will|do|am) (?:i|that|it) (?:be )?(?:{RIGHT}|win|the answer)|would you say yes)$"
)
_ABOUT = re.compile(r"^(?:what|how) about ((?:a|an|the) \S+(?: \S+){0,2}|\S+)$")
_MODIFIED = r"(?:(?:a|an|one|another|my|the|this|here|first|second|third|next|very|last|final|best|new|wild|educated|random|lucky|official|only|current|big|more) ){0,9}"
_ANNOUNCED = re.compile(
    r"^(?:(?:ok|okay|so|then|now|and) )*(?:(?:let me|let us|i|we)(?: (?:will|would|do|am|want|wish|like|love|have|got|need|try|going|think|shall|also|now|to|it is time)){0,5} "
    rf"(?:(?:take|make|have|hazard|venture|risk|offer|try|got|with|submit) )?{_MODIFIED}(?:guess|guessing)"
    r"|(?:i )?(?:(?:am|will|would|think|let us|let me|shall|like|want|to|have|going) ){0,5}(?:go|going) with"
    r"|i (?:will|am going to|want to|would like to) (?:say|try|answer|go for|pick|choose|submit|offer)|let (?:me|us) (?:try|say)|(?:i (?:am|will) )?lock(?:ing)?(?: it)? in"
    r"|(?:can|may|could) i guess(?= (?:a|an|the|it)\b)"
    r"|guess|(?:(?:here is|this is|here comes|here goes|time for|submitting|making|taking|trying|venturing|hazarding) )?(?:my|a|one|another|first|second|next|last|final|best)(?: (?:first|second|third|next|very|last|final|best|new|wild|educated|random|official|only)){0,3}"
    r" (?:guess|answer)|answer)(?: (?:number \w+|\d+|of|is|as|here|today|would be|would have to be|will be|must be|has to be|goes to|for (?:now|today|this round))){0,3}(?: that)? "
)
_NO_NAME = re.compile(
    r"^(?:so|no|yes|just|not|now|again|right|is|was|what|left|later|before|first|too|yet|already|at|about|which|how|when|who|if|because|wrong|correctly|remaining|and|but|or|based"
    r"|going|it|that|this|from|to|with|you are wrong|on)(?=$| (?!is\b|must\b|has\b|might\b|could\b|would\b|was\b|can\b|are\b|does\b|may\b))"
)
_MINE = re.compile(
    r"^((?:\S+ ){1,4}?)(?:(?:is|would be|that is|this is|as|and that is) )?(?:my (?:(?:final|first|last|next|best|only) )?(?:guess|answer)|final answer|final guess)$"
)
_AS_MINE = re.compile(r" (?:as|for) my (?:\w+ )?(?:guess|answer)$")
_NAME_OF = re.compile(
    rf"^(?:is|was|could|would|might) (?:its name|the name of (?:it|{SECRET})|(?:the|your) (?:{NOUNS})'s name) (?:be )?(.+)$"
)
_CALL_IT = re.compile(r"^(?:would|do|can|could) (?:you|we|people|they|one|most people) call (?:it|that|this) (.+)$")
_BELIEVED = re.compile(
    rf"^(?:i (?:do |really )?(?:think|believe|bet|suppose|assume|say|reckon|take it)|i would (?:say|bet|think)|i am (?:\w+ ){{0,2}}(?:sure|certain|convinced))"
    rf"(?: that)? (?={CLAIM}\b)"
)
_IT_IS = re.compile(
    rf"^(?:its(?= (?:a|an|the)\b)|(?:(?:it|this|that|{SECRET}) {BEING})|(?:you|we)(?: (?:are|were|have|had|must|be|been|could|might|got)){{0,3}} (?!mean |think |pick |go |choose ){CHOICE}"
    rf"|you have(?: got)?(?= (?:\S+ ){{1,4}}in mind$)) (?!{BEING}\b)"
)
_MAYBE = re.compile(r"^(?:probably|likely|or) ")
_LABEL = re.compile(r"^(?:the |my )?(?:(?:secret|mystery) (?:word|object|thing|item)|guess|answer) (?!is\b|was\b)")
_CONFIRM = re.compile(
    rf"^(?:(?:am|was|would|is|did|have|do|does) (?:i|that|this|it|my (?:guess|answer)) (?:be |get (?:it|that) ?|got )*(?:{RIGHT}|close|so|it|the answer|the one|win|won|guess it)?"
    r"|correct|right|yes or no|true or false|right or wrong)$"
)
_CONCLUDED = re.compile(
    r"^(?:that is |this is )?(?:my )?final (?:guess|answer)$|^(?:that is|this is) my (?:guess|answer)$"
)
_COURTESY = re.compile(
    r"^(?:(?:do you |would you )?mind if i|is it (?:ok|okay|fine|alright) if i|(?:can|may|could|might|shall|should) (?:i|we)|(?:do you )?(?:want|wanna)(?: to)?|(?:are )?(?:you )?ready|guess what"
    r"|you know(?: what)?|really|seriously|hello|no|yes|ok|okay|still there|are you there)(?: (?:to|for|my|a|guess|guesses|try|ask|have|take|make|hear|question|one|now|another|go|again|it|this|next|last|final|i|know|what)){0,8}$"
)
_WHETHER = re.compile(
    r"^((?:\S+ ){0,14}?)(ask|asking|wonder|wondering|curious|know|tell (?:me|us)|say|answer|confirm|reveal|clarify|verify|find out|learn|check|see|knowing|question is)"
    r"(?: to me| for me| you)? (?:if|whether)(?: or not)? "
)
_NO_DEMAND = lexicon.word_set(
    "not never no cannot can't don't won't couldn't doesn't didn't isn't when before after because since he she they who people until unless"
)
_DEMAND = lexicon.word_set(
    "want like love need let wish may can could would will dying trying question please happy glad interested us next have"
)
FOREIGN = lexicon.word_set("ist es ein eine einen der das est ce c'est est-ce un une el la le les il lo um uma una é è")
COMMENTS = lexicon.word_set(
    "because since going judging given considering as i if you we though although please thanks thank fingers hopefully"
)


def words(text: str) -> list[str]:
    """The words of a text without contractions and hedges."""
    found = WORD.findall(text)
    spelled = " ".join(
        "it is" if one == "its" and then in lexicon.DETERMINERS else CONTRACTED.get(one, one)
        for one, then in zip(found, [*found[1:], ""], strict=False)
    )
    return _LAST.sub("", _TO_BE.sub(" be", _HEDGE.sub("", spelled))).split()


def plain(text: str) -> str:
    """A question with the secret as "it": "is a dog what you have in mind" is "is it a dog"."""
    for pattern in (_PICKED, _LOOKING, _CHOSEN, _IN_MIND, _ABOUT, _TURNED):
        if (found := pattern.match(text)) and not _NOT_NAMED.match(found.groups()[-1]):
            return f"is it {found.groups()[-1].strip()}"
    if (found := _NAME_OF.match(text) or _CALL_IT.match(text)) and facts.named(found.group(1).split()):
        return f"is it {found.group(1)}"
    text = _CALLED.sub("is it ", _SUBJECT.sub(r"\1it", text))
    return _AFTER.sub(r"is it \1", text).strip()


def framed(text: str) -> str | None:
    """What is named in a frame around it that may hold commas: "if i said a dog would i be right", "a dog is my guess"."""
    if found := _IF_SAID.match(text) or (None if _ANNOUNCED.match(f"{text} ") else _MINE.match(text)):
        name = found.group(1).strip()
        return None if name in ("that", "this", "it", "here") else claimed(name)
    return None


def announces(text: str) -> bool:
    """Whether `announced` finds something, or finds that nothing is named."""
    return announced(text) is not None


def announced(text: str) -> str | None:
    """What a guess says that needs no question mark, or what a question asks to be confirmed.

    Returns:
        The name or claim; "" if a guess is announced and not made; None if it is neither.
    """
    for pattern in (_ANNOUNCED, _ASKED):
        if found := pattern.match(f"{text} "):
            said = text[found.end() :].strip()
            if text.startswith("answer ") and not facts.named(said.split()):  # "Answer honestly"
                return None
            return "" if _NO_NAME.match(said) else claimed(_AS_MINE.sub("", said))
    return None


def claimed(text: str) -> str:
    """A claim about the secret as "it is …"; other text as it is."""
    text = _BELIEVED.sub("", _MAYBE.sub("", text))
    return _IT_IS.sub("it is ", _MAYBE.sub("", text)).removesuffix(" in mind")


def asks_whether(text: str) -> str | None:
    """What follows "whether" or "if" in a request for an answer; None if it is no such request."""
    found = _WHETHER.match(text)
    if not found:
        return None
    before, verb = set(found.group(1).split()), found.group(2)
    if before & _NO_DEMAND or found.group(1).startswith(("you ", "if ")):
        return None
    mine = verb in ("ask", "asking", "wonder", "wondering", "curious", "question is")
    if (
        before
        and not (mine and before & {"i", "my", "me", "let"})
        and not before & _DEMAND
        and not text.startswith("do you")
    ):
        return None
    speaks = (
        not mine
        and found.group(1).startswith(("i can ", "i could ", "i will ", "i would "))
        and not before & {"you", "like", "love", "want"}
    )
    claim = claimed(text[found.end() :])
    return None if speaks or (claim.startswith(("i ", "we ")) and "it" not in claim.split()) else claim


def labelled(text: str) -> str:
    """What follows a label such as "secret word"; other text as it is."""
    return _LABEL.sub("", text)


def topic(text: str) -> bool:
    """Whether it is nothing but a name for the secret: "what you have in mind"."""
    return bool(re.fullmatch(SECRET, text))


def concludes(text: str) -> bool:
    """Whether it says that a guess was just made: "final answer", "that is my guess"."""
    return bool(_CONCLUDED.match(text))


def confirms(text: str) -> bool:
    """Whether it only asks if what was said before is right."""
    return bool(_CONFIRM.match(text))


def courteous(text: str) -> bool:
    """Whether it only asks leave to ask."""
    return bool(_COURTESY.match(text))


def comments(part: Sequence[str]) -> bool:
    """Whether a clause after a guess says why it is made, or speaks of the player."""
    return part[0] in COMMENTS and part[:2] != ["as", "in"]


def foreign(words: Sequence[str]) -> bool:
    """Whether a fragment is in another language than English."""
    return bool(FOREIGN & set(words)) or any(not any(one.isascii() for one in word) for word in words)
