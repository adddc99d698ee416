"""In how many ways can one ask whether it is a dog? Rewrites them as "is it a dog".

    plain("is the secret word dog")             # 'is it dog'
    announced("my final guess would be a dog")  # 'a dog'
    claimed("i think it must be a dog")         # 'it is a dog'

All work on lower-case words with single spaces between them. Every pattern is tied to the beginning of the text and repeats
nothing without bound that it could give back, so the cost is linear in the text.
"""

import re

CHOSEN = r"thinking (?:of|about)|imagining"
YOURS = rf"(?:that |which )?you(?:'re| are| were)(?: currently)? (?:{CHOSEN})|(?:that |which )?you(?:'ve| have| had)? (?:(?:have |had |got )?in mind|picked|chosen|chose)"
NOUNS = "object|thing|item|answer|word|noun|one|secret"
CLASSES = "animal|creature|plant|fruit|vegetable|food|drink|vehicle|tool|instrument|machine|device|toy|place"
SECRET = rf"(?:what (?:{YOURS})|(?:the|your|this|that) (?:(?:secret |mystery |hidden )?(?:{NOUNS})(?: (?:{YOURS}))?|(?:{CLASSES})(?: (?:{YOURS}))?))"
BEING = r"(?:is|was|must be|has to be|have to be|has got to be|might be|may be|could be|would be|should be|will be)"
SAY = "think|thinking|say|said|saying|guess|guessed|guessing|assume|assuming|believe|believing|suppose|supposing"

_HEDGE = re.compile(r" (?:by (?:any )?chance|happens? to be(?= ))")
_SUBJECT = re.compile(
    rf"^((?:is|was|isn't|wasn't|does|do|did|can|could|would|will|has|have|might|may|must|should) ){SECRET}(?= )"
)
_TURNED = re.compile(
    rf"^(?:is|was|could|would|might) (?!it |this |that |my |they )((?:\S+ ){{1,4}}?)(?:be )?(?:{SECRET})$"
)
_PICKED = re.compile(r"^did you (?:pick|choose|select|think of) (?!it\b|this\b|that\b|up\b)(.+)$")
_IN_MIND = re.compile(r"^(?:do you have|did you have|have you got|have you) (?!it\b|this\b|that\b)(.+) in mind$")
_THINKING = re.compile(rf"^(?:are you|is it that you are|were you) (?:{CHOSEN}) ")
_ASKED = re.compile(
    rf"^(?:(?:am i|would i be) (?:right|correct)(?: (?:in|to|if|that|when|i|{SAY}))+"
    r"|(?:is it|would it be) (?:right|correct|fair|true|accurate|safe) to (?:say|think|assume|guess)(?: that)?"
    r"|is it (?:true|correct|right|the case|possible|likely) that"
    rf"|(?:do|would|will|did|have) i (?:win|won)(?: (?:if|when|by|with|i|{SAY}))+) "
)
_ANNOUNCED = re.compile(
    r"^(?:let me guess|i guess|i(?:'ll| will|'d| would)(?: just| now)? guess|i(?:'m| am) (?:going to guess|gonna guess|guessing)"
    r"|i (?:want|wish|would like) to guess|i'd like to guess|(?:can|may|could) i guess(?= (?:a|an|the|it|it's)\b)"
    r"|(?:my )?(?:(?:first|next|last|final|best|new) )?guess(?: is| would be)?|(?:my )?final answer(?: is)?|my answer(?: is)?)"
    r"(?: that)? (?!(?:so|not|now|again|right|is|was|what)\b)"
)
_BELIEVED = re.compile(
    r"^(?:i (?:do |really |just )?(?:think|believe|bet|suppose|assume|say)|i(?:'d| would) (?:say|bet)|i(?:'m| am) (?:\w+ )?(?:sure|certain))"
    r"(?: that)? (?=(?:it|it's|this|that|they|the|your|you|you're|what|people)\b)"
)
_IT_IS = re.compile(
    rf"^(?:it's|(?:(?:it|this|that|{SECRET}) {BEING})|you(?:'re| are| were) (?:{CHOSEN})) (?!{BEING}\b)"
)
_MAYBE = re.compile(r"^(?:maybe|perhaps|possibly|probably) ")
_LABEL = re.compile(r"^(?:the |my )?(?:(?:secret|mystery) (?:word|object|thing|item)|guess|answer) (?!is\b|was\b)")
_CONFIRM = re.compile(
    r"^(?:am i (?:right|correct|close)|is (?:that|this|it|my (?:guess|answer)) (?:right|correct|true|so|it|the answer)"
    r"|did i (?:get it|win|guess it)|correct|right|yes or no|true or false)$"
)
FOREIGN = frozenset(
    [
        "ist",
        "es",
        "ein",
        "eine",
        "einen",
        "der",
        "das",
        "est",
        "ce",
        "c'est",
        "est-ce",
        "un",
        "une",
        "el",
        "la",
        "le",
        "les",
        "il",
        "lo",
        "um",
        "uma",
        "una",
        "é",
        "è",
    ]
)


def plain(text: str) -> str:
    """A question with the secret as "it": "is a dog what you have in mind" is "is it a dog"."""
    text = _HEDGE.sub(lambda found: " be" if found.group().endswith("be") else "", text)
    text = _SUBJECT.sub(r"\1it", text)
    for pattern in (_TURNED, _PICKED, _IN_MIND):
        if found := pattern.match(text):
            return f"is it {found.group(1).strip()}"
    return text


def announces(text: str) -> bool:
    """Whether `announced` finds something, or finds that nothing is named."""
    return any(pattern.match(f"{text} ") for pattern in (_ANNOUNCED, _ASKED, _THINKING))


def announced(text: str) -> str | None:
    """What a guess says that needs no question mark, or what a question asks to be confirmed; None if it is neither."""
    for pattern in (_ANNOUNCED, _ASKED, _THINKING):
        if found := pattern.match(f"{text} "):
            return claimed(text[found.end() :].strip()) or None
    return None


def claimed(text: str) -> str:
    """A claim about the secret as "it is …"; other text as it is."""
    text = _BELIEVED.sub("", _MAYBE.sub("", text))
    return _IT_IS.sub("it is ", _MAYBE.sub("", text))


def labelled(text: str) -> str:
    """What follows a label such as "secret word"; other text as it is."""
    return _LABEL.sub("", text)


def confirms(text: str) -> bool:
    """Whether it only asks if what was said before is right."""
    return bool(_CONFIRM.match(text))


def foreign(words: list[str]) -> bool:
    """Whether a fragment is in another language than English."""
    return bool(FOREIGN & set(words)) or any(not any(one.isascii() for one in word) for word in words)
